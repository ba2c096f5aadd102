// These tests check that every key which the reference documents as honored has an effect. They
// walk through the whole schema: each key is written with other values into configs where it
// matters, and something other than the key itself must change: the resolved config, the programs
// of all ranks, or what a run computes from the config. Keys that affect only what a run does are
// listed below, each with the line that reads it.

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "config/effective_json.h"
#include "config/load.h"
#include "config/resolve.h"
#include "config/schema.h"
#include "config/unsupported.h"
#include "config/write.h"
#include "inputs/sequence_options.h"
#include "optimizers/optimizers.h"
#include "program/step_plan.h"
#include "source_paths.h"
#include "training/loss_scaler.h"
#include "training/scheduled_scalars.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// A config where certain keys matter.
struct BaseConfig {
  const char* name;
  std::string text;
  int64_t ranks = 2;
};

const std::string kBatch = "train_micro_batch_size_per_gpu: 2\ngradient_accumulation_steps: 2\n";
const std::string kStage3 =
    "zero_optimization: {stage: 3, stage3_param_persistence_threshold: 40, ";

std::string scheduler_yaml(const char* type, const char* params) {
  return kBatch + cat("optimizer: {type: AdamW, params: {lr: 0.5}}\n",
                      "train: {steps: 40}\nscheduler: {type: ", type, ", params: {", params,
                      "}}\n");
}

std::string optimizer_yaml(const char* type, const char* params) {
  return kBatch + cat("optimizer: {type: ", type, ", params: {", params, "}}\n");
}

std::string elasticity_yaml(const char* keys) {
  return cat("elasticity: {enabled: true, micro_batch_sizes: [2, 3], ", keys, "}\n");
}

const std::vector<BaseConfig>& base_configs() {
  static const std::vector<BaseConfig> all{
      {"plain", kBatch},
      {"batch", "train_batch_size: 8\n"},
      {"micro-batch", "train_micro_batch_size_per_gpu: 2\n"},
      {"four ranks", kBatch, 4},
      {"tensor ranks", kBatch + "parallel: {tensor: 2}\n"},
      {"stage 1", kBatch + "zero_optimization: {stage: 1}\n"},
      {"stage 3", kBatch + kStage3 + "overlap_comm: true}\n"},
      {"stage 3, four ranks", kBatch + kStage3 + "overlap_comm: true}\n", 4},
      {"reuse", kBatch + kStage3 + "stage3_max_reuse_distance: 1000000}\n"},
      {"host", kBatch + kStage3 + "offload_optimizer: {device: cpu}}\n"},
      {"disk", kBatch + kStage3 +
                   "offload_param: {device: nvme, nvme_path: /n}, "
                   "offload_optimizer: {device: nvme, nvme_path: /n}}\n"},
      {"recompute", kBatch + "recompute: full\n"},
      {"bf16", kBatch + "bf16: {enabled: true}\nzero_optimization: {stage: 1}\n"},
      {"fp16", kBatch + "fp16: {enabled: true, loss_scale_window: 4, hysteresis: 3}\n"
                        "zero_optimization: {stage: 1}\n"},
      {"adapter",
       kBatch +
           "adapter: {r: 4, target_modules: [q_proj, k_proj, v_proj], rank_pattern: {v_proj: 2}, "
           "alpha_pattern: {q_proj: 3}}\n"},
      {"quantized", kBatch + "adapter: {r: 4}\nquantization: {type: nf4, double: false}\n"},
      {"AdamW", optimizer_yaml("AdamW", "weight_decay: 0.5")},
      {"Adam", optimizer_yaml("Adam", "weight_decay: 0.5")},
      {"SGD", optimizer_yaml("SGD", "momentum: 0.5")},
      {"Lion", optimizer_yaml("Lion", "weight_decay: 0.5")},
      {"Adagrad", optimizer_yaml("Adagrad", "weight_decay: 0.5")},
      {"AdamW8bit", optimizer_yaml("AdamW8bit", "weight_decay: 0.5")},
      {"own optimizer", kBatch + "train: {learning_rate: 0.5, weight_decay: 0.5, steps: 40}\n"},
      {"constant", scheduler_yaml("constant", "")},
      {"linear over the run", scheduler_yaml("linear", "")},
      {"linear", scheduler_yaml("linear", "total_num_steps: 30")},
      {"cosine_with_restarts", scheduler_yaml("cosine_with_restarts", "")},
      {"polynomial", scheduler_yaml("polynomial", "power: 2")},
      {"inverse_sqrt", scheduler_yaml("inverse_sqrt", "")},
      {"cosine_with_min_lr", scheduler_yaml("cosine_with_min_lr", "min_lr: 0.125")},
      {"cosine_with_min_lr, a share", scheduler_yaml("cosine_with_min_lr", "min_lr_rate: 0.125")},
      {"warmup_stable_decay",
       scheduler_yaml("warmup_stable_decay", "warmup_num_steps: 9, num_decay_steps: 8")},
      {"WarmupLR", scheduler_yaml("WarmupLR", "warmup_num_steps: 20")},
      {"WarmupDecayLR",
       scheduler_yaml("WarmupDecayLR", "warmup_num_steps: 20, total_num_steps: 30")},
      {"WarmupCosineLR",
       scheduler_yaml("WarmupCosineLR", "warmup_num_steps: 20, total_num_steps: 30")},
      {"OneCycle",
       scheduler_yaml("OneCycle",
                      "cycle_min_lr: 0.25, cycle_max_lr: 0.5, decay_step_size: 2, "
                      "decay_lr_rate: 0.5, decay_mom_rate: 0.5, cycle_first_step_size: 10")},
      {"LRRangeTest", scheduler_yaml("LRRangeTest", "lr_range_test_step_size: 4")},
      {"elastic",
       elasticity_yaml(
           "max_train_batch_size: 50, version: 0.1, max_gpus: 4, prefer_larger_batch: false"),
       4},
      {"elastic, many ranks",
       elasticity_yaml(
           "max_train_batch_size: 50, version: 0.1, max_gpus: 16, prefer_larger_batch: false"),
       12},
      {"elastic machines", elasticity_yaml("max_train_batch_size: 40, num_gpus_per_node: 4"), 4},
      {"elastic beside batch keys",
       "elasticity: {enabled: true, max_train_batch_size: 50, micro_batch_sizes: [2, 3], "
       "ignore_non_elastic_batch_info: true}\ntrain_batch_size: 8\n",
       4},
  };
  return all;
}

/// Returns a model of eight small layers, so that every ZeRO key has units to work on.
ModelConfig model() {
  ModelConfig c;
  c.family = "llama";
  c.vocab_rows = 400;
  c.hidden = 64;
  c.feed_forward = 128;
  c.layers = 8;
  c.query_heads = 4;
  c.kv_heads = 2;
  c.head_size = 16;
  c.qkv_bias = true;
  c.windows.assign(8, 0);
  return c;
}

std::string optimizer_text(const OptimizerConfig& config) {
  if (!optimizer_traits(config.type).is_offered()) return "";
  // The gradients and states are small enough for eps to change the result. The parameter 0.75 is
  // large enough for weight decay to change it, and 3e-8 is small enough that no update is rounded
  // away.
  std::string text;
  const auto states = optimizer_states(config);
  for (const float begin : {0.75F, 3e-8F})
    for (int64_t k = 1; k < 4; ++k) {
      float parameter = begin, gradient = 3e-8F, first = 2e-8F, second = 1e-16F;
      if (!states.empty() && states[0].initial_value != nullptr)
        first = static_cast<float>(config.*states[0].initial_value);
      StepScalars scalars;
      scalars.learning_rate = 0.01F;
      scalars.update = k;
      optimizer_update({.parameters = &parameter,
                        .gradients = &gradient,
                        .states = {&first, &second},
                        .count = 1},
                       config, scalars);
      for (const float number : {parameter, first, second})
        text += number_text(static_cast<double>(number)) + " ";
    }
  return text;
}

/// Returns the scalars of steps throughout a run.
std::string schedule_text(const Config& config) {
  std::ostringstream out;
  out.precision(9);
  for (int64_t k = 1; k < 60; ++k) {
    const StepScalars s = scheduled_scalars(config.optimizer, {config.scheduler, 0}, k);
    out << s.learning_rate << ' ' << s.beta1 << ' ' << s.beta2 << ' ' << s.bias_correction1 << ' '
        << s.bias_correction2 << '\n';
  }
  return out.str();
}

/// Returns the loss scale over finite steps and sequences of overflows.
std::string scale_text(const Config& config) {
  std::string text;
  LossScaler scaler(config);
  for (const char step : std::string("....x....xx.xxx....x.x.x.....xxxxxxxxxxxxxxxxxxxxxxxx")) {
    text += number_text(scaler.scale()) + " ";
    scaler.update(step == 'x');
  }
  return text;
}

std::string samples_text(const Config& config) {
  const SequenceSetOptions options = sequence_options(config);
  return cat(options.sequence_length, " ", static_cast<int>(options.packing), " ",
             static_cast<int>(options.format), " ",
             options.dtype ? static_cast<int>(*options.dtype) : -1);
}

/// Returns the values, besides its programs, that a run computes from a resolved config.
std::string scalars_text(const Config& config) {
  return cat(optimizer_text(config.optimizer), "\n", schedule_text(config), scale_text(config),
             "\n", samples_text(config), "\n");
}

/// Returns the properties of adapters that a program does not show: their scale and initial values.
std::string adapter_text(const ModelDescription& model) {
  std::string text;
  for (const BlockAdapter& block : model.adapter.blocks)
    for (const LowRankAdapter& low_rank : block.by_projection)
      text += cat(low_rank.rank, "*", low_rank.scale, " ");
  for (const TensorInfo& tensor : model.tensors)
    text += cat(static_cast<int>(tensor.initial.source), tensor.trainable ? "t" : "f");
  return text;
}

/// Returns the programs of the first and the last rank.
std::string programs_text(const Config& config) {
  std::string text;
  for (const int64_t rank : {int64_t{0}, config.parallel.data * config.parallel.tensor - 1}) {
    const StepPlan plan = plan_steps(config, model(), static_cast<int>(rank));
    text += adapter_text(plan.train.model);
    for (const Program* program : {&plan.train.program, &plan.evaluate.program}) {
      text += program_text(*program);
      for (const int64_t bytes : program->arena_bytes) text += cat(bytes, " ");
      for (const Instr& instr : program->instrs)
        text += instr.kind == InstrKind::kUpdate && instr.update().decay ? 'd' : '-';
    }
  }
  return text;
}

/// Returns the resolved config; nothing if it is refused or cannot run yet.
std::optional<ResolvedConfig> try_resolve(const BaseConfig& base,
                                          const std::vector<std::string>& overrides) {
  const LoadResult loaded = load_config_text("c.yaml", base.text, overrides);
  if (!loaded.ok()) return std::nullopt;
  ResolvedConfig resolution = resolve(loaded.written, {.world_size = base.ranks});
  if (!resolution.ok() || !resolution.unsupported.empty()) return std::nullopt;
  return resolution;
}

/// Outcome holds what a run would compute from a base config.
struct Outcome {
  ResolvedConfig resolution;
  std::string scalars, programs;
};

const Outcome& base_outcome(const BaseConfig& base) {
  static std::map<std::string, Outcome> known;
  const auto found = known.find(base.name);
  if (found != known.end()) return found->second;
  std::optional<ResolvedConfig> plain = try_resolve(base, {});
  REQUIRE(plain.has_value());
  Outcome made{std::move(*plain), "", ""};
  made.scalars = scalars_text(made.resolution.config);
  made.programs = programs_text(made.resolution.config);
  return known.emplace(base.name, std::move(made)).first->second;
}

/// Returns whether anything besides the key itself differs; cheap comparisons are first. Returns
/// false for a value that does not fit the model.
bool differs(const Field& field, const Outcome& before, const Config& after) try {
  Config others = after;
  if (field.store) field.store(others, field.load(before.resolution.config));
  others.auto_keys = before.resolution.config.auto_keys;
  return effective_json(others) != effective_json(before.resolution.config) ||
         scalars_text(after) != before.scalars || programs_text(after) != before.programs;
} catch (const Error& error) {
  if (error.code() != ExitCode::kUsage) throw;
  return false;
}

template <typename T>
void add_numbers(std::vector<std::string>& out, double now, std::initializer_list<T> more) {
  for (const T value : more)
    if (static_cast<double>(value) != now) out.push_back(number_text(static_cast<double>(value)));
}

std::vector<std::string> other_values(const Field& field, const FieldValue& now) {
  std::vector<std::string> out;
  switch (field.type) {
    case FieldType::kBool:
      return {std::get<bool>(now) ? "false" : "true"};
    case FieldType::kInt:
      add_numbers<int64_t>(out, static_cast<double>(std::get<int64_t>(now)),
                           {0, 1, 2, 3, 4, 8, 9, 20, 100, 128, 4096, 10000, 1000000000});
      return out;
    case FieldType::kFloat:
      add_numbers<double>(out, std::get<double>(now), {0, 0.1, 0.2, 0.25, 0.75, 1, 2, 512});
      return out;
    case FieldType::kChoice:
      for (const std::string& choice : field.choices)
        if (yaml_text(now) != choice) out.push_back(choice);
      return out;
    case FieldType::kText:
      return {"/elsewhere", "debug", ".*k_proj"};
    case FieldType::kTextList:
      return {"[other.bin]", "[norm]", "[k_proj]"};
    case FieldType::kIntList:
      return {"[1]", "[4, 5]"};
    case FieldType::kNumberPair:
      return {"[0.25, 0.5]"};
    case FieldType::kNumberList:
      return {"[0.5]", "[0.25, 0.5]"};
    case FieldType::kAnyValue:
      break;
  }
  return out;
}

bool has_effect(const Field& field) {
  const bool kept = static_cast<bool>(field.load);
  for (const BaseConfig& base : base_configs()) {
    const Outcome& before = base_outcome(base);
    const FieldValue now = kept ? field.load(before.resolution.config) : field.default_value;
    for (const std::string& value : other_values(field, now)) {
      const auto changed = try_resolve(base, {cat(field.path(), "=", value)});
      if (changed && differs(field, before, changed->config)) return true;
    }
  }
  return false;
}

/// A key that affects only what a run reads, writes, waits for or prints, and the line that reads
/// it.
struct RunKey {
  const char* file;
  const char* line;
};

const std::map<std::string, RunKey>& run_keys() {
  static const std::map<std::string, RunKey> keys{
      // The keys below select inputs.
      {"model.path", {"lib/engine/setup.cc", "folder(folder_of(from.model))"}},
      {"adapter.path", {"lib/training/checkpointer.cc", "config_.adapter.path"}},
      {"data.train", {"lib/inputs/run_data.cc", "(config.data.train, training_options(config))"}},
      {"data.train_weights",
       {"lib/inputs/sequence_options.cc", "options.weights = config.data.train_weights"}},
      {"data.validation", {"lib/inputs/run_data.cc", "evaluation_sets(config.data)"}},
      {"data.validation_names", {"lib/config/evaluation_sets.cc", "data.validation_names[i]"}},
      {"data.shuffle", {"lib/inputs/run_data.cc", "options.shuffle = config.data.shuffle"}},
      {"data.prefetch",
       {"lib/inputs/run_data.cc",
        "options.prefetched_steps = static_cast<int>(config.data.prefetch)"}},
      {"dataloader_drop_last",
       {"lib/inputs/run_data.cc", "options.drop_last = config.data.drop_last"}},
      {"train.seed",
       {"lib/inputs/run_data.cc", "options.seed = static_cast<uint64_t>(config.train.seed)"}},
      // The keys below set the length of the run and its further computations.
      {"train.check_replicas", {"lib/training/training_loop.cc", "config_.train.check_replicas"}},
      {"train.max_nonfinite_steps",
       {"lib/training/skipped_steps.cc", "config.train.max_nonfinite_steps"}},
      {"train.evaluation.every",
       {"lib/training/training_loop.cc", ".steps = config.train.evaluation.every,"}},
      {"train.evaluation.every_minutes",
       {"lib/training/training_loop.cc", ".minutes = config.train.evaluation.every_minutes"}},
      {"train.early_stopping.metric", {"lib/training/evaluation_record.cc", "stopping_.metric"}},
      {"train.early_stopping.patience",
       {"lib/training/evaluation_record.cc", "stopping_.patience"}},
      {"train.early_stopping.min_delta",
       {"lib/training/evaluation_record.cc", "stopping_.min_delta"}},
      {"train.evaluation.samples",
       {"lib/training/evaluation.cc", "config.train.evaluation.samples"}},
      {"train.generate.prompt_tokens",
       {"lib/training/text_generation.cc", "config.train.generate.prompt_tokens"}},
      {"train.generate.prompts",
       {"lib/training/text_generation.cc", "config.train.generate.prompts"}},
      {"train.generate.tokens", {"lib/training/text_generation.cc", "generate_config.tokens"}},
      {"train.generate.temperature",
       {"lib/training/text_generation.cc", "generate_config.temperature"}},
      {"gradient_clipping",
       {"lib/training/prepare_step.cc", ".clip_norm = config.gradient_clipping"}},
      // These scale the loss before the optimizer sees gradients; they change only rounding.
      {"prescale_gradients", {"lib/training/gradient_scale.cc", "reduction.prescale_gradients"}},
      {"gradient_predivide_factor",
       {"lib/training/gradient_scale.cc", "reduction.gradient_predivide_factor"}},
      {"gradient_allreduce_op",
       {"lib/training/gradient_scale.cc", "reduction.gradient_allreduce_op"}},
      // The keys below set which files and lines are written.
      {"output_dir", {"lib/training/run_folder_writer.cc", "config.output_dir"}},
      {"train.log.every", {"lib/training/run_folder_writer.cc", "config.train.log.every"}},
      {"train.log.tensorboard",
       {"lib/training/run_folder_writer.cc", "config.train.log.tensorboard"}},
      {"train.trace.steps", {"lib/training/prepare_step.cc", "is_traced(config.train.trace"}},
      {"train.trace.ranks", {"lib/training/check_rank_programs.cc", "trace.ranks"}},
      {"steps_per_print", {"lib/training/run_journal.cc", "config.steps_per_print"}},
      {"wall_clock_breakdown", {"lib/training/run_journal.cc", "config.wall_clock_breakdown"}},
      {"log_level", {"lib/training/run_journal.cc", ".level = config.log_level"}},
      {"csv_monitor.enabled", {"lib/training/run_folder_writer.cc", "config.csv_monitor.enabled"}},
      {"csv_monitor.output_path", {"lib/training/run_folder_writer.cc", "csv.output_path"}},
      {"csv_monitor.job_name", {"lib/training/run_folder_writer.cc", "csv.job_name"}},
      {"wandb.enabled", {"lib/training/run_folder_writer.cc", "wandb.enabled"}},
      {"wandb.project", {"lib/training/run_folder_writer.cc", "wandb.project"}},
      {"wandb.group", {"lib/training/run_folder_writer.cc", "wandb.group"}},
      {"wandb.team", {"lib/training/run_folder_writer.cc", "wandb.team"}},
      {"checkpoint.every", {"lib/training/checkpointer.cc", "config_.checkpoint.every"}},
      {"checkpoint.every_minutes",
       {"lib/training/checkpointer.cc", "config_.checkpoint.every_minutes"}},
      {"checkpoint.if_busy", {"lib/training/checkpointer.cc", "config_.checkpoint.if_busy"}},
      {"checkpoint.keep_best.metric", {"lib/training/evaluation_record.cc", "keep_best_.metric"}},
      {"checkpoint.keep_best.mode", {"lib/training/evaluation_record.cc", "keep_best_.mode"}},
      {"export.which", {"lib/training/trainer.cc", "config_.model_export.which"}},
      {"checkpoint.keep_last", {"lib/training/checkpointer.cc", "config_.checkpoint.keep_last"}},
      {"export.enabled", {"lib/training/trainer.cc", "config_.model_export.enabled"}},
      {"export.dtype", {"lib/inputs/export_options.cc", "config.model_export.dtype"}},
      // The keys below set how a pipeline is cut and run.
      {"parallel.schedule",
       {"lib/axes/pipeline/pipeline_config.cc", ": config.parallel.schedule;"}},
      {"parallel.virtual_stages",
       {"lib/axes/pipeline/pipeline_config.cc", "config.parallel.virtual_stages"}},
      {"parallel.pipeline_layers",
       {"lib/axes/pipeline/pipeline_config.cc", "config.parallel.pipeline_layers"}},
      {"pipeline.partition",
       {"lib/axes/pipeline/pipeline_config.cc",
        "parse_pipeline_balance(config.pipeline.partition)"}},
      // The keys below set where and how the run computes.
      {"device", {"lib/training/session.cc", "request.config.device"}},
      {"threads", {"lib/training/trainer.cc", "config_.threads"}},
      {"kernels.products", {"lib/training/trainer.cc", "pinned_matmul_library(config_.kernels)"}},
      {"kernels.attention", {"lib/engine/choose_gpu.cc", "config.kernels.attention"}},
      {"kernels.step_graph", {"lib/engine/choose_gpu.cc", "config.kernels.step_graph"}},
      {"comm.backend", {"lib/training/session.cc", "backend_of(config.comm)"}},
      {"comm.timeout", {"lib/training/session.cc", "config.comm.timeout"}},
      {"comm.deterministic", {"lib/training/session.cc", "config.comm.deterministic"}},
      {"model.padding_row_gradient",
       {"lib/program/training_model.cc", "model.padding_row_gradient"}},
      {"zero_optimization.offload_param.nvme_path",
       {"lib/config/config.cc", "zero.offload_param.nvme_path"}},
      {"zero_optimization.offload_optimizer.nvme_path",
       {"lib/config/config.cc", "zero.offload_optimizer.nvme_path"}},
      {"zero_optimization.offload_param.pin_memory",
       {"lib/engine/choose_gpu.cc", "parameters.pin_memory"}},
      {"zero_optimization.offload_optimizer.pin_memory",
       {"lib/engine/choose_gpu.cc", "optimizer.pin_memory"}},
      {"aio.block_size", {"lib/engine/setup.cc", "config.aio.block_size"}},
      {"aio.queue_depth", {"lib/engine/setup.cc", "config.aio.queue_depth"}},
      {"aio.intra_op_parallelism", {"lib/engine/setup.cc", "config.aio.intra_op_parallelism"}},
      {"aio.single_submit", {"lib/engine/setup.cc", "config.aio.single_submit"}},
      {"aio.overlap_events", {"lib/engine/setup.cc", "config.aio.overlap_events"}},
      // The value is only compared with other keys, and refused if it differs.
      {"data_types.param_dtype", {"lib/config/resolve_checks.cc", "data_types.param_dtype"}},
      {"elasticity.ignore_non_elastic_batch_info",
       {"lib/config/resolve_elasticity.cc", "c.elasticity.ignore_non_elastic_batch_info"}},
      // The keys below are other ways to set the number of ranks and what they share (not yet).
      {"parallel.data", {"lib/config/ranks.cc", "mesh.data != 0"}},
      // The keys below set how the supervisor treats a rank that keeps failing.
      {"elastic.min_ranks", {"lib/config/elastic.cc", "config.elastic.min_ranks"}},
      {"pipeline.stages", {"lib/axes/pipeline/keys.cc", "c.pipeline.stages"}},
      {"sequence_parallel_size", {"lib/axes/context/keys.cc", "c.sequence_parallel_size"}},
      {"elasticity.model_parallel_size",
       {"lib/config/resolve_elasticity.cc", "e.model_parallel_size"}},
  };
  return keys;
}

std::string content(const std::string& path) {
  std::ifstream in(testing::source_dir() + "/" + path);
  REQUIRE(in.is_open());
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Returns whether a run can use this key, which the reference documents as honored.
bool is_honored(const Field& field) {
  if (field.support != KeySupport::kApply) return false;
  if (field.types.empty()) return true;
  // Optimizers that are refused, whose parameters therefore have no effect.
  std::set<std::string> refused;
  for (size_t i = kOfferedOptimizers; i < kNamedOptimizers; ++i)
    refused.emplace(name_of(static_cast<OptimizerType>(i)));
  return std::any_of(field.types.begin(), field.types.end(),
                     [&](const std::string& type) { return !refused.contains(type); });
}

}  // namespace

TEST_CASE("every key documented as honored changes the resolved run") {
  std::string without;
  for (const Field& field : Schema::get().fields()) {
    if (!is_honored(field) || run_keys().contains(field.path())) continue;
    // The reference says "not yet" for keys whose values are all refused.
    if (unsupported_part(field.path()).empty() && !has_effect(field))
      without += field.path() + "\n";
  }
  CHECK(without == "");
}

TEST_CASE("each key in the list of run keys is read by the source line that the list names") {
  for (const auto& [path, place] : run_keys()) {
    INFO(path << " in " << place.file);
    const size_t dot = path.rfind('.');
    const Field* field = Schema::get().find(dot == std::string::npos ? "" : path.substr(0, dot),
                                            path.substr(dot + 1));
    REQUIRE(field != nullptr);
    CHECK(field->support == KeySupport::kApply);
    CHECK(content(place.file).find(place.line) != std::string::npos);
  }
}

TEST_CASE("every base config is one that can run") {
  for (const BaseConfig& base : base_configs()) {
    INFO(base.name);
    CHECK(try_resolve(base, {}).has_value());
  }
}

}  // namespace ftrun
