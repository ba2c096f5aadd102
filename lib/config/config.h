#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "axes/pipeline/names.h"
#include "base/adapter_choices.h"
#include "base/data_format.h"
#include "base/enum_names.h"
#include "base/product_library.h"
#include "base/recompute_level.h"
#include "base/sequence_packing.h"
#include "base/unit_granularity.h"
#include "config/deepspeed_config.h"
#include "config/problem.h"

namespace ftrun {

// ftrun's own sections. Every key, its range and its meaning for a user are in docs/config.md,
// which is generated from the same table that reads it (config/schema.h).

/// PaddingRowGradient says which gradient the embedding's row of pad_token_id gets from the tokens
/// that are read: the gradient of any row, or none as in transformers (section model).
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
  /// The weight of each entry of train, when they are data sets that are mixed; empty: one stream,
  /// in order.
  std::vector<double> train_weights;
  std::vector<std::string> validation;
  /// The name of the set of each entry of validation, if there are several sets.
  std::vector<std::string> validation_names;
  /// The number of tokens of a row.
  int64_t sequence_length = 1024;
  SequencePacking packing = SequencePacking::kConcat;
  DataFormat format = DataFormat::kAuto;
  TokenDtype token_dtype = TokenDtype::kAuto;
  bool shuffle = true;
  /// The number of optimizer steps whose batches are prepared ahead of the current one.
  int64_t prefetch = 4;
  /// Rows that do not fill a whole global batch at the end of an epoch are left out.
  bool drop_last = false;
  bool operator==(const DataConfig&) const = default;
};

/// EvaluationConfig is the section train.evaluation.
struct EvaluationConfig {
  /// The number of optimizer steps between two validations; 0 = only before the first and after the
  /// last step.
  int64_t every = 0;
  /// The number of minutes after the last validation at which there is another; 0 = only by steps.
  double every_minutes = 0;
  /// The number of sequences of the validation set that are used; 0 = all.
  int64_t samples = 64;
  bool operator==(const EvaluationConfig&) const = default;
};

/// EarlyStoppingConfig is the section train.early_stopping.
struct EarlyStoppingConfig {
  /// The metric that must improve, "validation.loss"; "" = the run continues to its last step.
  std::string metric;
  /// The number of evaluations without improvement after which the run ends.
  int64_t patience = 3;
  /// The difference that an improvement exceeds.
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
  /// The number of tokens of a validation document that the model continues at each evaluation and
  /// at the end; 0 = no text.
  int64_t prompt_tokens = 0;
  /// The number of documents of the validation set that are continued at each evaluation.
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

/// DecayExempt lists the parameters that have no weight decay.
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
  /// The optimizer's learning rate and weight decay, and the scheduler's warm-up.
  double learning_rate = 5e-5;
  double weight_decay = 0.0;
  int64_t warmup_steps = 0;
  /// Regular expressions of names of parameters that do not train, or that are the only ones to
  /// train.
  std::vector<std::string> freeze;
  std::vector<std::string> only;
  DecayExempt weight_decay_exempt = DecayExempt::kNormsAndBiases;
  /// The number of consecutive steps with a loss or gradient that is not finite after which the run
  /// stops (exit 7).
  int64_t max_nonfinite_steps = 20;
  /// The number of steps between two comparisons of the state of which several ranks hold copies; 0
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
  /// Names of modules; empty without a pattern: q_proj and v_proj.
  std::vector<std::string> target_modules;
  /// PEFT's target_modules as one text: a regular expression of whole paths.
  std::string target_pattern;
  std::vector<std::string> exclude_modules;
  std::string exclude_pattern;
  std::vector<int64_t> layers_to_transform;
  /// Regular expressions, and the rank of each; the first match counts.
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

enum class QuantizationType { kNone, kNf4, kInt8 };
template <>
struct EnumNames<QuantizationType> {
  static constexpr auto kNames = enum_names<QuantizationType>({"none", "nf4", "int8"});
};

/// QuantizationConfig is the section quantization: how the frozen weight matrices of the blocks are
/// stored; PackedFormat defines the terms.
struct QuantizationConfig {
  QuantizationType type = QuantizationType::kNone;
  /// The scales of nf4 are quantized too.
  bool double_quantization = true;
  int64_t block = 64;
  bool operator==(const QuantizationConfig&) const = default;
};

/// ParallelConfig is the section parallel: the degrees of the mesh, and how a pipeline runs.
struct ParallelConfig {
  /// The number of data-parallel ranks (replicas × shards); 0 only before the config is resolved.
  int64_t data = 0;
  /// The number of ranks that share each matrix, whichever of its names the config uses.
  int64_t tensor = 1;
  /// Norms and residuals are split by tokens over the tensor ranks; no effect at tensor 1.
  bool sequence = true;
  /// The number of pipeline stages, whichever of its names the config uses.
  int64_t pipeline = 1;
  PipelineSchedule schedule = kDefaultSchedule;
  /// The number of parts of the model that each stage has; 0 only before the config is resolved.
  int64_t virtual_stages = 0;
  /// The number of blocks of each part, in order; empty = cut by pipeline.partition.
  std::vector<int64_t> pipeline_layers;
  int64_t context = 1;
  int64_t expert = 1;
  /// The number of replicas among the data-parallel ranks; each replica is sharded over data /
  /// data_replicate ranks.
  int64_t data_replicate = 1;
  bool operator==(const ParallelConfig&) const = default;
};

/// ElasticConfig is the section elastic: the number of ranks with which a run may continue when
/// some keep failing.
struct ElasticConfig {
  /// The fewest ranks; 0 = a run never continues with fewer.
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

enum class IfBusy { kWait, kSkip };
template <>
struct EnumNames<IfBusy> {
  static constexpr auto kNames = enum_names<IfBusy>({"wait", "skip"});
};

enum class BestMode { kMin, kMax };
template <>
struct EnumNames<BestMode> {
  static constexpr auto kNames = enum_names<BestMode>({"min", "max"});
};

/// KeepBestConfig is the section checkpoint.keep_best.
struct KeepBestConfig {
  /// The metric by which a checkpoint is best, "validation.loss"; "" = none is kept.
  std::string metric;
  BestMode mode = BestMode::kMin;
  bool operator==(const KeepBestConfig&) const = default;
};

/// CheckpointConfig is the section checkpoint: ftrun's keys, then DeepSpeed's.
struct CheckpointConfig {
  /// The number of optimizer steps between two checkpoints; 0 = at the end and on a signal only.
  int64_t every = 500;
  /// The number of minutes after the last checkpoint at which another is due; 0 = only by steps.
  double every_minutes = 0;
  /// Checkpoints are written while training continues.
  bool background = true;
  IfBusy if_busy = IfBusy::kWait;
  /// The number of newest checkpoints that are kept; 0 = all.
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
  /// The most seconds of a wait for another rank; 0 = auto, from the slowest step seen.
  int64_t timeout = 0;
  /// Sums among GPUs are computed in rank order and in fp32; those on hosts always are.
  bool deterministic = false;
  bool operator==(const CommConfig&) const = default;
};

enum class ExportDtype { kAuto, kFp32, kFp16, kBf16 };
template <>
struct EnumNames<ExportDtype> {
  static constexpr auto kNames = enum_names<ExportDtype>({"auto", "fp32", "fp16", "bf16"});
};

enum class ExportWhich { kLast, kBest };
template <>
struct EnumNames<ExportWhich> {
  static constexpr auto kNames = enum_names<ExportWhich>({"last", "best"});
};

/// ExportConfig is the section export.
struct ExportConfig {
  bool enabled = true;
  /// The weights that are exported; kBest: those of checkpoint.keep_best.
  ExportWhich which = ExportWhich::kLast;
  /// The dtype of exported weights; kAuto: as the model's own files.
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

/// ProductChoice names the library that multiplies matrices on processors.
enum class ProductChoice { kAuto, kMkl, kOneDnn, kOpenBlas };
template <>
struct EnumNames<ProductChoice> {
  static constexpr auto kNames = enum_names<ProductChoice>({"auto", "mkl", "onednn", "openblas"});
};

/// AttentionChoice says which kernels compute attention on GPUs, or which units of a processor do.
/// kAuto is cuDNN on GPUs where its attention was measured (cudnn_is_measured), our kernels on
/// other GPUs, and no matrix units of processors, because our code for them has not run on any yet.
enum class AttentionChoice { kAuto, kOwn, kCudnn, kAmx };
template <>
struct EnumNames<AttentionChoice> {
  static constexpr auto kNames = enum_names<AttentionChoice>({"auto", "own", "cudnn", "amx"});
};

/// KernelsConfig is the section kernels.
struct KernelsConfig {
  ProductChoice products = ProductChoice::kAuto;
  AttentionChoice attention = AttentionChoice::kAuto;
  /// Steps on a GPU are recorded once and started as a whole.
  bool step_graph = false;
  bool operator==(const KernelsConfig&) const = default;
};
/// Returns the library that a config pins; nothing where the processor decides.
std::optional<ProductLibrary> pinned_products(const KernelsConfig& config);

/// Origin says where one key of a config was written.
struct Origin {
  Position at;
  /// The value was "auto" (or could not be read, which is an error of its own).
  bool is_auto = false;
};

/// Origins says where each key was written, by its path ("zero_optimization.stage"). Origins do not
/// count when configs are compared.
struct Origins {
  std::map<std::string, Origin> keys;
  /// Features of DeepSpeed that were switched on and that ftrun lacks.
  std::vector<NotYet> foreign;
  /// A source could not be read, so a missing key says nothing.
  bool partial = false;
  const Origin* find(const std::string& path) const;
  /// Returns whether the key was written, and not as "auto".
  bool is_written(const std::string& path) const;
  bool is_auto(const std::string& path) const;
  Position position(const std::string& path) const;
  bool operator==(const Origins&) const { return true; }
};

/// Config holds a value for every key. resolve() makes it from the written keys (WrittenConfig),
/// and nothing else changes it. Some values are the choice "auto", whose object (a data file, a
/// processor, a pair of ranks, the model's files) decides it later.
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

  /// The number of optimizer steps between two printed lines of DeepSpeed's kind; 0 = never.
  int64_t steps_per_print = 0;
  /// The largest global L2 norm of the gradient; 0 = no clipping.
  double gradient_clipping = 1.0;
  bool wall_clock_breakdown = false;
  std::string log_level;

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
  /// Keys that were decided here and stay "auto" in the effective config, so that a later start,
  /// perhaps on another machine, decides them again.
  std::set<std::string> left_auto;
  bool operator==(const Config&) const = default;
};

/// Returns the dtype of the parameters that forward and backward use: kFp16, kBf16 or kFp32.
ConfigDtype training_dtype(const Config& config);
/// Returns the dtype in which gradients are accumulated; kModel in the config stands for the
/// training dtype.
ConfigDtype gradient_dtype(const Config& config);
/// Returns the dtype in which gradients are reduced; kModel in the config stands for the gradient
/// dtype.
ConfigDtype communication_dtype(const Config& config);
/// Returns the folder of the disk tier, which optimizer state and parameters share
/// (config/capability refuses two folders).
const std::string& disk_folder(const ZeroConfig& zero);

}  // namespace ftrun
