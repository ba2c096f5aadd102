#include "program/step_plan.h"

#include <algorithm>

#include "model/families.h"
#include "model/tensors.h"

namespace ftrun {

std::vector<std::string> optimizer_state_kinds(const OptimizerConfig& optimizer) {
  if (optimizer.type != OptimizerType::kSgd) return {"exp_avg", "exp_avg_sq"};
  return optimizer.momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"momentum"};
}

std::function<bool(const TensorInfo&)> decay_rule(const TrainConfig& train) {
  if (train.weight_decay_exempt == DecayExempt::kNone) return [](const TensorInfo&) { return true; };
  return [](const TensorInfo& tensor) { return decays(tensor); };
}

namespace {

StepOptions step_options(const Config& config) {
  StepOptions options;
  options.micro_batches = static_cast<int32_t>(config.gradient_accumulation_steps);
  options.optimizer_states = static_cast<int32_t>(optimizer_state_kinds(config.optimizer).size());
  options.decays = decay_rule(config.train);
  options.bucket_elements = std::max<int64_t>(1, config.zero.reduce_bucket_size);
  options.overlap = config.zero.overlap_comm;
  return options;
}

}  // namespace

StepPlan plan_steps(const Config& config, const ModelConfig& model) {
  const BatchShape shape{config.train_micro_batch_size_per_gpu, config.data.sequence_length};
  const StepOptions options = step_options(config);
  StepOptions once = options;
  once.micro_batches = 1;
  StepPlan plan;
  plan.train.model = build_model(model, shape, Mode::kTrain);
  plan.evaluate.model = build_model(model, shape, Mode::kEvaluate);
  plan.partition = build_units(plan.train.model, *granularity_from_name(name_of(config.partition.unit)));
  plan.train.program = build_training_step(plan.train.model, plan.partition, options);
  plan.evaluate.program = build_evaluation_step(plan.evaluate.model, plan.partition, once);
  return plan;
}

PassPlan plan_logits(const ModelConfig& model, const Partition& partition, int64_t tokens) {
  PassPlan plan;
  plan.model = build_model(model, {1, tokens}, Mode::kLogits);
  plan.program = build_logits_step(plan.model, partition);
  return plan;
}

}  // namespace ftrun
