#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "config/scheduler_types.h"
#include "optimizers/optimizer_config.h"

namespace ftrun {

// This file has the sections whose keys are DeepSpeed's. Field names are the keys; defaults are
// those of DeepSpeed's source. "Resolved" says which value resolve() chooses for a key that no
// source sets.

enum class OffloadDevice { kNone, kCpu, kNvme };
template <>
struct EnumNames<OffloadDevice> {
  static constexpr auto kNames = enum_names<OffloadDevice>({"none", "cpu", "nvme"});
};

/// OffloadParamConfig is the section zero_optimization.offload_param.
struct OffloadParamConfig {
  OffloadDevice device = OffloadDevice::kNone;
  std::string nvme_path;
  int64_t buffer_count = 5;
  int64_t buffer_size = 100'000'000;   // elements
  int64_t max_in_cpu = 1'000'000'000;  // elements
  bool pin_memory = true;
  bool operator==(const OffloadParamConfig&) const = default;
};

/// OffloadOptimizerConfig is the section zero_optimization.offload_optimizer.
struct OffloadOptimizerConfig {
  OffloadDevice device = OffloadDevice::kNone;
  std::string nvme_path;
  int64_t buffer_count = 4;
  bool pin_memory = true;
  bool pipeline_read = false;
  bool pipeline_write = false;
  bool fast_init = false;
  double ratio = 1.0;
  bool operator==(const OffloadOptimizerConfig&) const = default;
};

/// ZeroConfig is the section zero_optimization. Sizes are counted in elements, not bytes.
struct ZeroConfig {
  int64_t stage = 0;
  bool contiguous_gradients = true;
  /// Says whether gradients of stage 1 are reduce-scattered; otherwise they are all-reduced.
  bool reduce_scatter = true;
  int64_t reduce_bucket_size = 500'000'000;
  bool allgather_partitions = true;
  int64_t allgather_bucket_size = 500'000'000;
  /// Resolved: true at stage 3 and false at other stages.
  bool overlap_comm = false;
  bool load_from_fp32_weights = true;
  int64_t sub_group_size = 1'000'000'000;
  int64_t prefetch_bucket_size = 50'000'000;
  int64_t param_persistence_threshold = 100'000;
  int64_t model_persistence_threshold = INT64_MAX;
  int64_t max_live_parameters = 1'000'000'000;
  /// The key stage3_max_reuse_distance. DeepSpeed's default is 1e9, which keeps all parameters of a
  /// small model gathered; ftrun's default is 0.
  int64_t max_reuse_distance = 0;
  bool gather_16bit_weights_on_model_save = false;
  bool ignore_unused_parameters = true;
  bool round_robin_gradients = false;
  /// The number of ranks that share secondary shards (ZeRO++ hpZ, stage 3); 0 and 1 = none.
  int64_t hpz_partition_size = 1;
  /// The number of ranks in a shard group (MiCS, stage 3), from which parallel.data_replicate is
  /// resolved.
  int64_t mics_shard_size = -1;
  OffloadParamConfig offload_param;
  OffloadOptimizerConfig offload_optimizer;
  bool operator==(const ZeroConfig&) const = default;
};

/// ActivationCheckpointingConfig is the section activation_checkpointing: where the inputs of
/// recomputed layers are kept.
struct ActivationCheckpointingConfig {
  /// Says whether the inputs of recomputed layers are kept in main memory until backward.
  bool cpu_checkpointing = false;
  bool operator==(const ActivationCheckpointingConfig&) const = default;
};

/// AioConfig is the section aio: asynchronous disk access of the NVMe tier.
struct AioConfig {
  int64_t block_size = 1'048'576;    // bytes of one request
  int64_t queue_depth = 8;           // requests in flight, of each thread
  int64_t intra_op_parallelism = 1;  // threads that share one transfer
  /// Says whether requests are submitted to the kernel one by one instead of in batches.
  bool single_submit = false;
  /// Says whether requests are submitted while others complete.
  bool overlap_events = true;
  bool operator==(const AioConfig&) const = default;
};

/// Fp16Config is the section fp16.
struct Fp16Config {
  bool enabled = false;
  bool auto_cast = false;
  /// The loss scale: 0 is a dynamic scale, above 0 a static one.
  double loss_scale = 0;
  /// The exponent of the power of 2 at which the dynamic scale starts.
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;  // steps
  int64_t hysteresis = 2;            // overflows
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  bool operator==(const Fp16Config&) const = default;
};

/// Bf16Config is the section bf16.
struct Bf16Config {
  bool enabled = false;
  bool check_grad_overflow = true;
  /// Says whether master weights are bf16, rounded stochastically, instead of fp32 (stages 1 to 3).
  bool bf16_master_weights_and_grads = false;
  /// Says whether moments are bf16, rounded stochastically, instead of fp32.
  bool bf16_optimizer_states = false;
  bool operator==(const Bf16Config&) const = default;
};

/// ConfigDtype is a dtype of a DeepSpeed key; kModel is the dtype that the model trains in.
enum class ConfigDtype { kModel, kFp32, kFp16, kBf16 };
template <>
struct EnumNames<ConfigDtype> {
  static constexpr auto kNames = enum_names<ConfigDtype>({"model", "fp32", "fp16", "bf16"});
};

/// DataTypesConfig is the section data_types.
struct DataTypesConfig {
  ConfigDtype grad_accum_dtype = ConfigDtype::kModel;
  ConfigDtype param_dtype = ConfigDtype::kModel;
  bool operator==(const DataTypesConfig&) const = default;
};

enum class AllreduceOp { kMean, kSum };
template <>
struct EnumNames<AllreduceOp> {
  static constexpr auto kNames = enum_names<AllreduceOp>({"mean", "sum"});
};

/// ReductionConfig describes how gradients of the data-parallel ranks are summed (top-level keys).
struct ReductionConfig {
  ConfigDtype communication_data_type = ConfigDtype::kModel;
  AllreduceOp gradient_allreduce_op = AllreduceOp::kMean;
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  bool operator==(const ReductionConfig&) const = default;
};

enum class WarmupShape { kLog, kLinear, kCosine, kOneMinusSqrt };
template <>
struct EnumNames<WarmupShape> {
  static constexpr auto kNames = enum_names<WarmupShape>({"log", "linear", "cosine", "1-sqrt"});
};

enum class DecayShape { kCosine, kLinear, kOneMinusSqrt };
template <>
struct EnumNames<DecayShape> {
  static constexpr auto kNames = enum_names<DecayShape>({"cosine", "linear", "1-sqrt"});
};

/// SchedulerConfig is the section scheduler. Steps are optimizer steps. Values that a type does not
/// use keep their defaults.
struct SchedulerConfig {
  SchedulerType type = SchedulerType::kConstant;
  double warmup_min_lr = 0.0;
  /// Resolved: the optimizer's lr (WarmupLR) or 0.001 (WarmupDecayLR).
  double warmup_max_lr = 0.001;
  /// Resolved: 1000 for DeepSpeed's types, 0 for transformers'.
  int64_t warmup_num_steps = 0;
  /// Resolved: linear for warmup_stable_decay, log for DeepSpeed's types.
  WarmupShape warmup_type = WarmupShape::kLog;
  /// Resolved: the run's number of steps; 0 = not known before the data.
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0.0;  // WarmupCosineLR, of the optimizer's lr
  double cos_min_ratio = 1e-4;    // WarmupCosineLR, of the optimizer's lr
  double min_lr = 0.0;            // linear, cosine, cosine_with_min_lr: the final rate
  double min_lr_rate = 0.0;       // cosine_with_min_lr, of the optimizer's lr
  /// The number of waves of the cosine. Resolved: 1 for cosine_with_restarts, else 0.5.
  double num_cycles = 0.5;
  double lr_end = 1e-7;  // polynomial, from here
  double power = 1.0;
  int64_t timescale = 0;          // inverse_sqrt; 0 = the warm-up's steps, or 10,000 without one
  int64_t num_decay_steps = 0;    // warmup_stable_decay, from here
  int64_t num_stable_steps = -1;  // -1 = what warm-up and decay leave of total_num_steps
  DecayShape decay_type = DecayShape::kCosine;
  double min_lr_ratio = 0.0;  // of the optimizer's lr
  double cycle_min_lr = 0.0;  // OneCycle, from here
  double cycle_max_lr = 0.0;
  double decay_lr_rate = 0.0;
  int64_t cycle_first_step_size = 2000;
  /// Resolved: the size of the first half.
  int64_t cycle_second_step_size = 2000;
  int64_t cycle_first_stair_count = 0;
  int64_t cycle_second_stair_count = 0;
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0.0;
  double lr_range_test_min_lr = 1e-3;  // LRRangeTest, from here
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;
  bool operator==(const SchedulerConfig&) const = default;
};

/// CsvMonitorConfig is the section csv_monitor.
struct CsvMonitorConfig {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
  bool operator==(const CsvMonitorConfig&) const = default;
};

/// WandbConfig is the section wandb.
struct WandbConfig {
  bool enabled = false;
  std::string group;
  std::string team;
  std::string project = "deepspeed";
  bool operator==(const WandbConfig&) const = default;
};

/// TensorParallelConfig is the section tensor_parallel: DeepSpeed's AutoTP.
struct TensorParallelConfig {
  /// DeepSpeed's name of parallel.tensor; 0 and 1 mean that it is not set.
  int64_t autotp_size = 0;
  bool operator==(const TensorParallelConfig&) const = default;
};

/// PipelineConfig is the section pipeline: DeepSpeed's pipeline engine.
struct PipelineConfig {
  /// DeepSpeed's name of parallel.pipeline; 0 and 1 mean that it is not set.
  int64_t stages = 0;
  /// The quantity by which the model is divided; axes/pipeline/keys.h reads it.
  std::string partition = "best";
  bool operator==(const PipelineConfig&) const = default;
};

/// ElasticityConfig is the section elasticity. It also allows a run to continue without failed
/// ranks, down to min_gpus (config/elastic.h).
struct ElasticityConfig {
  bool enabled = false;
  int64_t max_train_batch_size = 2000;
  std::vector<int64_t> micro_batch_sizes{2, 4, 6};
  int64_t min_gpus = 1;
  int64_t max_gpus = 10000;
  int64_t min_time = 0;  // minutes
  double version = 0.2;
  bool prefer_larger_batch = true;
  bool ignore_non_elastic_batch_info = false;
  int64_t model_parallel_size = 1;
  int64_t num_gpus_per_node = 1;
  bool operator==(const ElasticityConfig&) const = default;
};

}  // namespace ftrun
