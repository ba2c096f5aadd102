#include "engine/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "optimizers/code_map.h"
#include "program/layer_instr.h"

namespace ftrun {

static_assert(kGradientNormBlock == kTensorBlock,
              "the norm adds up each block of a tensor by itself");
static_assert(kCodeBlock == kTensorBlock, "no shard cuts a block of codes");

namespace {

std::vector<Communicator*> communicators_of(const Program& program,
                                            const RankCommunicators& communicators) {
  std::vector<Communicator*> found;
  for (const ProgramGroup& group : program.groups) {
    found.push_back(communicators.find_communicator(group));
    require(found.back() != nullptr, "each group of a program has a communicator");
  }
  return found;
}

/// Returns how the progress board shows each instruction while it runs: as work of this rank alone,
/// or as communication. A decision on an asynchronous device counts as communication, because it
/// waits for all work of the device, including collectives.
std::vector<Activity> activities_of(const Program& program, bool asynchronous) {
  std::vector<Activity> all;
  for (const Instr& instr : program.instrs) {
    const bool runs_alone =
        !is_communication(instr.lane) && !(asynchronous && instr.kind == InstrKind::kDecide);
    all.push_back(make_activity(runs_alone ? ActivityKind::kOwnWork : ActivityKind::kCommunication,
                                instr_label(instr)));
  }
  return all;
}

}  // namespace

Executor::Executor(const Program& program, const ModelDescription& model, const RankMemory& memory,
                   const RankCommunicators& communicators)
    : program_(program),
      model_(model),
      memory_(memory),
      board_(communicators.board),
      device_(make_lane_device(program, memory, communicators_of(program, communicators))),
      activities_(board_ == nullptr ? std::vector<Activity>()
                                    : activities_of(program, device_->is_asynchronous())),
      communication_(program, memory, *device_, communicators_of(program, communicators)),
      seconds_(static_cast<size_t>(lane_count(program))),
      disk_(program, memory),
      phases_(program),
      lanes_(
          program, [this](const Instr& instr) { time_instr(instr); },
          [all = communicators.distinct_communicators()] {
            for (Communicator* communicator : all)
              communicator->abort("a lane of this rank failed");
          },
          device_->is_asynchronous()) {
  for (const Instr& instr : program.instrs) {
    if (instr.kind == InstrKind::kBegin) loss_ = span_of(instr.writes[0]);
    if (instr.kind == InstrKind::kGradientNorm) plan_gradient_norm(instr);
    if (instr.kind == InstrKind::kDecide) decides_ = true;
    if (!instr.runs_ops()) continue;
    std::vector<void*> storage(model.graphs[static_cast<size_t>(instr.ops().graph)].values.size(),
                               nullptr);
    for (const Binding& binding : instr.ops().bindings)
      storage[static_cast<size_t>(binding.value)] = memory.at(program, binding.range);
    storage_[&instr] = std::move(storage);
  }
}

/// RunScope sets what the lanes of a run use, and resets it when the run has ended, also by an
/// error.
class Executor::RunScope {
 public:
  RunScope(Executor& executor, StepRun& step, NonfiniteProbe* probe) : executor_(executor) {
    executor_.step_ = &step;
    executor_.probe_ = probe;
  }
  ~RunScope() {
    executor_.step_ = nullptr;
    executor_.probe_ = nullptr;
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  Executor& executor_;
};

void Executor::plan_gradient_norm(const Instr& instr) {
  require(gradient_norm_parts_.empty(), "a step has one gradient norm");
  for (const BufferRange& part : instr.reads) gradient_norm_parts_.push_back(span_of(part));
  for (const BufferRange& sum : instr.writes) gradient_norm_sums_.push_back(address<double>(sum));
}

void Executor::run(StepRun& step) {
  run_step(step, nullptr);
}

NonfiniteLocation Executor::find_nonfinite(StepRun& step) {
  NonfiniteProbe probe(program_, model_, memory_, *device_);
  run_step(step, &probe);
  return probe.location();
}

void Executor::run_step(StepRun& step, NonfiniteProbe* probe) {
  require(decides_ && step.policy, "a training step is run with a decision");
  run_program(step, probe);
  step.result.flags_of_all_ranks = flags_of_all_ranks();
  step.result.loss_sum = loss_sum_at(TrainingSum::kLoss);
  step.result.counted_tokens = loss_sum_at(TrainingSum::kCountedTokens);
}

void Executor::run_forward(ForwardRun& forward) {
  require(!decides_, "a program that updates is run as a training step");
  StepRun step;
  step.micro_batches = forward.micro_batches;
  step.flags = forward.flags;
  run_program(step, nullptr);
  forward.result = {};
  if (!loss_slots_) return;
  forward.result.flags_of_all_ranks = flags_of_all_ranks();
  forward.result.loss_sum = loss_sum_at(EvaluationSum::kLoss);
  forward.result.correct_tokens = loss_sum_at(EvaluationSum::kCorrectTokens);
}

void Executor::run_program(StepRun& step, NonfiniteProbe* probe) {
  const RunScope scope(*this, step, probe);
  step.result = {};
  loss_slots_.reset();
  for (auto& lane : seconds_) lane.fill(0);
  disk_.drop();
  phases_.begin_run();
  const bool traced = step.traced && probe == nullptr;
  lanes_trace_ = traced && !device_->is_asynchronous();
  if (traced) begin_trace();
  device_->begin_run(step.scalars, traced);
  if (traced) trace_.begin = std::chrono::steady_clock::now();
  // The first run is not captured, because libraries initialize themselves in it. A traced run is
  // not replayed, because a captured graph does not measure the times of instructions.
  const bool is_first = !std::exchange(has_run_, true);
  if (device_->can_capture() && !is_first && probe == nullptr && !traced)
    run_captured(step);
  else
    lanes_.run_once();
  times_ = device_->wait_for_times();
  if (traced) end_trace();
  if (times_)
    step.result.exposed_communication_seconds = times_->exposed_communication_seconds;
  else if (!device_->is_asynchronous())
    step.result.exposed_communication_seconds = lanes_.exposed_communication_seconds();
  if (loss_ && !loss_slots_) {
    device_->drain();
    copy_loss_slots(device_->read_f64(Lane::kCompute, *loss_, {})[0]);
  }
}

/// Prepares the intervals that a traced run records; only the first traced run allocates them.
/// Waits for the device's earlier work, so that the device begins the run at the same time as the
/// lanes.
void Executor::begin_trace() {
  device_->drain();
  trace_.instrs.assign(program_.instrs.size(), {});
}

void Executor::end_trace() {
  if (device_->is_asynchronous()) trace_.instrs = device_->wait_for_intervals();
  for (size_t i = 0; i < trace_.instrs.size(); ++i)
    if (program_.instrs[i].if_finite && !runs_updates()) trace_.instrs[i] = {};
}

/// Captures the program on one thread, in program order, as two graphs: the part before the
/// decision, and the part after it.
void Executor::capture() {
  device_->drop_captures();
  device_->begin_capture(0);
  for (size_t i = 0; i < program_.instrs.size(); ++i) {
    const Instr& instr = program_.instrs[i];
    if (instr.kind != InstrKind::kDecide) {
      time_instr(instr);
      continue;
    }
    device_->end_capture();
    device_->begin_capture(static_cast<InstrId>(i) + 1);
  }
  device_->end_capture();
  captured_ = captured_constants(*step_);
}

Executor::CapturedConstants Executor::captured_constants(const StepRun& step) {
  CapturedConstants inputs{step.optimizer, {}};
  for (const MicroBatch& batch : step.micro_batches)
    inputs.first_tokens.push_back(batch.first_token);
  return inputs;
}

void Executor::drop_captures() {
  device_->drop_captures();
  captured_.reset();
}

void Executor::run_captured(const StepRun& step) {
  if (captured_ != captured_constants(step)) capture();
  device_->stage_inputs();
  const Instr* decision = nullptr;
  for (const Instr& instr : program_.instrs) {
    if (instr.kind == InstrKind::kLoadBatch || instr.kind == InstrKind::kBegin) run_instr(instr);
    if (instr.kind == InstrKind::kDecide) decision = &instr;
  }
  device_->replay(0);
  if (decision == nullptr) return;
  decide(*decision);
  if (runs_updates()) device_->replay(1);
}

/// Copies the sums of losses, tokens and flags. No later instruction may change them.
void Executor::copy_loss_slots(const double* loss) {
  loss_slots_.emplace();
  std::copy_n(loss, kLossSlots, loss_slots_->begin());
}

RankFlags Executor::flags_of_all_ranks() const {
  RankFlags all;
  std::copy_n(loss_slots_->begin() + kLossSums, kRankFlags, all.counts().begin());
  return all;
}

std::array<double, kInstrKinds> Executor::seconds_by_kind() const {
  if (times_) return times_->seconds_by_kind;
  std::array<double, kInstrKinds> sum{};
  for (const auto& lane : seconds_)
    for (size_t kind = 0; kind < kInstrKinds; ++kind) sum[kind] += lane[kind];
  return sum;
}

/// Runs an instruction, measures its time, and shows it on the board for ranks that wait for this
/// one. The board does not show the wait for the device, because the device may be in a collective.
void Executor::time_instr(const Instr& instr) {
  const auto start = std::chrono::steady_clock::now();
  const auto lane = static_cast<int>(instr.lane);
  device_->begin_instr(instr);
  if (board_ != nullptr)
    board_->enter_lane(lane, activities_[static_cast<size_t>(&instr - program_.instrs.data())]);
  if (!instr.if_finite || runs_updates()) run_instr(instr);
  device_->end_instr(instr);
  if (board_ != nullptr) board_->leave_lane(lane);
  const double seconds = seconds_since(start);
  seconds_[static_cast<size_t>(instr.lane)][static_cast<size_t>(instr.kind)] += seconds;
  if (lanes_trace_) [[unlikely]] {
    const double begin = std::chrono::duration<double>(start - trace_.begin).count();
    trace_.instrs[static_cast<size_t>(&instr - program_.instrs.data())] = {begin, begin + seconds};
  }
  if (instr.lane == Lane::kCompute) phases_.record_instr(instr, lanes_.compute_waits(), seconds);
}

void Executor::run_instr(const Instr& instr) {
  switch (instr.kind) {
    case InstrKind::kLoadBatch:
      return load_batch(instr);
    case InstrKind::kClear:
      return clear(instr);
    case InstrKind::kBegin:
      return run_begin(instr);
    case InstrKind::kForward:
    case InstrKind::kBackward:
    case InstrKind::kInputGrad:
    case InstrKind::kWeightGrad:
      return run_ops(instr);
    case InstrKind::kAllReduce:
    case InstrKind::kReduceScatter:
    case InstrKind::kAllGather:
    case InstrKind::kAllToAll:
    case InstrKind::kCountedAllToAll:
    case InstrKind::kShift:
      return communication_.run_collective(instr);
    case InstrKind::kSend:
    case InstrKind::kReceive:
      return communication_.run_transfer(instr);
    case InstrKind::kCopy:
      return copy(instr);
    case InstrKind::kAccumulate:
      return accumulate(instr);
    case InstrKind::kGradientNorm:
      return run_gradient_norm(instr);
    case InstrKind::kDecide:
      return decide(instr);
    case InstrKind::kComputeScales:
      return compute_scales(instr);
    case InstrKind::kUpdate:
      return update(instr);
  }
}

void Executor::clear(const Instr& instr) {
  for (const BufferRange& range : instr.writes) device_->clear(instr.lane, span_of(range));
}

void Executor::run_begin(const Instr& instr) {
  clear(instr);
  device_->write_f64(instr.lane, address<double>(instr.writes[0]) + kLossSums,
                     step_->flags.counts());
}

void Executor::load_batch(const Instr& instr) {
  const MicroBatch& batch = step_->micro_batches[static_cast<size_t>(instr.micro_batch)];
  const std::vector<int32_t>* parts[] = {
#define FTRUN_BATCH_PORT(kind, name, value_kind) &batch.name,
#include "graph/ports.inc"
  };
  static_assert(std::size(parts) == kBatchLists, "a batch has a list for each of its ports");
  std::array<const void*, std::size(parts)> from;
  std::array<TypedSpan, std::size(parts)> to;
  for (size_t i = 0; i < std::size(parts); ++i) {
    const BufferRange& range = instr.writes[i];
    const auto bytes = static_cast<int64_t>(parts[i]->size() * sizeof(int32_t));
    if (bytes != range.bytes)
      bug(cat("a batch part has ", bytes, " bytes, its buffer ", range.bytes));
    from[i] = parts[i]->data();
    to[i] = span_of(range);
  }
  device_->load(instr.lane, from, to);
}

void Executor::run_ops(const Instr& instr) {
  const LayerGraph& graph = model_.graphs[static_cast<size_t>(instr.ops().graph)];
  const std::vector<void*>& storage = storage_.at(&instr);
  const MicroBatch& batch = step_->micro_batches[static_cast<size_t>(instr.micro_batch)];
  device_->run_ops(graph, ops_of(graph, instr), storage,
                   {.accumulate = instr.ops().accumulate,
                    .layer = instr.layer,
                    .first_token = batch.first_token});
  if (probe_ != nullptr) probe_->check(instr);
}

void Executor::copy(const Instr& instr) {
  if (instr.lane == Lane::kDisk)
    return disk_.copy(instr, [this](InstrId next) { return may_start_disk(next); });
  device_->copy(instr.lane, span_of(instr.reads[0]), span_of(instr.writes[0]));
}

/// Returns whether a disk request may start: everything that it waits for is done, and the step's
/// decision does not leave it out. The decision is known by then, because the program checker has
/// proved that the request waits for it, either itself or through an earlier instruction of the
/// lane.
bool Executor::may_start_disk(InstrId id) {
  const Instr& instr = program_.instr(id);
  return lanes_.is_ready(id) && device_->waits_have_ended(instr) &&
         (!instr.if_finite || runs_updates());
}

void Executor::accumulate(const Instr& instr) {
  device_->add(instr.lane, span_of(instr.reads[0]), span_of(instr.writes[0]));
}

void Executor::run_gradient_norm(const Instr& instr) {
  device_->sums_of_squares(instr.lane, gradient_norm_parts_, gradient_norm_sums_);
}

/// Makes the step's decision. Every rank holds the same sums and loss here.
void Executor::decide(const Instr& instr) {
  const auto [sums, loss] =
      device_->read_f64(instr.lane, span_of(instr.reads[0]), span_of(instr.reads[1]));
  double sum = 0;
  for (int64_t i = 0; i < element_count(program_, instr.reads[0]); ++i) sum += sums[i];
  copy_loss_slots(loss);
  const StepDecision decision = step_->policy(
      {loss_sum_at(TrainingSum::kLoss), loss_sum_at(TrainingSum::kCountedTokens), std::sqrt(sum)});
  step_->result.finite = decision.finite;
  step_->result.gradient_norm = decision.gradient_norm;
  step_->scalars.update_gradient_factor = decision.update_gradient_factor;
  device_->refresh_scalars(instr.lane);
}

FlatUpdate Executor::flat_update(const Instr& instr, const UpdateOperands& operands) const {
  const UpdateDetail& update = instr.update();
  FlatUpdate flat;
  flat.parameters = address<std::byte>(operands.weights);
  flat.parameter_dtype = dtype(operands.weights);
  flat.gradients = address<std::byte>(operands.gradient);
  flat.gradient_dtype = dtype(operands.gradient);
  require(operands.states.size() <= flat.states.size(), "an update has room for its states");
  for (size_t s = 0; s < operands.states.size(); ++s) {
    flat.states[s] = address<std::byte>(operands.states[s]);
    flat.state_dtype = dtype(operands.states[s]);
  }
  for (size_t s = 0; s < operands.scales.size(); ++s)
    flat.scales[s] = address<float>(operands.scales[s]);
  for (size_t s = 0; s < operands.new_scales.size(); ++s)
    flat.new_scales[s] = address<float>(operands.new_scales[s]);
  if (update.blocks) flat.blocks = *update.blocks;
  flat.count = element_count(program_, operands.weights);
  flat.first_element = update.first_element;
  if (operands.working_copy && dtype(*operands.working_copy) != DType::kF32) {
    flat.copy = address<std::byte>(*operands.working_copy);
    flat.copy_dtype = dtype(*operands.working_copy);
  }
  return flat;
}

UpdateOperands Executor::operands_of(const Instr& instr) const {
  std::optional<UpdateOperands> operands = decode_update_operands(program_, instr);
  require(operands.has_value(), "an update has its ranges");
  return *operands;
}

/// Computes the new scales of optimizer states that are stored as codes. Unlike update(), it
/// ignores the instruction's `decay`, because weight decay does not change such a state.
void Executor::compute_scales(const Instr& instr) {
  device_->compute_scales(instr.lane, flat_update(instr, operands_of(instr)),
                          program_.at(instr.writes[0].buffer).tier, step_->optimizer);
}

void Executor::update(const Instr& instr) {
  const UpdateOperands operands = operands_of(instr);
  const FlatUpdate flat = flat_update(instr, operands);
  OptimizerConfig optimizer = step_->optimizer;
  if (!instr.update().decay) optimizer.weight_decay = 0;
  device_->update(instr.lane, flat, program_.at(operands.weights.buffer).tier, optimizer);
  // The optimizer kernel writes no fp32 copies, so an fp32 copy of the weights is made here.
  if (operands.working_copy && flat.copy == nullptr)
    device_->copy(instr.lane, span_of(operands.weights), span_of(*operands.working_copy));
}

}  // namespace ftrun
