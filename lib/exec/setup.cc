#include "exec/setup.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {
namespace {

/// Longest row that a sample of generated text is computed with.
constexpr int64_t kGenerationTokens = 128;

}  // namespace

TrainingSetup::TrainingSetup(const Config& config, Communicator& data_group)
    : group_(data_group),
      folder_(config.model.path),
      model_config_(parse_model_config(folder_.config_json(), folder_.path() + "/config.json")),
      plan_(plan_steps(config, model_config_)),
      memory_(data_group) {
  memory_.allocate(plan_.train.program);
  memory_.allocate(plan_.evaluate.program);
  train_executor_ =
      std::make_unique<Executor>(plan_.train.program, plan_.train.model, memory_, group_);
  evaluate_executor_ =
      std::make_unique<Executor>(plan_.evaluate.program, plan_.evaluate.model, memory_, group_);
  state_ = std::make_unique<ModelState>(plan_.train.model, plan_.partition, memory_,
                                        optimizer_state_kinds(config.optimizer));
}

TrainingSetup::Writer& TrainingSetup::writer() {
  if (writer_) return *writer_;
  const int64_t tokens = std::min(kGenerationTokens, plan_.train.model.batch.row_tokens);
  writer_.emplace(Writer{plan_logits(model_config_, plan_.partition, tokens), nullptr});
  // The executors hold addresses in the arena, so it may not move.
  require(writer_->plan.program.arena_bytes <= memory_.arena_bytes(),
          "text generation fits the training arena");
  memory_.allocate(writer_->plan.program);
  writer_->executor =
      std::make_unique<Executor>(writer_->plan.program, writer_->plan.model, memory_, group_);
  return *writer_;
}

}  // namespace ftrun
