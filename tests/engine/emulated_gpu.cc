#include "emulated_gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "comm/reduce.h"
#include "graph/op.h"
#include "optimizers/optimizer_config.h"

namespace ftrun::testing {
namespace {

constexpr int kPattern = 0xFF;
constexpr size_t kSpoiledBytes = 64;
constexpr int64_t kAlignment = 256;
/// The time after which a peer that does not arrive counts as lost, so that a test ends.
constexpr std::chrono::seconds kPatience{60};

std::byte* mapped(int64_t bytes, int protection, int flags, int file) {
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), protection, flags, file, 0);
  require(data != MAP_FAILED, "the emulator has memory");
  return static_cast<std::byte*>(data);
}

double now_milliseconds() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct EmulatedGpu::Event {
  bool timed = false;
  bool host_waits = false;
  int64_t recorded = 0;
  int64_t reached = 0;
  double time = 0;
};

/// Task is work, or an event to set or to wait for.
struct EmulatedGpu::Task {
  std::function<void()> work;
  std::function<bool()> ready;
  Event* sets = nullptr;
  Event* awaits = nullptr;
  int64_t count = 0;
};

struct EmulatedGpu::Stream {
  std::deque<Task> tasks;
};

/// Graph holds captured work in the order of capture, which keeps each stream's order. It also
/// holds the streams that take part, and the events behind the last work of each.
struct EmulatedGpu::Graph {
  Stream* origin = nullptr;
  std::set<Stream*> streams;
  std::map<Event*, Stream*> marks;
  std::set<Stream*> unjoined;
  struct Work {
    std::function<void()> work;
    /// Returns whether the peers' data that the work needs has arrived.
    std::function<bool()> ready;
  };
  std::vector<Work> work;
};

EmulatedGpu::EmulatedGpu(const EmulatorOptions& options, std::unique_ptr<DeviceKernels> operations)
    : options_(options), operations_(std::move(operations)), random_(options.seed) {
  info_.name = "the emulator";
  info_.bus_id = "none";
  info_.compute_major = 9;
  info_.driver_version = 13000;
  const int file = ::memfd_create("emulated-gpu", MFD_CLOEXEC);
  require(file >= 0 && ::ftruncate(file, options.bytes) == 0, "the emulator has a file");
  real_ = mapped(options.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file);
  shown_ = mapped(options.bytes, PROT_NONE, MAP_SHARED, file);
  ::close(file);
  if (operations_) operations_stream_ = operations_->create_stream(false);
}

EmulatedGpu::~EmulatedGpu() {
  ::munmap(real_, static_cast<size_t>(options_.bytes));
  ::munmap(shown_, static_cast<size_t>(options_.bytes));
  for (const auto& [data, bytes] : pinned_) ::munmap(data, static_cast<size_t>(bytes));
  for (Stream* stream : streams_) delete stream;
  for (Event* event : events_) delete event;
  for (Graph* graph : graphs_) delete graph;
}

EmulatedGpu::Counters EmulatedGpu::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

// Memory.

DeviceMemory EmulatedGpu::memory() const {
  const std::lock_guard lock(mutex_);
  int64_t used = 0;
  for (const auto& [offset, bytes] : used_) used += bytes;
  return {options_.bytes - used, options_.bytes};
}

void* EmulatedGpu::allocate(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t aligned_bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  int64_t at = 0;
  for (const auto& [offset, used_bytes] : used_) {
    if (offset - at >= aligned_bytes) break;
    at = offset + used_bytes;
  }
  if (at + aligned_bytes > options_.bytes)
    throw Error(ExitCode::kEnvironment,
                cat("GPU 0 (the emulator) cannot allocate ", human_bytes(bytes)), "ask for less");
  used_[at] = aligned_bytes;
  ++counters_.created_objects;
  std::memset(real_ + at, kPattern, static_cast<size_t>(aligned_bytes));
  return shown_ + at;
}

void EmulatedGpu::free(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  for (Stream* stream : streams_) run_until_empty(*stream);
  used_.erase(static_cast<std::byte*>(memory) - shown_);
}

void* EmulatedGpu::allocate_pinned(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  int64_t held = bytes;
  for (const auto& [data, size] : pinned_) held += size;
  if (held > options_.max_pinned_bytes)
    throw Error(ExitCode::kEnvironment, cat("cannot pin ", human_bytes(bytes), " of main memory"),
                "raise the limit");
  std::byte* data = mapped(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  std::memset(data, kPattern, static_cast<size_t>(bytes));
  pinned_[data] = bytes;
  ++counters_.created_objects;
  return data;
}

void EmulatedGpu::free_pinned(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  for (Stream* stream : streams_) run_until_empty(*stream);
  const auto found = pinned_.find(static_cast<std::byte*>(memory));
  ::munmap(found->first, static_cast<size_t>(found->second));
  pinned_.erase(found);
}

bool EmulatedGpu::is_device(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return at >= shown_ && at < shown_ + options_.bytes;
}

bool EmulatedGpu::is_pinned(const void* address, int64_t bytes) const {
  auto* at = const_cast<std::byte*>(static_cast<const std::byte*>(address));
  auto after = pinned_.upper_bound(at);
  if (after == pinned_.begin()) return false;
  --after;
  return at + bytes <= after->first + after->second;
}

std::byte* EmulatedGpu::seen_by_device(const void* address) const {
  require(is_device(address), "an operation of the device has device memory");
  return real_ + (static_cast<const std::byte*>(address) - shown_);
}

/// Copies as CUDA does: pinned memory is read or written when the copy is executed, pageable memory
/// during the call, while the host waits.
void EmulatedGpu::copy(void* to, const void* from, int64_t bytes, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  ++counters_.copies;
  const auto place = [&](const void* address) {
    return is_device(address) ? seen_by_device(address)
                              : const_cast<std::byte*>(static_cast<const std::byte*>(address));
  };
  std::byte* const target = place(to);
  const std::byte* const source = place(from);
  enqueue(stream, [=] { std::memmove(target, source, static_cast<size_t>(bytes)); });
  const bool pageable =
      (!is_device(to) && !is_pinned(to, bytes)) || (!is_device(from) && !is_pinned(from, bytes));
  require(!pageable || !is_captured(*reinterpret_cast<Stream*>(stream)),
          "captured copies have pinned memory");
  if (pageable) run_until_empty(*reinterpret_cast<Stream*>(stream));
}

void EmulatedGpu::fill_zero(void* to, int64_t bytes, DeviceStream stream) {
  enqueue(stream, [target = seen_by_device(to), bytes] {
    std::memset(target, 0, static_cast<size_t>(bytes));
  });
}

// Streams and events.

DeviceStream EmulatedGpu::create_stream(bool) {
  const std::lock_guard lock(mutex_);
  ++counters_.created_objects;
  return reinterpret_cast<DeviceStream>(*streams_.insert(new Stream).first);
}

void EmulatedGpu::destroy(DeviceStream stream) noexcept {
  const std::lock_guard lock(mutex_);
  auto* const emulated = reinterpret_cast<Stream*>(stream);
  run_until_empty(*emulated);
  streams_.erase(emulated);
  delete emulated;
}

DeviceEvent EmulatedGpu::create_event(bool timed, bool host_waits) {
  const std::lock_guard lock(mutex_);
  ++counters_.created_objects;
  auto* const event = new Event;
  event->timed = timed;
  event->host_waits = host_waits;
  events_.insert(event);
  return reinterpret_cast<DeviceEvent>(event);
}

void EmulatedGpu::destroy(DeviceEvent event) noexcept {
  const std::lock_guard lock(mutex_);
  auto* const emulated = reinterpret_cast<Event*>(event);
  for (Stream* stream : streams_) run_until_empty(*stream);
  events_.erase(emulated);
  delete emulated;
}

bool EmulatedGpu::is_captured(const Stream& stream) const {
  return captured_ != nullptr && captured_->streams.contains(const_cast<Stream*>(&stream));
}

void EmulatedGpu::enqueue(DeviceStream stream, std::function<void()> work,
                          std::function<bool()> ready) {
  const std::lock_guard lock(mutex_);
  if (auto* const emulated = reinterpret_cast<Stream*>(stream); is_captured(*emulated)) {
    captured_->work.push_back({std::move(work), std::move(ready)});
    if (emulated != captured_->origin) captured_->unjoined.insert(emulated);
    return;
  }
  reinterpret_cast<Stream*>(stream)->tasks.push_back(
      {std::move(work), std::move(ready), nullptr, nullptr, 0});
  run_some();
}

void EmulatedGpu::record(DeviceEvent event, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  auto* const emulated = reinterpret_cast<Event*>(event);
  if (auto* const at = reinterpret_cast<Stream*>(stream); is_captured(*at)) {
    captured_->marks[emulated] = at;
    return;
  }
  reinterpret_cast<Stream*>(stream)->tasks.push_back(
      {nullptr, nullptr, emulated, nullptr, ++emulated->recorded});
}

/// Waits for the last record of the event; returns at once if it was never recorded.
void EmulatedGpu::wait(DeviceStream stream, DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  auto* const emulated = reinterpret_cast<Event*>(event);
  auto* const at = reinterpret_cast<Stream*>(stream);
  if (captured_ != nullptr && captured_->marks.contains(emulated)) {
    captured_->streams.insert(at);
    if (at == captured_->origin) captured_->unjoined.erase(captured_->marks[emulated]);
    return;
  }
  require(!is_captured(*at), "what is captured waits for nothing outside of it");
  if (emulated->recorded > 0)
    reinterpret_cast<Stream*>(stream)->tasks.push_back(
        {nullptr, nullptr, nullptr, emulated, emulated->recorded});
}

bool EmulatedGpu::can_run(const Stream& stream) const {
  if (stream.tasks.empty()) return false;
  const Task& next = stream.tasks.front();
  if (next.ready && !next.ready()) return false;
  return next.awaits == nullptr || next.awaits->reached >= next.count;
}

void EmulatedGpu::step(Stream& stream) {
  const Task task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  if (task.work) task.work();
  if (task.sets == nullptr) return;
  task.sets->reached = std::max(task.sets->reached, task.count);
  task.sets->time = now_milliseconds();
}

/// Returns the stream that has to run next so that `target` advances: `target` itself, or the
/// stream that sets the event `target` waits for, and so on. Returns null if that stream waits for
/// peers.
EmulatedGpu::Stream* EmulatedGpu::next_stream_for(Stream& target) {
  Stream* at = &target;
  for (size_t hops = 0; !can_run(*at); ++hops) {
    require(hops <= streams_.size() && !at->tasks.empty(),
            "streams do not wait for each other in a ring");
    const Task& stands = at->tasks.front();
    if (stands.ready) return nullptr;
    Stream* next = nullptr;
    for (Stream* stream : streams_)
      for (const Task& task : stream->tasks)
        if (task.sets == stands.awaits && task.count >= stands.count) next = stream;
    require(next != nullptr, "an awaited event is recorded in a stream");
    at = next;
  }
  return at;
}

EmulatedGpu::Stream* EmulatedGpu::choose_stream(Stream& target, Order order) {
  if (order == Order::kLazy) return next_stream_for(target);
  std::vector<Stream*> ready;
  for (Stream* stream : streams_)
    if (can_run(*stream) && (order == Order::kRandom || stream != &target)) ready.push_back(stream);
  return ready.empty() ? next_stream_for(target) : ready[random_() % ready.size()];
}

void EmulatedGpu::step_for(Stream& target, Order order) {
  const auto start = std::chrono::steady_clock::now();
  constexpr int kSpins = 20;
  constexpr std::chrono::microseconds kPause{50};
  for (int round = 0;; ++round) {
    if (Stream* next = choose_stream(target, order)) return step(*next);
    require(std::chrono::steady_clock::now() - start < kPatience,
            "all peers reach the collective before the timeout");
    // The lock is released while the host waits for its device, because its other lanes may have to
    // enqueue the work for which peers wait.
    mutex_.unlock();
    for (const auto& come_forward : peers_) come_forward();
    // Many ranks that spin would take the CPU from the one rank that all of them wait for.
    if (round < kSpins)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
    mutex_.lock();
    if (target.tasks.empty()) return;  // other threads have run its work
  }
}

void EmulatedGpu::advance(DeviceStream stream) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  auto* const emulated = reinterpret_cast<Stream*>(stream);
  if (!lock.owns_lock() || emulated->tasks.empty()) return;
  if (Stream* next = next_stream_for(*emulated)) step(*next);
}

void EmulatedGpu::run_until_empty(Stream& stream) {
  const auto order = static_cast<Order>(random_() % 3);
  while (!stream.tasks.empty()) step_for(stream, order);
}

/// Runs some work at random, so that the device sometimes advances although nobody waits for it.
void EmulatedGpu::run_some() {
  if (random_() % 8 != 0) return;
  for (size_t times = random_() % 16; times > 0; --times) {
    std::vector<Stream*> ready;
    for (Stream* stream : streams_)
      if (can_run(*stream)) ready.push_back(stream);
    if (ready.empty()) return;
    step(*ready[random_() % ready.size()]);
  }
}

void EmulatedGpu::synchronize(DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  require(captured_ == nullptr, "nobody waits for the device while it is captured");
  ++counters_.host_waits;
  run_until_empty(*reinterpret_cast<Stream*>(stream));
}

void EmulatedGpu::synchronize(DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  require(captured_ == nullptr, "nobody waits for the device while it is captured");
  auto* const emulated = reinterpret_cast<Event*>(event);
  require(emulated->host_waits, "the host waits for events that were made for it");
  const auto order = static_cast<Order>(random_() % 3);
  while (emulated->reached < emulated->recorded)
    for (Stream* stream : streams_) {
      const bool here = std::any_of(stream->tasks.begin(), stream->tasks.end(),
                                    [&](const Task& task) { return task.sets == emulated; });
      if (!here) continue;
      step_for(*stream, order);
      break;
    }
}

bool EmulatedGpu::is_done(DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  run_some();
  const auto* emulated = reinterpret_cast<Event*>(event);
  return emulated->reached >= emulated->recorded;
}

double EmulatedGpu::milliseconds(DeviceEvent begin, DeviceEvent end) {
  const auto* first = reinterpret_cast<Event*>(begin);
  const auto* last = reinterpret_cast<Event*>(end);
  require(first->timed && last->timed && first->reached > 0 && last->reached > 0,
          "timed marks were reached");
  return last->time - first->time;
}

void EmulatedGpu::push_range(const char* name) {
  const std::lock_guard lock(mutex_);
  ranges_.emplace_back(name);
  ++open_ranges_;
}

void EmulatedGpu::pop_range() {
  const std::lock_guard lock(mutex_);
  require(--open_ranges_ >= 0, "a range that ends has begun");
}

std::vector<std::string> EmulatedGpu::ranges() const {
  const std::lock_guard lock(mutex_);
  require(open_ranges_ == 0, "ranges that have begun have ended");
  return ranges_;
}

void EmulatedGpu::begin_capture(DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  require(captured_ == nullptr, "one capture at a time");
  captured_ = new Graph;
  captured_->origin = reinterpret_cast<Stream*>(stream);
  captured_->streams.insert(captured_->origin);
}

DeviceGraph EmulatedGpu::end_capture(DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  require(captured_ != nullptr && captured_->origin == reinterpret_cast<Stream*>(stream),
          "a capture ends where it began");
  require(captured_->unjoined.empty(), "all streams of a capture have come back to where it began");
  graphs_.insert(captured_);
  return reinterpret_cast<DeviceGraph>(std::exchange(captured_, nullptr));
}

void EmulatedGpu::launch(DeviceGraph graph, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  ++counters_.launches;
  for (const Graph::Work& each : reinterpret_cast<Graph*>(graph)->work)
    enqueue(stream, each.work, each.ready);
}

void EmulatedGpu::destroy(DeviceGraph graph) noexcept {
  const std::lock_guard lock(mutex_);
  for (Stream* stream : streams_) run_until_empty(*stream);
  auto* const emulated = reinterpret_cast<Graph*>(graph);
  graphs_.erase(emulated);
  delete emulated;
}

// Operations.

void EmulatedGpu::run_ops(const LayerGraph& graph, std::span<const Op> ops,
                          std::span<void* const> storage, const KernelContext& context,
                          DeviceStream stream) {
  std::vector<void*> places;
  for (void* address : storage)
    places.push_back(address == nullptr ? nullptr : seen_by_device(address));
  KernelContext device_context = context;
  device_context.scalars = device_view(context.scalars);
  if (operations_)
    return enqueue(stream, [this, &graph, ops, places = std::move(places), device_context] {
      counters_.operations += static_cast<int64_t>(ops.size());
      operations_->run_ops(graph, ops, places, device_context, operations_stream_);
      for (const Op& op : ops)
        if (op.kind == corrupted_)
          std::memset(places[static_cast<size_t>(op.out[0])], 0x46, kSpoiledBytes);
    });
  for (const Op& op : ops)
    enqueue(stream, [this, &graph, &op, places, device_context] {
      ++counters_.operations;
      ftrun::run_op(graph, op, places, device_context);
    });
}

int64_t EmulatedGpu::sum_of_squares_scratch_bytes(int64_t count) const {
  return (count + kGradientNormGroup - 1) / kGradientNormGroup *
         static_cast<int64_t>(sizeof(double));
}

void EmulatedGpu::sum_of_squares(const void* g, DType dtype, int64_t count, bool accumulate,
                                 double* sum, void* scratch, DeviceStream stream) {
  enqueue(stream, [this, from = device_view(g), dtype, count, accumulate, to = device_view(sum),
                   room = device_view(scratch)] {
    // The whole scratch is written, as the blocks of a real device would do.
    std::memset(room, kPattern, static_cast<size_t>(sum_of_squares_scratch_bytes(count)));
    if (operations_)
      return operations_->sum_of_squares(from, dtype, count, accumulate, to, room,
                                         operations_stream_);
    *to = (accumulate ? *to : 0.0) + ftrun::sum_of_squares(from, dtype, count);
  });
}

FlatUpdate EmulatedGpu::device_view(const FlatUpdate& update) const {
  FlatUpdate view = update;
  view.parameters = device_view(update.parameters);
  view.gradients = device_view(update.gradients);
  for (void*& state : view.states) state = device_view(state);
  for (float*& scale : view.scales) scale = device_view(scale);
  for (float*& scale : view.new_scales) scale = device_view(scale);
  view.copy = device_view(update.copy);
  return view;
}

void EmulatedGpu::optimizer_update(const FlatUpdate& update, const OptimizerConfig& config,
                                   const StepScalars* scalars, DeviceStream stream) {
  enqueue(stream, [this, device_update = device_view(update), config, at = device_view(scalars)] {
    if (operations_)
      return operations_->optimizer_update(device_update, config, at, operations_stream_);
    ftrun::optimizer_update(device_update, config, *at);
  });
}

void EmulatedGpu::compute_scales(const FlatUpdate& update, const OptimizerConfig& config,
                                 const StepScalars* scalars, DeviceStream stream) {
  enqueue(stream, [this, device_update = device_view(update), config, at = device_view(scalars)] {
    if (operations_)
      return operations_->compute_scales(device_update, config, at, operations_stream_);
    ftrun::compute_scales(device_update, config, *at);
  });
}

void EmulatedGpu::convert(const void* from, DType from_dtype, void* to, DType to_dtype,
                          int64_t count, DeviceStream stream) {
  enqueue(stream, [this, source = device_view(from), from_dtype, target = device_view(to), to_dtype,
                   count] {
    if (operations_)
      return operations_->convert(source, from_dtype, target, to_dtype, count, operations_stream_);
    ftrun::convert(source, from_dtype, target, to_dtype, count);
  });
}

void EmulatedGpu::add_into(void* to, DType to_dtype, const void* from, DType from_dtype,
                           int64_t count, DeviceStream stream) {
  enqueue(stream, [this, target = device_view(to), to_dtype, source = device_view(from), from_dtype,
                   count] {
    if (operations_)
      return operations_->add_into(target, to_dtype, source, from_dtype, count, operations_stream_);
    ftrun::add_into(target, to_dtype, source, from_dtype, count);
  });
}

void EmulatedGpu::sum_blocks(const void* blocks, int ranks, int64_t stride, DType dtype,
                             int64_t count, void* out, DeviceStream stream) {
  enqueue(stream, [this, from = device_view(blocks), ranks, stride, dtype, count,
                   to = device_view(out)] {
    if (operations_)
      return operations_->sum_blocks(from, ranks, stride, dtype, count, to, operations_stream_);
    std::vector<const void*> inputs;
    for (int rank = 0; rank < ranks; ++rank)
      inputs.push_back(static_cast<const std::byte*>(from) + rank * stride * dtype_bytes(dtype));
    reduce_in_order(dtype, ReduceOp::kSum, inputs.data(), ranks, to, count);
  });
}

void EmulatedGpu::prepare(const LayerGraph& graph) {
  if (operations_) operations_->prepare(graph);
}

// Collectives.

void EmulatedLinks::join(int rank, EmulatedGpu& gpu, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.gpu = &gpu;
  peer.stream = stream;
}

void EmulatedLinks::leave(int rank) {
  std::unique_lock lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.gpu = nullptr;
  idle_.wait(lock, [&] { return peer.advancing == 0; });
}

void EmulatedLinks::add_operand(int rank, int64_t number, const CollectiveRecord& record,
                                OperandParts operand) {
  const std::lock_guard lock(mutex_);
  PendingCollective& pending = pending_[number];
  require(pending.operands.empty() || same_collective(pending.record, record),
          "ranks meet in the same collective");
  pending.record = record;
  pending.operands[rank] = std::move(operand);
}

bool EmulatedLinks::is_complete(int64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(number);
  return found != pending_.end() && found->second.operands.size() == peers_.size();
}

void EmulatedLinks::count_removal(int64_t number) {
  if (++pending_.at(number).removed_results == peers_.size()) pending_.erase(number);
}

void EmulatedLinks::reduce(const PendingCollective& pending, int64_t first,
                           std::vector<std::byte>& result) const {
  const CollectiveRecord& record = pending.record;
  std::vector<const void*> inputs;
  for (const auto& [from, operand] : pending.operands) inputs.push_back(operand[0].data() + first);
  if (sums_ == EmulatedSums::kRankOrder)
    return reduce_in_order(record.dtype, record.op, inputs.data(), static_cast<int>(inputs.size()),
                           result.data(), record.count);
  std::memcpy(result.data(), inputs.back(), result.size());
  for (size_t i = inputs.size() - 1; i-- > 0;) {
    const void* const hop[] = {result.data(), inputs[i]};
    reduce_in_order(record.dtype, record.op, hop, 2, result.data(), record.count);
  }
}

std::vector<std::byte> EmulatedLinks::remove_result(int rank, int64_t number) {
  const std::lock_guard lock(mutex_);
  const PendingCollective& pending = pending_.at(number);
  const CollectiveRecord& record = pending.record;
  std::vector<std::byte> result;
  if (record.kind == CollectiveKind::kAllGather) {
    for (const auto& [from, operand] : pending.operands)
      result.insert(result.end(), operand[0].begin(), operand[0].end());
  } else {
    const int64_t part = record.count * dtype_bytes(record.dtype);
    result.resize(static_cast<size_t>(part));
    reduce(pending, record.kind == CollectiveKind::kReduceScatter ? rank * part : 0, result);
  }
  count_removal(number);
  return result;
}

EmulatedLinks::OperandParts EmulatedLinks::remove_exchange(int rank, int64_t number) {
  const std::lock_guard lock(mutex_);
  OperandParts parts;
  for (const auto& [from, operand] : pending_.at(number).operands)
    parts.push_back(operand[static_cast<size_t>(rank)]);
  count_removal(number);
  return parts;
}

void EmulatedLinks::advance() {
  for (Peer& peer : peers_) {
    std::unique_lock lock(mutex_);
    if (peer.gpu == nullptr) continue;
    EmulatedGpu* const gpu = peer.gpu;
    DeviceStream const stream = peer.stream;
    ++peer.advancing;
    // The lock is released while the device advances, because its work may reach a collective of
    // another group while a thread that advances that group reaches one of this group.
    lock.unlock();
    gpu->advance(stream);
    lock.lock();
    if (--peer.advancing == 0) idle_.notify_all();
  }
}

EmulatedNccl::EmulatedNccl(EmulatedGpu& gpu, EmulatedLinks& links, const Communicator& like,
                           const EmulatedNcclOptions& options)
    : DeviceCommunicator(
          {.name = like.name() + options.suffix,
           .members = like.members(),
           .rank = like.rank(),
           .timeout = options.timeout,
           .board = options.rendezvous == nullptr ? nullptr : &options.rendezvous->board(),
           .sum_blocks = options.sum_blocks}),
      gpu_(gpu),
      links_(links),
      rendezvous_(options.rendezvous) {
  gpu_.add_peer_progress([&links] { links.advance(); });
  start_watchdog();
}

EmulatedNccl::~EmulatedNccl() {
  stop_watchdog();
  links_.leave(rank());
}

void EmulatedNccl::use_stream(void* stream) {
  DeviceCommunicator::use_stream(stream);
  links_.join(rank(), gpu_, caller());
}

EmulatedNccl::Mark& EmulatedNccl::mark(int64_t handle) {
  const std::lock_guard lock(marks_mutex_);
  return marks_[static_cast<size_t>(handle)];
}

int64_t EmulatedNccl::record_begin_event() {
  int64_t handle = 0;
  {
    const std::lock_guard lock(marks_mutex_);
    marks_.emplace_back();
    handle = static_cast<int64_t>(marks_.size()) - 1;
  }
  gpu_.enqueue(caller(), [made = &mark(handle)] { made->begun = true; });
  return handle;
}

void EmulatedNccl::record_end_event(int64_t handle) {
  gpu_.enqueue(caller(), [made = &mark(handle)] { made->ended = true; });
}

/// Returns the condition under which a collective ends: all ranks have arrived, or it was aborted.
/// An aborted collective ends without a result, as NCCL's kernels do.
std::function<bool()> EmulatedNccl::arrival_condition() const {
  return [links = &links_, reached = reached_collectives_, aborted = aborted_] {
    return *aborted || links->is_complete(*reached - 1);
  };
}

void EmulatedNccl::enqueue(const Collective& collective) {
  CollectiveRecord record = collective.record;
  // A captured collective repeats its sequence number each time it is replayed, so the record has
  // none; `reached_collectives_` counts the collectives that the stream has reached.
  record.sequence = 0;
  if (is_point_to_point(record.kind)) return transfer(collective);
  const bool gathers = record.kind == CollectiveKind::kAllGather;
  const bool scatters = record.kind == CollectiveKind::kReduceScatter;
  require(gathers || scatters || record.kind == CollectiveKind::kAllReduce,
          "a collective of a step");
  const auto bytes =
      static_cast<size_t>(record.count * dtype_bytes(record.dtype) * (scatters ? size() : 1));
  const std::byte* in = gpu_.seen_by_device(collective.in);
  std::byte* out = gpu_.seen_by_device(collective.out);
  EmulatedLinks* const links = &links_;
  const int own_rank = rank();
  gpu_.enqueue(caller(), [=, reached = reached_collectives_] {
    links->add_operand(own_rank, (*reached)++, record, {{in, in + bytes}});
  });
  gpu_.enqueue(
      caller(),
      [=, reached = reached_collectives_, aborted = aborted_] {
        if (*aborted) return;
        const std::vector<std::byte> result = links->remove_result(own_rank, *reached - 1);
        std::memcpy(out, result.data(), result.size());
      },
      arrival_condition());
}

/// Transfers on a link of two ranks. A send is complete when it is received, like a send of NCCL
/// that is larger than NCCL's buffers.
void EmulatedNccl::transfer(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  const bool sends = record.kind == CollectiveKind::kSend;
  const int64_t bytes = payload_bytes(record);
  std::vector<PeerExchange> by_rank(static_cast<size_t>(size()));
  PeerExchange& part = by_rank.at(static_cast<size_t>(record.peer));
  if (sends)
    part = {static_cast<const std::byte*>(collective.in), bytes, nullptr, 0};
  else
    part = {nullptr, 0, static_cast<std::byte*>(collective.out), bytes};
  enqueue(std::span<const PeerExchange>(by_rank));
}

void EmulatedNccl::enqueue(std::span<const PeerExchange> by_rank) {
  std::vector<PeerExchange> parts(by_rank.begin(), by_rank.end());
  for (PeerExchange& part : parts) {
    if (part.send_bytes > 0) part.send = gpu_.seen_by_device(part.send);
    if (part.receive_bytes > 0) part.receive = gpu_.seen_by_device(part.receive);
  }
  EmulatedLinks* const links = &links_;
  const int own_rank = rank();
  gpu_.enqueue(caller(), [=, reached = reached_collectives_] {
    EmulatedLinks::OperandParts all;
    for (const PeerExchange& part : parts) all.emplace_back(part.send, part.send + part.send_bytes);
    const int64_t number = (*reached)++;
    links->add_operand(own_rank, number, {.sequence = number}, std::move(all));
  });
  gpu_.enqueue(
      caller(),
      [=, reached = reached_collectives_, aborted = aborted_] {
        if (*aborted) return;
        const EmulatedLinks::OperandParts received = links->remove_exchange(own_rank, *reached - 1);
        for (size_t from = 0; from < received.size(); ++from) {
          require(static_cast<int64_t>(received[from].size()) == parts[from].receive_bytes,
                  "as much comes as is awaited");
          if (!received[from].empty())
            std::memcpy(parts[from].receive, received[from].data(), received[from].size());
        }
      },
      arrival_condition());
}

CommBuffer EmulatedNccl::allocate_memory(int64_t bytes) {
  // This memory is freed with the emulator, which outlives this object: CommBuffer frees by a
  // function that has no access to the emulator.
  return {gpu_.allocate(bytes), bytes, [](void*, int64_t) {}};
}

std::vector<PeerView> EmulatedNccl::view_peers() {
  if (rendezvous_ != nullptr) return rendezvous_->view_members(members(), name());
  std::vector<PeerView> nothing_known(members().size());
  for (size_t i = 0; i < members().size(); ++i) nothing_known[i].global_rank = members()[i];
  return nothing_known;
}

}  // namespace ftrun::testing
