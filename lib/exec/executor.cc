#include "exec/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace ftrun {

Executor::Executor(const Program& program, const ModelDescription& model, const RankMemory& memory,
                   Communicator& data_group)
    : program_(program),
      model_(model),
      memory_(memory),
      group_(data_group),
      lanes_(
          program, [this](const Instr& instr) { run_timed(instr); },
          [this] { group_.abort("a lane of this rank failed"); }) {
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
  seconds_.fill(0);
  lanes_.run_once();
  step.exposed_communication_seconds = lanes_.waited_seconds();
  if (loss_ != nullptr) {
    step.loss_sum = loss_[0];
    step.counted_tokens = loss_[1];
    step.stop_votes = loss_[2];
  }
  step_ = nullptr;
}

void Executor::run_timed(const Instr& instr) {
  const auto start = std::chrono::steady_clock::now();
  run_instr(instr);
  seconds_[static_cast<size_t>(instr.kind)] +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Executor::run_instr(const Instr& instr) {
  if (instr.if_finite && !step_->finite) return;
  switch (instr.kind) {
    case InstrKind::kLoadBatch:
      return load_batch(instr);
    case InstrKind::kBegin:
      return begin(instr);
    case InstrKind::kForward:
      return run_list(instr, model_.graphs[static_cast<size_t>(instr.graph)].forward);
    case InstrKind::kBackward:
      return run_list(instr, model_.graphs[static_cast<size_t>(instr.graph)].backward);
    case InstrKind::kAllReduce:
      return all_reduce(instr);
    case InstrKind::kGradientNorm:
      return gradient_norm(instr);
    case InstrKind::kDecide:
      return decide(instr);
    case InstrKind::kUpdate:
      return update(instr);
  }
}

void Executor::begin(const Instr& instr) {
  auto* loss = address<double>(instr.writes[0]);
  loss[0] = loss[1] = 0;
  loss[2] = step_->stop_votes;
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
}

void Executor::all_reduce(const Instr& instr) {
  const Range& range = instr.writes[0];
  group_
      .all_reduce(address<std::byte>(range), range.bytes / dtype_bytes(instr.dtype), instr.dtype,
                  ReduceOp::kSum, {program_.at(range.buffer).name})
      .wait();
}

void Executor::gradient_norm(const Instr& instr) {
  double sum = 0;
  for (const Range& range : instr.reads)
    sum += sum_of_squares(address<float>(range), range.bytes / static_cast<int64_t>(sizeof(float)));
  *address<double>(instr.writes[0]) = sum;
}

/// Every rank holds the same reduced gradients and loss here, so every rank decides the same.
void Executor::decide(const Instr& instr) {
  step_->gradient_norm = std::sqrt(*address<double>(instr.reads[0]));
  const double* loss = address<double>(instr.reads[1]);
  step_->finite = std::isfinite(step_->gradient_norm) && std::isfinite(loss[0]);
  step_->scalars.gradient_scale = 1.0F;
  if (step_->clip_norm > 0)
    step_->scalars.gradient_scale =
        static_cast<float>(std::min(1.0, step_->clip_norm / (step_->gradient_norm + 1e-6)));
}

void Executor::update(const Instr& instr) {
  const auto* g = address<float>(instr.reads[0]);
  auto* p = address<float>(instr.writes[0]);
  const int64_t count = instr.writes[0].bytes / static_cast<int64_t>(sizeof(float));
  if (const auto* adam = std::get_if<AdamOptions>(&step_->optimizer)) {
    AdamOptions options = *adam;
    if (!instr.decay) options.weight_decay = 0;
    adam_update(p, g, address<float>(instr.writes[1]), address<float>(instr.writes[2]), count,
                options, step_->scalars);
    return;
  }
  SgdOptions options = std::get<SgdOptions>(step_->optimizer);
  if (!instr.decay) options.weight_decay = 0;
  sgd_update(p, g, instr.writes.size() > 1 ? address<float>(instr.writes[1]) : nullptr, count,
             options, step_->scalars);
}

}  // namespace ftrun
