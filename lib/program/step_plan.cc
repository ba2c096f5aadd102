#include "program/step_plan.h"

#include <algorithm>
#include <utility>

#include "axes/pipeline/pipeline_config.h"
#include "axes/tensor/split.h"
#include "axes/tensor/tensor_config.h"
#include "base/round_up.h"
#include "model/families.h"
#include "model/tensors.h"
#include "program/optimizer_state_specs.h"
#include "program/state_spec.h"
#include "program/training_model.h"

namespace ftrun {

std::function<bool(const TensorInfo&)> decay_rule(const TrainConfig& train) {
  if (train.weight_decay_exempt == DecayExempt::kNone)
    return [](const TensorInfo&) { return true; };
  return [](const TensorInfo& tensor) { return has_weight_decay(tensor); };
}

bool saves_in_background(const Config& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  // A background save needs memory for a copy only if training continues after some checkpoint.
  // After the last checkpoint nothing waits, so that one needs no copy.
  const bool before_the_end =
      checkpoint.every > 0 && (config.train.steps == 0 || checkpoint.every < config.train.steps);
  return checkpoint.background && (before_the_end || checkpoint.every_minutes > 0);
}

namespace {

/// The maximum number of tokens in the sequence with which a sample of generated text is computed.
constexpr int64_t kTextTokens = 128;

/// Returns the number of tokens of the sequence in which texts are computed. It is no more than the
/// longest text has, because each generated token costs a pass over the whole sequence.
int64_t text_tokens(const GenerateConfig& generate, const ModelDescription& trained) {
  const int64_t max_tokens =
      std::min(kTextTokens, trained.batch.sequence_length - trained.batch.sequence_padding);
  const int64_t longest =
      std::min(generate.prompt_tokens, max_tokens) + std::min(generate.tokens, max_tokens);
  // The length is a multiple of the number of tensor-parallel ranks, which split the sequence as in
  // training.
  return std::min(round_up(longest, trained.split.degree), max_tokens);
}

Tier tier_of(OffloadDevice device) {
  if (device == OffloadDevice::kNone) return Tier::kDevice;
  return device == OffloadDevice::kCpu ? Tier::kHost : Tier::kDisk;
}

StateOptions state_options(const Config& config, const ModelConfig& model_config,
                           const ModelDescription& model, int rank) {
  StateOptions state = state_options_of_rank(config, rank);
  state.tensor_copies = kv_copies(model_config, tensor_split(config, rank));
  state.zero_stage = static_cast<int>(config.zero.stage);
  state.pipeline = pipeline_layout(config, model);
  state.ties_first_and_last_stage =
      model.tied && state.pipeline.last_stage() != state.pipeline.first_stage();
  state.reduce_scatter = config.zero.reduce_scatter;
  state.communication = dtype_of(communication_dtype(config));
  state.master = dtype_of(master_dtype(config));
  state.parameter_tier = tier_of(config.zero.offload_param.device);
  state.optimizer_tier = tier_of(config.zero.offload_optimizer.device);
  state.optimizer_ratio = config.zero.offload_optimizer.ratio;
  state.optimizer_states = list_optimizer_state_specs(config);
  state.snapshots = saves_in_background(config);
  state.decays = decay_rule(config.train);
  state.has_8bit_states = tensors_with_8bit_states(model, config.optimizer);
  return state;
}

/// Counts the padded elements that a stage of the pipeline has.
int64_t padded_elements(const Partition& partition, const StateOptions& state) {
  int64_t elements = 0;
  for (const Unit& unit : partition.units)
    if (stages_of(unit, state.pipeline).contains(state.pipeline_stage))
      elements += unit.padded_numel;
  return elements;
}

/// Returns the size of a bucket in elements: at most a quarter of the gradients that a rank keeps.
/// DeepSpeed's default (5e8 elements) would reduce a small model in one bucket, after backward
/// instead of during it.
int64_t clamp_bucket_elements(int64_t requested_elements, const StateOptions& state,
                              int64_t elements) {
  if (state.zero_stage >= 2) elements /= state_place(state).count;
  return std::max<int64_t>(1, std::min(requested_elements, elements / 4));
}

/// Returns how many elements of whole parameters may be gathered ahead if the rank's shards of them
/// must fit in its buffers for the disk.
int64_t disk_buffer_elements(const Config& config) {
  const OffloadParamConfig& parameters = config.zero.offload_param;
  if (parameters.device != OffloadDevice::kNvme) return INT64_MAX;
  int64_t elements = 0;
  const bool over =
      __builtin_mul_overflow(parameters.buffer_count, parameters.buffer_size, &elements) ||
      __builtin_mul_overflow(elements, rank_mesh(config).group_size(kStateAxes), &elements);
  return over ? INT64_MAX : elements;
}

StepOptions step_options(const Config& config, const ModelConfig& model_config,
                         const ModelDescription& model, const Partition& partition, int rank) {
  StepOptions options;
  options.schedule = pipeline_schedule(config);
  options.micro_batches = static_cast<int32_t>(config.gradient_accumulation_steps);
  options.state = state_options(config, model_config, model, rank);
  const int64_t elements = padded_elements(partition, options.state);
  options.bucket_elements =
      clamp_bucket_elements(config.zero.reduce_bucket_size, options.state, elements);
  options.gather_bucket_elements =
      clamp_bucket_elements(config.zero.allgather_bucket_size, options.state, elements);
  // At most an eighth of the elements is prefetched, regardless of the number of shards:
  // DeepSpeed's default (5e7 elements) would keep most of a small model gathered.
  options.prefetch_elements =
      std::min({config.zero.prefetch_bucket_size, disk_buffer_elements(config), elements / 8});
  options.max_live_elements = config.zero.max_live_parameters;
  options.reuse_distance = config.zero.max_reuse_distance;
  options.overlap = config.zero.overlap_comm;
  options.offload_activations = config.activation_checkpointing.cpu_checkpointing &&
                                config.recompute.policy != RecomputeLevel::kNone;
  return options;
}

/// The maximum number of micro-batches for each stage: more would hardly fill a pipeline better.
constexpr int64_t kMaxPerStage = 8;

/// Chooses the number of micro-batches of one run of the evaluation program: at most as many as a
/// training step has, and at most kMaxPerStage for each stage. The number is chosen so that a
/// validation needs as few runs as possible, all of about the same size.
int32_t evaluation_micro_batches(const Config& config, const StateOptions& state) {
  const int64_t stages = state.pipeline.stages();
  if (stages == 1) return 1;
  const int64_t max_batches = std::min(config.gradient_accumulation_steps, kMaxPerStage * stages);
  const int64_t samples = config.train.evaluation.samples;
  if (samples <= 0) return static_cast<int32_t>(max_batches);
  const int64_t batches =
      divide_up(samples, config.train_micro_batch_size_per_gpu * data_parallel_place(state).count);
  return static_cast<int32_t>(divide_up(batches, divide_up(batches, max_batches)));
}

ProgramPlan program_plan(ModelDescription model, StepProgram step) {
  return {std::move(model), std::move(step.program), std::move(step.pieces),
          std::move(step.shardings)};
}

}  // namespace

StepPlan plan_steps(const Config& config, const ModelConfig& model, int rank) {
  StepPlan plan;
  ModelDescription train = build_training_model(config, model, rank);
  ModelDescription evaluate = build_evaluation_model(config, model, rank);
  plan.partition = build_units(
      train, config.partition.unit,
      {config.zero.param_persistence_threshold, config.zero.model_persistence_threshold},
      tensors_with_8bit_states(train, config.optimizer));
  plan.options = step_options(config, model, train, plan.partition, rank);
  plan.evaluation_micro_batches = evaluation_micro_batches(config, plan.options.state);
  StepProgram step = build_training_step(train, plan.partition, plan.options);
  plan.train = program_plan(std::move(train), std::move(step));
  StepOptions evaluation = plan.options;
  evaluation.micro_batches = plan.evaluation_micro_batches;
  evaluation.arenas = plan.train.program.arena_bytes;
  step = build_evaluation_step(evaluate, plan.partition, evaluation);
  plan.evaluate = program_plan(std::move(evaluate), std::move(step));
  const GenerateConfig& text = config.train.generate;
  if (text.prompt_tokens > 0 && !config.data.validation.empty())
    plan.generation = plan_generation(model, plan, text_tokens(text, plan.train.model));
  return plan;
}

std::vector<const ProgramPlan*> StepPlan::program_plans() const {
  std::vector<const ProgramPlan*> plans = {&train, &evaluate};
  if (generation) plans.push_back(&*generation);
  return plans;
}

std::vector<const Program*> StepPlan::programs() const {
  std::vector<const Program*> programs;
  for (const ProgramPlan* plan : program_plans()) programs.push_back(&plan->program);
  return programs;
}

int64_t checkpoint_bytes(const StepPlan& plan) {
  const ModelDescription& model = plan.train.model;
  int64_t bytes = 0;
  for (const StoredState& state : list_stored_states(model, plan.partition, plan.options.state))
    bytes += element_count(block_values_shape(model.tensor(state.tensor).shape, state.block)) *
             dtype_bytes(state.dtype);
  return bytes;
}

ProgramPlan plan_generation(const ModelConfig& config, const StepPlan& plan, int64_t tokens) {
  // The generation program uses the tensor split of training, so it needs no more memory. Sequence
  // parallelism is off if the tokens cannot be divided among the tensor ranks.
  TensorSplit split = plan.train.model.split;
  split.sequence = split.sequence && tokens % split.degree == 0;
  const BatchShape shape{.sequence_length = tokens,
                         .longest_sequence = plan.train.model.batch.max_sequence_tokens()};
  ModelDescription model = build_model(config, shape, GraphMode::kLogits, plan.train.model.dtypes,
                                       {}, split, plan.train.model.adapter);
  StepOptions options = plan.options;
  options.arenas = plan.train.program.arena_bytes;
  StepProgram step = build_generation_step(model, plan.partition, options);
  return program_plan(std::move(model), std::move(step));
}

}  // namespace ftrun
