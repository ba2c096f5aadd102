#include "exec/setup.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/families.h"
#include "model/tensors.h"

namespace ftrun {
namespace {

/// Longest row that a sample of generated text is computed with.
constexpr int64_t kGenerationTokens = 128;

UnitGranularity granularity_of(const PartitionConfig& partition) {
  return *granularity_from_name(name_of(partition.unit));
}

}  // namespace

std::unique_ptr<SampleSet> open_samples(const DataConfig& data, const std::vector<std::string>& paths) {
  SampleSetOptions options;
  options.sequence_length = data.sequence_length;
  options.packing = static_cast<PackingMode>(data.packing);
  if (data.token_dtype == TokenDtype::kUint16) options.dtype = DType::kU16;
  if (data.token_dtype == TokenDtype::kUint32) options.dtype = DType::kU32;
  return std::make_unique<SampleSet>(paths, options);
}

std::function<bool(const TensorInfo&)> decay_rule(const TrainConfig& train) {
  if (train.weight_decay_exempt == DecayExempt::kNone) return [](const TensorInfo&) { return true; };
  return [](const TensorInfo& tensor) { return decays(tensor); };
}

StepOptions step_options_of(const Config& config, int32_t optimizer_states) {
  StepOptions options;
  options.micro_batches = static_cast<int32_t>(config.gradient_accumulation_steps);
  options.optimizer_states = optimizer_states;
  options.decays = decay_rule(config.train);
  options.bucket_elements = std::max<int64_t>(1, config.zero.reduce_bucket_size);
  options.overlap = config.zero.overlap_comm;
  return options;
}

TrainingSetup::TrainingSetup(const Config& config, Communicator& data_group)
    : group_(data_group),
      folder_(config.model.path),
      model_config_(parse_model_config(folder_.config_json(), folder_.path() + "/config.json")),
      optimizer_(plan_optimizer(config.optimizer)),
      memory_(data_group) {
  const BatchShape shape{config.train_micro_batch_size_per_gpu, config.data.sequence_length};
  const StepOptions options = step_options_of(config, static_cast<int32_t>(optimizer_.state_kinds.size()));
  StepOptions once = options;
  once.micro_batches = 1;
  train_.model = build_model(model_config_, shape, Mode::kTrain);
  evaluate_.model = build_model(model_config_, shape, Mode::kEvaluate);
  partition_ = build_units(train_.model, granularity_of(config.partition));
  train_.program = build_training_step(train_.model, partition_, options);
  evaluate_.program = build_evaluation_step(evaluate_.model, partition_, once);
  memory_.allocate(train_.program);
  memory_.allocate(evaluate_.program);
  for (Pass* pass : {&train_, &evaluate_})
    pass->executor = std::make_unique<Executor>(pass->program, pass->model, memory_, group_);
  state_ = std::make_unique<ModelState>(train_.model, partition_, memory_, optimizer_.state_kinds);
}

/// Made when a sample of text is asked for, after training: its memory is nobody's before. It may
/// not grow the arena, whose addresses the other executors hold.
Pass& TrainingSetup::logits() {
  if (logits_) return *logits_;
  logits_.emplace();
  const int64_t tokens = std::min(kGenerationTokens, train_.model.batch.row_tokens);
  logits_->model = build_model(model_config_, {1, tokens}, Mode::kLogits);
  logits_->program = build_logits_step(logits_->model, partition_);
  require(logits_->program.arena_bytes <= memory_.arena_bytes(), "generation fits the training arena");
  memory_.allocate(logits_->program);
  logits_->executor = std::make_unique<Executor>(logits_->program, logits_->model, memory_, group_);
  return *logits_;
}

}  // namespace ftrun
