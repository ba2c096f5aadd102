#include "engine/gpu_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/round_up.h"
#include "engine/device_times.h"

namespace ftrun {
namespace {

/// Bytes of a slot of the pinned memory through which numbers pass when host code converts or adds
/// them on their way between the device and the host tier.
constexpr int64_t kBridgeBytes = int64_t{4} << 20;
/// The smallest number of elements that is_finite() checks at a time.
constexpr int64_t kProbedElements = int64_t{1} << 20;
/// The alignment of parts of a batch in pinned memory.
constexpr int64_t kPartAlignment = 64;

int64_t align_part(int64_t bytes) {
  return round_up(bytes, kPartAlignment);
}

}  // namespace

GpuDevice::GpuDevice(const Program& program, Gpu& gpu, std::vector<Communicator*> groups)
    : program_(program),
      gpu_(gpu),
      groups_(std::move(groups)),
      transfer_rings_(static_cast<size_t>(lane_count(program))),
      counts_(transfer_rings_.size()),
      max_counts_(transfer_rings_.size(), 0) {
  on_host_.resize(program.instrs.size(), 0);
  for (const Instr& instr : program.instrs) {
    gpu.open_lane(instr.lane);
    labels_.push_back(instr_label(instr));
    plan_instr(instr);
  }
  can_capture_ = gpu.options().step_graph && runs_all_on_device();
  make_events();
  make_staging();
}

/// Returns whether a run can be captured. It must not use the disk, update or sum state in the host
/// tier, read counts on the host, or record times. It may exchange with other ranks only through
/// the device's collectives: links of a pipeline wait for each other across lanes, which a
/// sequential list of launches does not allow. The instructions after the decision must run either
/// as a whole or not at all.
bool GpuDevice::runs_all_on_device() const {
  if (!std::all_of(groups_.begin(), groups_.end(),
                   [](const Communicator* group) { return group->can_capture(); }))
    return false;
  bool decided = false;
  for (const Instr& instr : program_.instrs) {
    const bool device_alone = on_host_[static_cast<size_t>(id_of(instr))] == 0 &&
                              instr.lane != Lane::kDisk && !gpu_.options().timed &&
                              instr.kind != InstrKind::kSend && instr.kind != InstrKind::kReceive &&
                              instr.kind != InstrKind::kCountedAllToAll;
    if (!device_alone || (decided && !instr.if_finite)) return false;
    decided = decided || instr.kind == InstrKind::kDecide;
  }
  return true;
}

/// Returns whether the instruction adds or converts numbers on their way between the device and the
/// host tier, which a plain copy cannot do.
bool GpuDevice::crosses_tiers(const Instr& instr) const {
  if (instr.kind != InstrKind::kCopy && instr.kind != InstrKind::kAccumulate) return false;
  const Buffer& from = program_.at(instr.reads[0].buffer);
  const Buffer& to = program_.at(instr.writes[0].buffer);
  if (from.tier == to.tier || instr.lane == Lane::kDisk) return false;
  return instr.kind == InstrKind::kAccumulate || from.format.dtype != to.format.dtype;
}

/// Returns whether the instruction needs host code, because it works on memory of the host tier or
/// the disk.
bool GpuDevice::works_on_host(const Instr& instr) const {
  const auto on_host = [&](const BufferRange& range) { return tier(range) != Tier::kDevice; };
  switch (instr.kind) {
    case InstrKind::kCopy:
    case InstrKind::kAccumulate:
      return instr.lane == Lane::kDisk || crosses_tiers(instr) ||
             (on_host(instr.reads[0]) && on_host(instr.writes[0]));
    case InstrKind::kClear:
    case InstrKind::kComputeScales:
    case InstrKind::kUpdate:
      return on_host(instr.writes[0]);
    case InstrKind::kGradientNorm:
      return std::any_of(instr.reads.begin(), instr.reads.end(), on_host);
    case InstrKind::kLoadBatch:
    case InstrKind::kBegin:
    case InstrKind::kForward:
    case InstrKind::kBackward:
    case InstrKind::kInputGrad:
    case InstrKind::kWeightGrad:
    case InstrKind::kAllReduce:
    case InstrKind::kReduceScatter:
    case InstrKind::kAllGather:
    case InstrKind::kAllToAll:
    case InstrKind::kCountedAllToAll:
    case InstrKind::kShift:
    case InstrKind::kSend:
    case InstrKind::kReceive:
    case InstrKind::kDecide:
      break;
  }
  return false;
}

void GpuDevice::plan_instr(const Instr& instr) {
  on_host_[static_cast<size_t>(id_of(instr))] = works_on_host(instr) ? 1 : 0;
  if (instr.kind == InstrKind::kLoadBatch) {
    int64_t bytes = 0;
    for (const BufferRange& part : instr.writes) bytes += align_part(part.bytes);
    batch_bytes_ = std::max(batch_bytes_, bytes);
    input_bytes_ += bytes;
  }
  if (instr.kind == InstrKind::kBegin)
    input_bytes_ += align_part(kRankFlags * dtype_bytes(DType::kF64));
  if (instr.kind == InstrKind::kDecide)
    fetched_doubles_ = std::max(fetched_doubles_, element_count(program_, instr.reads[0]) +
                                                      element_count(program_, instr.reads[1]));
  if (instr.kind == InstrKind::kCountedAllToAll) {
    int64_t& max_count = max_counts_[static_cast<size_t>(instr.lane)];
    max_count = std::max(max_count, element_count(program_, instr.reads[1]));
  }
  if (instr.kind == InstrKind::kGradientNorm)
    for (const BufferRange& part : instr.reads) {
      if (tier(part) == Tier::kDevice)
        summed_elements_ = std::max(summed_elements_, element_count(program_, part));
      else
        ++host_sums_;
    }
  auto& ring = transfer_rings_[static_cast<size_t>(instr.lane)];
  if (crosses_tiers(instr) && !ring) ring.emplace(gpu_, kBridgeBytes);
}

void GpuDevice::make_events() {
  std::set<InstrId> awaited;
  for (const Instr& instr : program_.instrs) awaited.insert(instr.waits.begin(), instr.waits.end());
  for (const InstrId id : awaited) done_.emplace(id, GpuEvent(gpu_));
  if (gpu_.options().timed) make_timings();
}

void GpuDevice::make_timings() {
  run_begin_.emplace(gpu_, GpuEvent::Purpose::kTiming);
  for (size_t i = 0; i < program_.instrs.size(); ++i)
    timings_.push_back(
        {GpuEvent(gpu_, GpuEvent::Purpose::kTiming), GpuEvent(gpu_, GpuEvent::Purpose::kTiming)});
}

void GpuDevice::make_staging() {
  summed_elements_ = std::max(summed_elements_, kProbedElements);
  device_scalars_ = GpuBlock::allocate_on_device(gpu_, sizeof(StepScalars));
  norm_scratch_ =
      GpuBlock::allocate_on_device(gpu_, kernels().sum_of_squares_scratch_bytes(summed_elements_));
  probe_ = GpuBlock::allocate_on_device(gpu_, sizeof(double));
  fetched_ =
      GpuBlock::allocate_pinned(gpu_, fetched_doubles_ * static_cast<int64_t>(sizeof(double)));
  for (size_t lane = 0; lane < counts_.size(); ++lane)
    if (max_counts_[lane] > 0)
      counts_[lane] = GpuBlock::allocate_pinned(
          gpu_, max_counts_[lane] * static_cast<int64_t>(sizeof(int32_t)));
  if (can_capture_) {
    captured_inputs_ = GpuBlock::allocate_pinned(gpu_, std::max<int64_t>(input_bytes_, 1));
    inputs_read_.emplace(gpu_, GpuEvent::Purpose::kHostWait);
  }
  scalar_ring_.emplace(gpu_, sizeof(StepScalars));
  f64_ring_.emplace(gpu_, kRankFlags * dtype_bytes(DType::kF64));
  batch_ring_.emplace(gpu_, std::max<int64_t>(batch_bytes_, 1));
  if (host_sums_ > 0) sum_ring_.emplace(gpu_, host_sums_ * static_cast<int64_t>(sizeof(double)));
}

/// Begins a run. The streams of all lanes first wait for all work of the last run, so the runs do
/// not overlap. Host code does not overlap the last run, either, because it waits for its own
/// stream.
void GpuDevice::begin_run(const StepScalars& scalars, bool traced) {
  is_timed_ = traced || gpu_.options().timed;
  if (is_timed_ && timings_.empty()) make_timings();
  gpu_.add_lane_barrier();
  scalars_ = &scalars;
  host_.begin_run(scalars, traced);
  const DeviceStream stream = gpu_.stream(Lane::kCompute);
  if (is_timed_) run_begin_->record(stream);
  send_scalars(stream);
}

void GpuDevice::send_scalars(DeviceStream stream) {
  scalar_ring_->send(device_scalars_.data(), scalars_, sizeof *scalars_, stream);
}

void GpuDevice::refresh_scalars(Lane lane) {
  send_scalars(gpu_.stream(lane));
}

void GpuDevice::begin_instr(const Instr& instr) {
  const DeviceStream stream = gpu_.stream(instr.lane);
  const auto id = static_cast<size_t>(id_of(instr));
  kernels().bind_thread();
  kernels().push_range(labels_[id].c_str());
  for (const InstrId wait : instr.waits)
    if (wait >= captured_from_) kernels().wait(stream, done_.at(wait).get());
  if (on_host_[id] != 0) wait_for(stream);
  if (is_timed_) timings_[id].begin.record(stream);
}

void GpuDevice::end_instr(const Instr& instr) {
  const DeviceStream stream = gpu_.stream(instr.lane);
  const InstrId id = id_of(instr);
  if (is_timed_) timings_[static_cast<size_t>(id)].end.record(stream);
  if (const auto done = done_.find(id); done != done_.end()) done->second.record(stream);
  kernels().pop_range();
}

bool GpuDevice::waits_have_ended(const Instr& instr) {
  return std::all_of(instr.waits.begin(), instr.waits.end(),
                     [&](InstrId wait) { return kernels().is_done(done_.at(wait).get()); });
}

/// Waits for the stream. If the wait fails, the error reports this rank's device; only after a wait
/// that succeeds are the groups checked for lost peers.
void GpuDevice::wait_for(DeviceStream stream) {
  kernels().synchronize(stream);
  check_groups();
}

/// Throws if a group has failed. A collective that was aborted ends like one that is done, but its
/// output is then not a result.
void GpuDevice::check_groups() {
  for (Communicator* group : groups_) group->check_peers();
}

void GpuDevice::drain() {
  gpu_.drain();
  check_groups();
}

std::optional<DeviceTimes> GpuDevice::wait_for_times() {
  if (!gpu_.options().timed) return std::nullopt;
  return compute_device_times(program_, wait_for_intervals());
}

std::vector<RunInterval> GpuDevice::wait_for_intervals() {
  if (!is_timed_) return {};
  drain();
  std::vector<RunInterval> intervals;
  for (const Timing& timing : timings_)
    intervals.push_back({kernels().milliseconds(run_begin_->get(), timing.begin.get()) * 1e-3,
                         kernels().milliseconds(run_begin_->get(), timing.end.get()) * 1e-3});
  return intervals;
}

void GpuDevice::clear(Lane lane, const TypedSpan& to) {
  if (input_mode_ == InputMode::kStage) return;  // the captured graph clears it
  if (to.tier != Tier::kDevice) return host_.clear(lane, to);
  kernels().fill_zero(to.data, to.bytes(), gpu_.stream(lane));
}

void GpuDevice::begin_capture(InstrId first) {
  captured_from_ = first;
  if (captures_.empty()) staged_bytes_ = 0;
  input_mode_ = InputMode::kCapture;
  for (Communicator* group : groups_) group->begin_capture();
  gpu_.begin_capture();
}

void GpuDevice::end_capture() {
  Capture& made = captures_.emplace_back(Capture{gpu_.end_capture(), {}});
  for (Communicator* group : groups_) made.collectives.push_back(group->end_capture());
  captured_from_ = 0;
  input_mode_ = InputMode::kSend;
}

void GpuDevice::replay(size_t number) {
  input_mode_ = InputMode::kSend;
  const DeviceStream stream = gpu_.stream(Lane::kCompute);
  Capture& captured = captures_.at(number);
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i]->use_stream(stream);
    groups_[i]->begin_replay(captured.collectives[i]);
  }
  kernels().launch(captured.graph, stream);
  for (Communicator* group : groups_) group->end_replay();
  if (number == 0) inputs_read_->record(gpu_.stream(Lane::kCompute));
}

void GpuDevice::drop_captures() {
  if (input_mode_ == InputMode::kCapture) end_broken_capture();
  if (captures_.empty()) return;
  for (const Capture& capture : captures_) kernels().destroy(capture.graph);
  for (Communicator* group : groups_)
    group->release_captures(static_cast<int64_t>(captures_.size()));
  captures_.clear();
}

/// Ends a capture that an error has interrupted. It must be released like a complete one, because
/// it holds collectives.
void GpuDevice::end_broken_capture() {
  try {
    end_capture();
  } catch (const std::exception&) {
    input_mode_ = InputMode::kSend;  // the device has discarded the capture
  }
}

void GpuDevice::stage_inputs() {
  inputs_read_->synchronize();  // the previous replay has read its inputs
  input_mode_ = InputMode::kStage;
  staged_bytes_ = 0;
}

/// Copies input data into pinned memory at a fixed address for each input, because a captured copy
/// reads the same address in every replay.
void GpuDevice::stage_input(void* to, const void* from, int64_t bytes, DeviceStream stream) {
  std::byte* const staged = captured_inputs_.data() + staged_bytes_;
  staged_bytes_ += align_part(bytes);
  require(staged_bytes_ <= captured_inputs_.bytes(), "a captured run has room for its inputs");
  std::memcpy(staged, from, static_cast<size_t>(bytes));
  if (input_mode_ == InputMode::kCapture) kernels().copy(to, staged, bytes, stream);
}

void GpuDevice::write_f64(Lane lane, double* to, std::span<const double> numbers) {
  const auto bytes = static_cast<int64_t>(numbers.size_bytes());
  if (input_mode_ != InputMode::kSend)
    return stage_input(to, numbers.data(), bytes, gpu_.stream(lane));
  f64_ring_->send(to, numbers.data(), bytes, gpu_.stream(lane));
}

void GpuDevice::load(Lane lane, std::span<const void* const> from, std::span<const TypedSpan> to) {
  const DeviceStream stream = gpu_.stream(lane);
  if (input_mode_ != InputMode::kSend) {
    for (size_t i = 0; i < to.size(); ++i) stage_input(to[i].data, from[i], to[i].bytes(), stream);
    return;
  }
  std::byte* slot = batch_ring_->acquire();
  for (size_t i = 0; i < to.size(); ++i) {
    std::memcpy(slot, from[i], static_cast<size_t>(to[i].bytes()));
    kernels().copy(to[i].data, slot, to[i].bytes(), stream);
    slot += align_part(to[i].bytes());
  }
  batch_ring_->record_use(stream);
}

void GpuDevice::run_ops(const LayerGraph& graph, std::span<const Op> ops,
                        std::span<void* const> storage, KernelContext context) {
  context.scalars = device_scalars_.as<StepScalars>();
  kernels().run_ops(graph, ops, storage, context, gpu_.stream(Lane::kCompute));
}

void GpuDevice::prepare_communicator(Lane lane, Communicator& group) {
  group.use_stream(gpu_.stream(lane));
}

void GpuDevice::copy(Lane lane, const TypedSpan& from, const TypedSpan& to) {
  const DeviceStream stream = gpu_.stream(lane);
  const bool from_host = from.tier != Tier::kDevice;
  const bool to_host = to.tier != Tier::kDevice;
  if (from_host && to_host) return host_.copy(lane, from, to);
  if (from.dtype == to.dtype) return kernels().copy(to.data, from.data, to.bytes(), stream);
  if (to_host) return apply_on_host(lane, from, to, &HostDevice::copy);
  if (from_host) return convert_to_device(lane, from, to);
  kernels().convert(from.data, from.dtype, to.data, to.dtype, to.count, stream);
}

void GpuDevice::add(Lane lane, const TypedSpan& from, const TypedSpan& to) {
  const bool from_host = from.tier != Tier::kDevice;
  const bool to_host = to.tier != Tier::kDevice;
  require(to_host || !from_host, "a host-tier span is not added to a device span");
  if (from_host) return host_.add(lane, from, to);
  if (to_host) return apply_on_host(lane, from, to, &HostDevice::add);
  kernels().add_into(to.data, to.dtype, from.data, from.dtype, from.count, gpu_.stream(lane));
}

/// Applies a host function to device memory, piece by piece. While host code processes one piece,
/// the next piece is copied to the host.
void GpuDevice::apply_on_host(Lane lane, const TypedSpan& from, const TypedSpan& to,
                              HostAction action) {
  PinnedRing& ring = *transfer_rings_[static_cast<size_t>(lane)];
  const DeviceStream stream = gpu_.stream(lane);
  const int64_t slot_elements = ring.slot_bytes() / dtype_bytes(from.dtype);
  struct PendingPiece {
    TypedSpan piece;
    int64_t first = 0;
    size_t slot = 0;
  };
  const auto send = [&](int64_t first) {
    const TypedSpan source = from.subspan(first, std::min(slot_elements, from.count - first));
    const TypedSpan piece{ring.acquire(), from.dtype, source.count, Tier::kHost};
    kernels().copy(piece.data, source.data, source.bytes(), stream);
    ring.record_use(stream);
    return PendingPiece{piece, first, ring.slot()};
  };
  if (from.count == 0) return;
  for (PendingPiece now = send(0);;) {
    const int64_t next = now.first + now.piece.count;
    const PendingPiece then = next < from.count ? send(next) : PendingPiece{};
    ring.wait(now.slot);
    (host_.*action)(lane, now.piece, to.subspan(now.first, now.piece.count));
    if (next >= from.count) return;
    now = then;
  }
}

void GpuDevice::convert_to_device(Lane lane, const TypedSpan& from, const TypedSpan& to) {
  PinnedRing& ring = *transfer_rings_[static_cast<size_t>(lane)];
  const DeviceStream stream = gpu_.stream(lane);
  const int64_t slot_elements = ring.slot_bytes() / dtype_bytes(to.dtype);
  for (int64_t first = 0; first < to.count; first += slot_elements) {
    const int64_t count = std::min(slot_elements, to.count - first);
    const TypedSpan piece{ring.acquire(), to.dtype, count, Tier::kHost};
    host_.copy(lane, from.subspan(first, count), piece);
    kernels().copy(to.subspan(first, count).data, piece.data, piece.bytes(), stream);
    ring.record_use(stream);
  }
}

void GpuDevice::sums_of_squares(Lane lane, std::span<const TypedSpan> from,
                                std::span<double* const> to) {
  const DeviceStream stream = gpu_.stream(lane);
  auto* on_host = sum_ring_ ? reinterpret_cast<double*>(sum_ring_->acquire()) : nullptr;
  for (size_t i = 0; i < from.size(); ++i) {
    const TypedSpan& part = from[i];
    if (part.tier == Tier::kDevice) {
      kernels().sum_of_squares(part.data, part.dtype, part.count, false, to[i],
                               norm_scratch_.data(), stream);
      continue;
    }
    *on_host = sum_of_squares(part.data, part.dtype, part.count);
    kernels().copy(to[i], on_host++, sizeof(double), stream);
  }
  if (sum_ring_) sum_ring_->record_use(stream);
}

void GpuDevice::update(Lane lane, const FlatUpdate& update, Tier tier,
                       const OptimizerConfig& optimizer) {
  if (tier != Tier::kDevice) return host_.update(lane, update, tier, optimizer);
  kernels().optimizer_update(update, optimizer, device_scalars_.as<StepScalars>(),
                             gpu_.stream(lane));
}

void GpuDevice::compute_scales(Lane lane, const FlatUpdate& update, Tier tier,
                               const OptimizerConfig& optimizer) {
  if (tier != Tier::kDevice) return host_.compute_scales(lane, update, tier, optimizer);
  kernels().compute_scales(update, optimizer, device_scalars_.as<StepScalars>(), gpu_.stream(lane));
}

std::array<const double*, 2> GpuDevice::read_f64(Lane lane, const TypedSpan& a,
                                                 const TypedSpan& b) {
  require(a.count + b.count <= fetched_doubles_, "there is room for what is fetched");
  kernels().bind_thread();
  const DeviceStream stream = gpu_.stream(lane);
  auto* const numbers = fetched_.as<double>();
  kernels().copy(numbers, a.data, a.bytes(), stream);
  if (b.count > 0) kernels().copy(numbers + a.count, b.data, b.bytes(), stream);
  wait_for(stream);
  return {numbers, numbers + a.count};
}

double GpuDevice::read_double(Lane lane, const void* address) {
  const DeviceStream stream = gpu_.stream(lane);
  kernels().copy(fetched_.data(), address, sizeof(double), stream);
  wait_for(stream);
  return *fetched_.as<double>();
}

std::vector<int64_t> GpuDevice::read_i32(Lane lane, const TypedSpan& numbers) {
  const auto number = static_cast<size_t>(lane);
  require(numbers.count <= max_counts_[number], "there is room for what is counted");
  kernels().bind_thread();
  const DeviceStream stream = gpu_.stream(lane);
  auto* const begin = counts_[number].as<int32_t>();
  kernels().copy(begin, numbers.data, numbers.bytes(), stream);
  wait_for(stream);
  return {begin, begin + numbers.count};
}

/// Copies F64 numbers to the host in parts, and returns whether all are finite: the sum of their
/// squares may overflow.
bool GpuDevice::doubles_are_finite(Lane lane, const TypedSpan& numbers) {
  const DeviceStream stream = gpu_.stream(lane);
  for (int64_t first = 0; first < numbers.count; first += fetched_doubles_) {
    TypedSpan part = numbers.subspan(first, std::min(fetched_doubles_, numbers.count - first));
    kernels().copy(fetched_.data(), part.data, part.bytes(), stream);
    wait_for(stream);
    part.data = fetched_.data();
    if (!host_.is_finite(lane, part)) return false;
  }
  return true;
}

bool GpuDevice::is_finite(Lane lane, const TypedSpan& numbers) {
  if (numbers.tier != Tier::kDevice) {
    wait_for(gpu_.stream(lane));
    return host_.is_finite(lane, numbers);
  }
  if (numbers.dtype == DType::kF64) return doubles_are_finite(lane, numbers);
  for (int64_t first = 0; first < numbers.count; first += summed_elements_) {
    const TypedSpan part =
        numbers.subspan(first, std::min(summed_elements_, numbers.count - first));
    kernels().sum_of_squares(part.data, part.dtype, part.count, false, probe_.as<double>(),
                             norm_scratch_.data(), gpu_.stream(lane));
    if (!std::isfinite(read_double(lane, probe_.data()))) return false;
  }
  return true;
}

std::unique_ptr<LaneDevice> make_lane_device(const Program& program, const RankMemory& memory,
                                             const std::vector<Communicator*>& groups) {
  if (memory.gpu() != nullptr) return std::make_unique<GpuDevice>(program, *memory.gpu(), groups);
  return std::make_unique<HostDevice>();
}

}  // namespace ftrun
