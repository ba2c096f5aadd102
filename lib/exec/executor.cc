#include "exec/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace ftrun {

Executor::Executor(const Program& program, const ModelDescription& model, const RankMemory& memory,
                   const RankGroups& groups)
    : program_(program),
      model_(model),
      memory_(memory),
      groups_(groups),
      lanes_(
          program, [this](const Instr& instr) { run_timed(instr); },
          [this] {
            for (Communicator* group : groups_.distinct()) group->abort("a lane of this rank failed");
          }) {
  plan_disk();
  for (const Instr& instr : program.instrs) {
    if (instr.kind == InstrKind::kBegin) loss_ = address<double>(instr.writes[0]);
    if (instr.graph < 0) continue;
    std::vector<void*> storage(model.graphs[static_cast<size_t>(instr.graph)].values.size(),
                               nullptr);
    for (const Binding& binding : instr.bindings)
      storage[static_cast<size_t>(binding.value)] = memory.at(program, binding.range);
    storage_[&instr] = std::move(storage);
  }
}

void Executor::run(StepRun& step) {
  step_ = &step;
  step.finite = true;
  for (auto& lane : seconds_) lane.fill(0);
  drop_disk_requests();
  lanes_.run_once();
  step.exposed_communication_seconds = lanes_.waited_seconds();
  if (loss_ != nullptr) {
    step.loss_sum = loss_[0];
    step.counted_tokens = loss_[1];
    step.stop_votes = loss_[2];
  }
  step_ = nullptr;
}

std::string Executor::find_nonfinite(StepRun& step) {
  looks_for_nonfinite_ = true;
  nonfinite_.clear();
  run(step);
  looks_for_nonfinite_ = false;
  return nonfinite_;
}

std::array<double, kInstrKinds> Executor::seconds() const {
  std::array<double, kInstrKinds> sum{};
  for (const auto& lane : seconds_)
    for (size_t kind = 0; kind < kInstrKinds; ++kind) sum[kind] += lane[kind];
  return sum;
}

void Executor::run_timed(const Instr& instr) {
  const auto start = std::chrono::steady_clock::now();
  run_instr(instr);
  seconds_[static_cast<size_t>(instr.lane)][static_cast<size_t>(instr.kind)] +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Executor::run_instr(const Instr& instr) {
  if (instr.if_finite && !step_->finite) return;
  switch (instr.kind) {
    case InstrKind::kLoadBatch:
      return load_batch(instr);
    case InstrKind::kClear:
      return clear(instr);
    case InstrKind::kBegin:
      return begin(instr);
    case InstrKind::kForward:
      return run_list(instr, model_.graphs[static_cast<size_t>(instr.graph)].forward);
    case InstrKind::kBackward:
      return run_list(instr, model_.graphs[static_cast<size_t>(instr.graph)].backward);
    case InstrKind::kAllReduce:
    case InstrKind::kReduceScatter:
    case InstrKind::kAllGather:
      return run_collective(instr);
    case InstrKind::kCopy:
      return copy(instr);
    case InstrKind::kAccumulate:
      return accumulate(instr);
    case InstrKind::kGradientNorm:
      return gradient_norm(instr);
    case InstrKind::kDecide:
      return decide(instr);
    case InstrKind::kUpdate:
      return update(instr);
  }
}

void Executor::clear(const Instr& instr) {
  for (const Range& range : instr.writes)
    std::memset(address<std::byte>(range), 0, static_cast<size_t>(range.bytes));
}

void Executor::begin(const Instr& instr) {
  clear(instr);
  address<double>(instr.writes[0])[2] = step_->stop_votes;
}

void Executor::load_batch(const Instr& instr) {
  const Batch& batch = step_->micro_batches[static_cast<size_t>(instr.micro_batch)];
  const std::vector<int32_t>* parts[] = {&batch.tokens, &batch.positions, &batch.starts,
                                         &batch.labels};
  for (size_t i = 0; i < std::size(parts); ++i) {
    const Range& to = instr.writes[i];
    const auto bytes = static_cast<int64_t>(parts[i]->size() * sizeof(int32_t));
    if (bytes != to.bytes) bug(cat("a batch part has ", bytes, " bytes, its buffer ", to.bytes));
    std::memcpy(address<std::byte>(to), parts[i]->data(), static_cast<size_t>(bytes));
  }
}

void Executor::run_list(const Instr& instr, const std::vector<Op>& list) {
  const LayerGraph& graph = model_.graphs[static_cast<size_t>(instr.graph)];
  const std::vector<void*>& storage = storage_.at(&instr);
  const KernelContext context{instr.accumulate, &step_->scalars};
  for (const Op& op : list) run_op(graph, op, storage, context);
  if (looks_for_nonfinite_) note_nonfinite(instr);
}

/// Values that leave the list, in the order of their ids.
void Executor::note_nonfinite(const Instr& instr) {
  if (!nonfinite_.empty()) return;
  const LayerGraph& graph = model_.graphs[static_cast<size_t>(instr.graph)];
  for (const Binding& binding : instr.bindings) {
    const Value& value = graph.at(binding.value);
    const bool leaves = instr.kind == InstrKind::kForward
                            ? value.role == ValueRole::kOutput
                            : value.role == ValueRole::kInputGrad || value.role == ValueRole::kParamGrad;
    const bool number = value.dtype == DType::kF32 || value.dtype == DType::kBF16 || value.dtype == DType::kF16;
    bool finite = true;
    if (leaves && value.dtype == DType::kF64) finite = std::isfinite(*address<double>(binding.range));
    if (leaves && number)
      finite = std::isfinite(sum_of_squares(address<std::byte>(binding.range), value.dtype,
                                            binding.range.bytes / dtype_bytes(value.dtype)));
    if (finite) continue;
    nonfinite_ = cat(instr_label(instr), " (", model_.layers[static_cast<size_t>(instr.layer)].name,
                     "): ", value.name, nonfinite_weights(instr));
    return;
  }
}

/// "; the weight model.norm.weight is not finite", "" when all that the list reads are.
std::string Executor::nonfinite_weights(const Instr& instr) const {
  std::string found;
  for (const GraphParam& param : model_.layers[static_cast<size_t>(instr.layer)].params)
    for (const Binding& binding : instr.bindings) {
      if (binding.value != param.value) continue;
      const std::byte* at = address<std::byte>(binding.range);
      const DType type = dtype(binding.range);
      for (const TensorId id : param.tensors) {
        const TensorInfo& tensor = model_.tensor(id);
        if (!std::isfinite(sum_of_squares(at, type, tensor.numel())))
          found += cat("; the weight ", tensor.name, " is not finite");
        at += tensor.numel() * dtype_bytes(type);
      }
    }
  return found;
}

/// One call for each pair of ranges, all announced before the first is waited for.
void Executor::run_collective(const Instr& instr) {
  Communicator& group = groups_.of(instr.group);
  const int64_t size = dtype_bytes(instr.dtype);
  Work last;
  for (size_t i = 0; i < instr.writes.size(); ++i) {
    auto* in = address<std::byte>(instr.reads[i]);
    auto* out = address<std::byte>(instr.writes[i]);
    const CallSite site{program_.at(instr.writes[i].buffer).name};
    if (instr.kind == InstrKind::kAllReduce)
      last = group.all_reduce(out, instr.writes[i].bytes / size, instr.dtype, ReduceOp::kSum, site);
    else if (instr.kind == InstrKind::kReduceScatter)
      last = group.reduce_scatter(in, out, instr.writes[i].bytes / size, instr.dtype, ReduceOp::kSum, site);
    else
      last = group.all_gather(in, out, instr.reads[i].bytes / size, instr.dtype, site);
  }
  last.wait();
}

void Executor::copy(const Instr& instr) {
  const Range& from = instr.reads[0];
  const Range& to = instr.writes[0];
  if (instr.lane == Lane::kDisk) return copy_disk(instr);
  if (dtype(from) == dtype(to)) {
    std::memcpy(address<std::byte>(to), address<std::byte>(from), static_cast<size_t>(to.bytes));
    return;
  }
  convert(address<std::byte>(from), dtype(from), address<std::byte>(to), dtype(to),
          element_count(program_, to));
}

/// What the lane does next may be started with this one, as soon as what it waits for is done, if
/// the two do not touch the same bytes: the disk then always has something to do.
void Executor::plan_disk() {
  disk_next_.assign(program_.instrs.size(), -1);
  disk_tickets_.assign(program_.instrs.size(), std::nullopt);
  InstrId last = -1;
  const auto meet = [](const std::vector<Range>& a, const std::vector<Range>& b) {
    return overlaps(a[0], b[0]);
  };
  for (size_t i = 0; i < program_.instrs.size(); ++i) {
    const Instr& instr = program_.instrs[i];
    if (instr.lane != Lane::kDisk) continue;
    if (last >= 0) {
      const Instr& before = program_.instr(last);
      const bool apart = !meet(before.writes, instr.reads) && !meet(before.reads, instr.writes) &&
                         !meet(before.writes, instr.writes);
      if (apart) disk_next_[static_cast<size_t>(last)] = static_cast<InstrId>(i);
    }
    last = static_cast<InstrId>(i);
  }
}

void Executor::start_disk(size_t at) {
  if (disk_tickets_[at]) return;
  const Instr& instr = program_.instrs[at];
  const bool write = memory_.on_disk(program_, instr.writes[0]);
  const Range& disk = write ? instr.writes[0] : instr.reads[0];
  const Range& memory = write ? instr.reads[0] : instr.writes[0];
  disk_tickets_[at] = memory_.start_disk(program_, disk, address<std::byte>(memory), write);
}

/// Whether the step's decision lets it run is known when what it waits for is done: the checker has
/// proved that it waits for the decision, and what the lane knew before it is done already.
bool Executor::may_start_disk(InstrId id) {
  return lanes_.ready(id) && (!program_.instr(id).if_finite || step_->finite);
}

/// All that stands before it on the lane is over, so no more than two are under way.
void Executor::copy_disk(const Instr& instr) {
  const auto at = static_cast<size_t>(&instr - program_.instrs.data());
  start_disk(at);
  const InstrId next = disk_next_[at];
  if (next >= 0 && may_start_disk(next)) start_disk(static_cast<size_t>(next));
  const SwapFile::Ticket ticket = *disk_tickets_[at];
  disk_tickets_[at].reset();
  memory_.swap()->wait(ticket);
}

/// What a step that failed had started and not waited for: it would pass for the next step's.
void Executor::drop_disk_requests() {
  for (std::optional<SwapFile::Ticket>& ticket : disk_tickets_) {
    if (!ticket) continue;
    try {
      memory_.swap()->wait(*ticket);
    } catch (const Error&) {
      // The step has failed already.
    }
    ticket.reset();
  }
}

void Executor::accumulate(const Instr& instr) {
  add_into(address<std::byte>(instr.writes[0]), dtype(instr.writes[0]),
           address<std::byte>(instr.reads[0]), dtype(instr.reads[0]),
           element_count(program_, instr.reads[0]));
}

void Executor::gradient_norm(const Instr& instr) {
  for (size_t i = 0; i < instr.reads.size(); ++i)
    *address<double>(instr.writes[i]) =
        sum_of_squares(address<std::byte>(instr.reads[i]), dtype(instr.reads[i]),
                       element_count(program_, instr.reads[i]));
}

/// Every rank holds the same sums and loss here, so every rank decides the same.
void Executor::decide(const Instr& instr) {
  const auto* sums = address<double>(instr.reads[0]);
  double sum = 0;
  for (int64_t i = 0; i < element_count(program_, instr.reads[0]); ++i) sum += sums[i];
  const double* loss = address<double>(instr.reads[1]);
  step_->finite = std::isfinite(sum) && std::isfinite(loss[0]);
  step_->gradient_norm = std::sqrt(sum) / step_->gradient_multiple;
  double scale = 1;
  if (step_->clip_norm > 0) scale = std::min(1.0, step_->clip_norm / (step_->gradient_norm + 1e-6));
  step_->scalars.gradient_scale = static_cast<float>(scale / step_->gradient_multiple);
}

FlatUpdate Executor::flat_update(const Instr& instr) const {
  FlatUpdate flat;
  flat.parameters = address<std::byte>(instr.writes[0]);
  flat.parameter_dtype = dtype(instr.writes[0]);
  flat.gradients = address<std::byte>(instr.reads[0]);
  flat.gradient_dtype = dtype(instr.reads[0]);
  const size_t states = instr.writes.size() - 1 - (instr.writes_copy ? 1 : 0);
  if (states > 0) {
    flat.state1 = address<std::byte>(instr.writes[1]);
    flat.state_dtype = dtype(instr.writes[1]);
  }
  if (states > 1) flat.state2 = address<std::byte>(instr.writes[2]);
  flat.count = element_count(program_, instr.writes[0]);
  flat.first_index = instr.first_element;
  if (instr.writes_copy && dtype(instr.writes.back()) != DType::kF32) {
    flat.copy = address<std::byte>(instr.writes.back());
    flat.copy_dtype = dtype(instr.writes.back());
  }
  return flat;
}

void Executor::update(const Instr& instr) {
  const FlatUpdate flat = flat_update(instr);
  if (const auto* adam = std::get_if<AdamOptions>(&step_->optimizer)) {
    AdamOptions options = *adam;
    if (!instr.decay) options.weight_decay = 0;
    adam_update(flat, options, step_->scalars);
  } else {
    SgdOptions options = std::get<SgdOptions>(step_->optimizer);
    if (!instr.decay) options.weight_decay = 0;
    sgd_update(flat, options, step_->scalars);
  }
  // An fp32 copy of fp32 weights: not the optimizer kernel's business.
  if (instr.writes_copy && flat.copy == nullptr)
    convert(flat.parameters, flat.parameter_dtype, address<std::byte>(instr.writes.back()),
            dtype(instr.writes.back()), flat.count);
}

}  // namespace ftrun
