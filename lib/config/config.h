#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "axes/pipeline/schedule_traits.h"
#include "base/adapter_choices.h"
#include "base/data_format.h"
#include "base/enum_names.h"
#include "base/log.h"
#include "base/matmul_library.h"
#include "base/quantized_format.h"
#include "base/recompute_level.h"
#include "base/sequence_packing.h"
#include "base/unit_granularity.h"
#include "config/deepspeed_config.h"
#include "config/problem.h"

namespace ftrun {

// This file has ftrun's own sections. Every key, its range and its meaning for a user are in
// docs/config.md, which is generated from the table by which keys are read (config/schema.h).

/// PaddingRowGradient specifies the gradient of the embedding's row for pad_token_id from input
/// tokens: like that of any other row, or none, as in transformers (section model).
enum class PaddingRowGradient { kTrained, kTransformers };
template <>
struct EnumNames<PaddingRowGradient> {
  static constexpr auto kNames = enum_names<PaddingRowGradient>({"trained", "transformers"});
};

struct ModelSection {
  /// The model: a Hugging Face folder with config.json, *.safetensors and tokenizer files.
  std::string path;
  PaddingRowGradient padding_row_gradient = PaddingRowGradient::kTrained;
  /// The commit of a model that was found by its name on the Hub, once it is known; not a key.
  std::string commit = {};
  bool operator==(const ModelSection&) const = default;
};

enum class TokenDtype { kAuto, kUint16, kUint32 };
template <>
struct EnumNames<TokenDtype> {
  static constexpr auto kNames = enum_names<TokenDtype>({"auto", "uint16", "uint32"});
};

/// DataConfig is the section data.
struct DataConfig {
  std::vector<std::string> train;
  /// The weights of the entries of train if these are data sets that are mixed; empty: the entries
  /// form one stream, in order.
  std::vector<double> train_weights;
  std::vector<std::string> validation;
  /// The name of the set of each entry of validation, if there are several sets.
  std::vector<std::string> validation_names;
  /// The number of tokens of a sequence.
  int64_t sequence_length = 1024;
  SequencePacking packing = SequencePacking::kConcat;
  DataFormat format = DataFormat::kAuto;
  TokenDtype token_dtype = TokenDtype::kAuto;
  bool shuffle = true;
  /// The number of optimizer steps whose batches are prepared ahead of the current one.
  int64_t prefetch = 4;
  /// Says whether sequences that do not fill a whole global batch at the end of an epoch are left
  /// out.
  bool drop_last = false;
  bool operator==(const DataConfig&) const = default;
};

/// EvaluationConfig is the section train.evaluation.
struct EvaluationConfig {
  /// The number of optimizer steps between two evaluations; 0 = only before the first and after the
  /// last step.
  int64_t every = 0;
  /// The number of minutes from one evaluation to the next; 0 = only by steps.
  double every_minutes = 0;
  /// The number of sequences of the validation set that are used; 0 = all.
  int64_t samples = 64;
  bool operator==(const EvaluationConfig&) const = default;
};

/// EarlyStoppingConfig is the section train.early_stopping.
struct EarlyStoppingConfig {
  /// The metric that must improve, "validation.loss"; "" = no early stopping.
  std::string metric;
  /// The number of evaluations without improvement after which the run ends.
  int64_t patience = 3;
  /// The difference by which an improvement must exceed the best value.
  double min_delta = 0;
  bool operator==(const EarlyStoppingConfig&) const = default;
};

/// LogConfig is the section train.log.
struct LogConfig {
  /// The number of optimizer steps between two printed lines.
  int64_t every = 1;
  bool tensorboard = true;
  bool operator==(const LogConfig&) const = default;
};

/// GenerateConfig is the section train.generate.
struct GenerateConfig {
  /// The number of tokens of a validation document that are the prompt which the model continues,
  /// at each evaluation and at the end; 0 = no text is generated.
  int64_t prompt_tokens = 0;
  /// The number of validation documents that are continued at each evaluation.
  int64_t prompts = 1;
  int64_t tokens = 64;
  /// The sampling temperature; 0 always chooses the likeliest token.
  double temperature = 0.0;
  bool operator==(const GenerateConfig&) const = default;
};

/// TraceConfig is the section train.trace.
struct TraceConfig {
  /// Steps whose instructions are traced, counted from 1; empty = none.
  std::vector<int64_t> steps;
  /// The ranks that are traced; empty = the lowest rank of each class of ranks with equal programs.
  std::vector<int64_t> ranks;
  bool operator==(const TraceConfig&) const = default;
};

/// Returns whether a step is traced.
bool is_traced(const TraceConfig& trace, int64_t step);

/// DecayExempt lists the parameters to which weight decay does not apply.
enum class DecayExempt { kNone, kNormsAndBiases };
template <>
struct EnumNames<DecayExempt> {
  static constexpr auto kNames = enum_names<DecayExempt>({"none", "norms_and_biases"});
};

/// TrainConfig is the section train.
struct TrainConfig {
  /// The number of optimizer steps; 0 = by epochs.
  int64_t steps = 0;
  /// The number of passes over the data; 0 = by steps.
  double epochs = 0.0;
  int64_t seed = 42;
  /// Learning rate and weight decay of the optimizer, and warm-up steps of the scheduler.
  double learning_rate = 5e-5;
  double weight_decay = 0.0;
  int64_t warmup_steps = 0;
  /// Regular expressions of the names of parameters that do not train, or of the only ones that
  /// train.
  std::vector<std::string> freeze;
  std::vector<std::string> only;
  DecayExempt weight_decay_exempt = DecayExempt::kNormsAndBiases;
  /// The number of consecutive steps with a loss or gradient that is not finite after which the run
  /// stops (exit 7).
  int64_t max_nonfinite_steps = 20;
  /// The number of steps between two comparisons of the state that several ranks hold copies of; 0
  /// = never.
  int64_t check_replicas = 100;
  EvaluationConfig evaluation;
  EarlyStoppingConfig early_stopping;
  LogConfig log;
  GenerateConfig generate;
  TraceConfig trace;
  bool operator==(const TrainConfig&) const = default;
};

enum class AdapterType { kNone, kLora };
template <>
struct EnumNames<AdapterType> {
  static constexpr auto kNames = enum_names<AdapterType>({"none", "lora"});
};

/// AdapterConfig is the section adapter: PEFT's LoraConfig, with its names and defaults.
struct AdapterConfig {
  AdapterType type = AdapterType::kNone;
  /// The folder of an adapter in PEFT's layout from which training continues.
  std::string path;
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  /// Names of modules; if empty and without a pattern, q_proj and v_proj.
  std::vector<std::string> target_modules;
  /// PEFT's target_modules given as one text: a regular expression that matches whole paths.
  std::string target_pattern;
  std::vector<std::string> exclude_modules;
  std::string exclude_pattern;
  std::vector<int64_t> layers_to_transform;
  /// Regular expressions and the rank for each of them; the first match counts. These lists have
  /// the same length once the config is resolved, and so have the next two.
  std::vector<std::string> rank_pattern;
  std::vector<int64_t> rank_pattern_ranks;
  std::vector<std::string> alpha_pattern;
  std::vector<double> alpha_pattern_alphas;
  std::vector<std::string> modules_to_save;
  AdapterBias bias = AdapterBias::kNone;
  bool use_rslora = false;
  bool use_dora = false;
  LoraInit init_lora_weights = LoraInit::kUniform;
  bool operator==(const AdapterConfig&) const = default;
};

template <>
struct EnumNames<QuantizationType> {
  static constexpr auto kNames = enum_names<QuantizationType>({"none", "nf4", "int8"});
};

/// QuantizationConfig is the section quantization: how the frozen weight matrices of the blocks are
/// stored (base/quantized_format.h).
struct QuantizationConfig {
  QuantizationType type = QuantizationType::kNone;
  /// Says whether the scales of nf4 are quantized as well.
  bool double_quantization = true;
  int64_t block = 64;
  bool operator==(const QuantizationConfig&) const = default;
};

/// ParallelConfig is the section parallel: the degrees of the mesh, and how a pipeline runs.
struct ParallelConfig {
  /// The number of data-parallel ranks (replicas × shards); 0 only before the config is resolved.
  int64_t data = 0;
  /// The number of ranks that share each matrix, from either of the two keys that set it.
  int64_t tensor = 1;
  /// Says whether norms and residuals are split by tokens over the tensor ranks; no effect at
  /// tensor 1.
  bool sequence = true;
  /// The number of pipeline stages, from either of the two keys that set it.
  int64_t pipeline = 1;
  PipelineSchedule schedule = kDefaultSchedule;
  /// The number of model chunks of each stage; 0 only before the config is resolved.
  int64_t virtual_stages = 0;
  /// The number of decoder layers of each model chunk, in order; empty = divided by
  /// pipeline.partition.
  std::vector<int64_t> pipeline_layers;
  int64_t context = 1;
  int64_t expert = 1;
  /// The number of replicas among the data-parallel ranks; each replica is sharded over data /
  /// data_replicate ranks.
  int64_t data_replicate = 1;
  bool operator==(const ParallelConfig&) const = default;
};

/// ElasticConfig is the section elastic: the number of ranks with which a run may continue if some
/// ranks keep failing.
struct ElasticConfig {
  /// The minimum number of ranks; 0 = a run never continues with fewer.
  int64_t min_ranks = 0;
  bool operator==(const ElasticConfig&) const = default;
};

/// PartitionConfig is the section partition.
struct PartitionConfig {
  UnitGranularity unit = UnitGranularity::kLayer;
  bool operator==(const PartitionConfig&) const = default;
};

enum class TagValidation { kWarn, kIgnore, kFail };
template <>
struct EnumNames<TagValidation> {
  static constexpr auto kNames = enum_names<TagValidation>({"Warn", "Ignore", "Fail"});
};

enum class BusySavePolicy { kWait, kSkip };
template <>
struct EnumNames<BusySavePolicy> {
  static constexpr auto kNames = enum_names<BusySavePolicy>({"wait", "skip"});
};

enum class BestMode { kMin, kMax };
template <>
struct EnumNames<BestMode> {
  static constexpr auto kNames = enum_names<BestMode>({"min", "max"});
};

/// KeepBestConfig is the section checkpoint.keep_best.
struct KeepBestConfig {
  /// The metric by which a checkpoint is the best, "validation.loss"; "" = no best checkpoint is
  /// kept.
  std::string metric;
  BestMode mode = BestMode::kMin;
  bool operator==(const KeepBestConfig&) const = default;
};

/// CheckpointConfig is the section checkpoint: ftrun's keys, then DeepSpeed's.
struct CheckpointConfig {
  /// The number of optimizer steps between two checkpoints; 0 = at the end and on a signal only.
  int64_t every = 500;
  /// The number of minutes from one checkpoint to the next; 0 = only by steps.
  double every_minutes = 0;
  /// Says whether checkpoints are written while training continues.
  bool background = true;
  BusySavePolicy if_busy = BusySavePolicy::kWait;
  /// The number of newest checkpoints that are kept; 0 = all, and 1 is raised to 2.
  int64_t keep_last = 2;
  KeepBestConfig keep_best;
  TagValidation tag_validation = TagValidation::kWarn;
  bool load_universal = false;
  bool use_node_local_storage = false;
  bool operator==(const CheckpointConfig&) const = default;
};

enum class BackendChoice { kAuto, kGloo, kNccl };
template <>
struct EnumNames<BackendChoice> {
  static constexpr auto kNames = enum_names<BackendChoice>({"auto", "gloo", "nccl"});
};

/// CommConfig is the section comm.
struct CommConfig {
  BackendChoice backend = BackendChoice::kAuto;
  /// The longest wait for another rank in seconds; 0 = auto, computed from the slowest step so far.
  int64_t timeout = 0;
  /// Says whether sums among GPUs are computed in rank order and in fp32; on CPUs they always are.
  bool deterministic = false;
  bool operator==(const CommConfig&) const = default;
};

enum class ExportDtype { kAuto, kFp32, kFp16, kBf16 };
template <>
struct EnumNames<ExportDtype> {
  static constexpr auto kNames = enum_names<ExportDtype>({"auto", "fp32", "fp16", "bf16"});
};

enum class ExportedStep { kLast, kBest };
template <>
struct EnumNames<ExportedStep> {
  static constexpr auto kNames = enum_names<ExportedStep>({"last", "best"});
};

/// ExportConfig is the section export.
struct ExportConfig {
  bool enabled = true;
  /// The weights that are exported; kBest: those of checkpoint.keep_best.
  ExportedStep which = ExportedStep::kLast;
  /// The dtype of exported weights; kAuto: that of the model's own files.
  ExportDtype dtype = ExportDtype::kAuto;
  bool operator==(const ExportConfig&) const = default;
};

/// RecomputeConfig is the section recompute: which activations are recomputed in backward instead
/// of kept.
struct RecomputeConfig {
  RecomputeLevel policy = RecomputeLevel::kNone;
  /// The interval of recomputed layers: layers 0, every, 2 · every, ... are recomputed; 1 = all.
  int64_t every = 1;
  bool operator==(const RecomputeConfig&) const = default;
};

enum class DeviceKind { kCpu, kCuda };
template <>
struct EnumNames<DeviceKind> {
  static constexpr auto kNames = enum_names<DeviceKind>({"cpu", "cuda"});
};

/// MatmulChoice names the library that multiplies matrices on CPUs.
enum class MatmulChoice { kAuto, kMkl, kOneDnn, kOpenBlas };
template <>
struct EnumNames<MatmulChoice> {
  static constexpr auto kNames = enum_names<MatmulChoice>({"auto", "mkl", "onednn", "openblas"});
};

/// AttentionChoice specifies which kernels compute attention on GPUs, and whether a CPU's matrix
/// units do. kAuto chooses cuDNN on GPUs on which its attention was measured (is_cudnn_measured)
/// and ftrun's kernels on other GPUs. On Intel's CPUs it chooses the matrix units, where they were
/// measured (docs/benchmarks.md).
enum class AttentionChoice { kAuto, kOwn, kCudnn, kAmx };
template <>
struct EnumNames<AttentionChoice> {
  static constexpr auto kNames = enum_names<AttentionChoice>({"auto", "own", "cudnn", "amx"});
};

/// KernelsConfig is the section kernels.
struct KernelsConfig {
  MatmulChoice matmul = MatmulChoice::kAuto;
  AttentionChoice attention = AttentionChoice::kAuto;
  /// Says whether steps on a GPU are captured as CUDA graphs, once, and launched as a whole.
  bool step_graph = false;
  bool operator==(const KernelsConfig&) const = default;
};
/// Returns the library that a config pins; nothing if it is chosen by the CPU.
std::optional<MatmulLibrary> pinned_matmul_library(const KernelsConfig& config);
/// Returns whether a config wants attention to use a CPU's matrix units; nothing if the CPU
/// decides.
std::optional<bool> attention_on_matrix_units(const KernelsConfig& config);

/// Origin specifies where one key of a config was written.
struct Origin {
  Position at;
  /// Says whether the value was "auto" (or could not be read, which is a separate error).
  bool is_auto = false;
};

/// Origins specifies where each key was written, by its path ("zero_optimization.stage"). Origins
/// are ignored when configs are compared.
struct Origins {
  std::map<std::string, Origin> keys;
  /// Features of DeepSpeed that the config enables and that ftrun does not have.
  std::vector<UnsupportedRequest> unsupported;
  /// Says whether some source could not be read; a missing key then means nothing.
  bool is_incomplete = false;
  const Origin* find(const std::string& path) const;
  /// Returns whether the key was written, and not as "auto".
  bool is_written(const std::string& path) const;
  bool is_auto(const std::string& path) const;
  Position position(const std::string& path) const;
  bool operator==(const Origins&) const { return true; }
};

/// Config holds a value for every key. resolve() makes it from the written keys (WrittenConfig).
/// Code that needs another Config (an elastic restart, the comparison of kernels, `convert`)
/// changes a copy. Some values stay open, because a rank finds them out later, from the data file,
/// the CPU, the pair of ranks or the model's files: the choice "auto" of data.format,
/// data.token_dtype, comm.backend, kernels and export.dtype, and the length of a schedule
/// (LearningRateSchedule) if train.epochs determines the run's steps. LearningRateSchedule also
/// decides scheduler.params.timescale and num_stable_steps if they are not written.
struct Config {
  ModelSection model;
  AdapterConfig adapter;
  QuantizationConfig quantization;
  DataConfig data;
  TrainConfig train;
  ParallelConfig parallel;
  ElasticConfig elastic;
  PartitionConfig partition;
  CheckpointConfig checkpoint;
  CommConfig comm;
  ExportConfig model_export;
  std::string output_dir = "output";
  DeviceKind device = DeviceKind::kCpu;
  /// The number of threads of a rank; 0 = cores / local ranks.
  int64_t threads = 0;
  RecomputeConfig recompute;
  KernelsConfig kernels;

  // Batch sizes: train = micro × accumulation × data.
  int64_t train_batch_size = 0;
  int64_t train_micro_batch_size_per_gpu = 0;
  int64_t gradient_accumulation_steps = 0;

  /// The number of optimizer steps between two lines that are printed in DeepSpeed's form; 0 =
  /// never.
  int64_t steps_per_print = 0;
  /// The largest global L2 norm of the gradient; 0 = no clipping.
  double gradient_clipping = 1.0;
  bool wall_clock_breakdown = false;
  /// The lowest level of the lines that go to the terminal; a rank's log holds all levels.
  LogLevel log_level = LogLevel::kInfo;

  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  Fp16Config fp16;
  Bf16Config bf16;
  DataTypesConfig data_types;
  ReductionConfig reduction;
  ZeroConfig zero;
  ActivationCheckpointingConfig activation_checkpointing;
  AioConfig aio;
  CsvMonitorConfig csv_monitor;
  WandbConfig wandb;
  ElasticityConfig elasticity;
  TensorParallelConfig tensor_parallel;
  PipelineConfig pipeline;
  int64_t sequence_parallel_size = 1;

  Origins origins;
  /// The keys that are "auto" (Field::decides_auto): no source sets them, and no rule has decided
  /// them for good. Those left after resolve() stay "auto" in the effective config, so that a later
  /// start, perhaps on another machine, decides them again.
  std::set<std::string> auto_keys;
  bool operator==(const Config&) const = default;
};

/// Returns the dtype of the parameters that forward and backward use: kFp16, kBf16 or kFp32.
ConfigDtype training_dtype(const Config& config);
/// Returns the dtype in which gradients are accumulated; if the config says kModel, the training
/// dtype.
ConfigDtype gradient_dtype(const Config& config);
/// Returns the dtype in which gradients are reduced; if the config says kModel, the gradient dtype.
ConfigDtype communication_dtype(const Config& config);
/// Returns the dtype of the weights that the optimizer updates: kFp32 or kBf16. If it is not the
/// training dtype, they are master weights, kept beside those that forward and backward use.
ConfigDtype master_dtype(const Config& config);
/// Returns the folder of the disk tier, which optimizer state and parameters share
/// (config/unsupported refuses two folders).
const std::string& disk_folder(const ZeroConfig& zero);

}  // namespace ftrun
