#include "config/schema_tables.h"

namespace ftrun {
namespace {
// The meaning in ftrun of FSDP's words for sharding inside a machine.
constexpr auto kHybrid3 =
    "write stage: 3 and parallel.data_replicate: the number of replicas (machines)";
constexpr auto kHybrid2 =
    "write stage: 2 and parallel.data_replicate: the number of replicas (machines)";
}  // namespace

void declare_deepspeed_top(Schema& s) {
  auto top = top_level(s, kDs);
  top.key("train_batch_size", &Config::train_batch_size,
          "Sequences of an optimizer step: micro-batch × accumulation × data-parallel ranks.")
      .at_least(1)
      .in_unit("sequences")
      .unset_is_zero()
      .defaults_to("from the other two");
  top.key("train_micro_batch_size_per_gpu", &Config::train_micro_batch_size_per_gpu,
          "Sequences of one forward and backward on one data-parallel rank.")
      .at_least(1)
      .in_unit("sequences")
      .unset_is_zero()
      .defaults_to("from the other two")
      .may_change();
  top.key("gradient_accumulation_steps", &Config::gradient_accumulation_steps,
          "Micro-batches of an optimizer step on one data-parallel rank.")
      .at_least(1)
      .in_unit("micro-batches")
      .unset_is_zero()
      .defaults_to("from the other two, else 1")
      .may_change();
  top.key("steps_per_print", &Config::steps_per_print,
          "Steps between DeepSpeed's own lines (step, skipped, lr, mom) on rank 0; 0 = never.")
      .at_least(0)
      .in_unit("steps")
      .or_null()
      .may_change();
  top.key("gradient_clipping", &Config::gradient_clipping,
          "Largest global L2 norm of the gradient; 0 = no clipping. (DeepSpeed before 0.19.3: 0.)")
      .at_least(0);
  top.key("wall_clock_breakdown", &Config::wall_clock_breakdown,
          "Print the time of forward, backward and step.")
      .may_change();
  top.key("log_level", &Config::log_level,
          "Lowest level of the lines on the terminal; a rank's log holds all levels.")
      .synonym("", "info")
      .synonym("warn", "warning")
      .synonym("critical", "error")
      .or_null()
      .may_change();
  top.key("sequence_parallel_size", &Config::sequence_parallel_size,
          "Ranks that share each sequence (Ulysses); parallel.context is ftrun's key.")
      .at_least(1)
      .in_unit("ranks")
      .may_change();

  const auto reduction = [](auto& c) -> auto& {
    return c.reduction;
  };
  auto reduce = top_level(s, kDs, reduction);
  reduce
      .key("communication_data_type", &ReductionConfig::communication_data_type,
           "dtype in which gradients are reduced; model: the dtype in which they are accumulated.")
      .in_any_case()
      .or_null();
  reduce
      .key("gradient_allreduce_op", &ReductionConfig::gradient_allreduce_op,
           "Reduction over the data-parallel ranks: mean or sum.")
      .in_any_case();
  reduce.key("prescale_gradients", &ReductionConfig::prescale_gradients,
             "Divide gradients by the number of data-parallel ranks before the reduction instead "
             "of after it.");
  reduce
      .key("gradient_predivide_factor", &ReductionConfig::gradient_predivide_factor,
           "Divide gradients by this factor before the reduction, and by data-parallel ranks / "
           "factor after it.")
      .greater_than(0);
  auto data = top_level(
      s, kDs, [](auto& c) -> auto& { return c.data; });
  data.key("dataloader_drop_last", &DataConfig::drop_last,
           "Drop sequences that do not fill a global batch at the end of an epoch.");

  top.checked_choice("seq_parallel_communication_data_type", {"fp32", "fp16", "bf16"},
                     "dtype of Ulysses' gradient reduction.")
      .in_any_case()
      .or_null();
  top.checked_only<bool>("managed_gradient_accumulation", true,
                         "false: the caller sets the boundaries of accumulation.")
      .refuse_unless_default();
  top.checked_only<bool>("sparse_gradients", false, "Sparse gradients of embeddings.")
      .refuse_unless_default();
  top.checked_only<int64_t>("data_parallel_size", 1,
                            "The mesh of DeepSpeed's AutoSP; use parallel.data.")
      .at_least(1)
      .refuse_above(1);
  top.checked_only<bool>("disable_allgather", false, "DeepSpeed does not read this key.");
  top.checked_only<bool>(
      "zero_allow_untested_optimizer", false,
      "Allows optimizers that DeepSpeed has not tested with ZeRO; every optimizer of "
      "ftrun is tested.");
  top.checked_only<bool>("zero_force_ds_cpu_optimizer", true,
                         "Concerns optimizers made in Python.");
  top.checked_only<bool>("memory_breakdown", false, "Prints the memory of each step.");
  top.checked_only<bool>("dump_state", false, "Prints the engine's state.");
  top.checked_only<int64_t>("vocabulary_size", 0,
                            "DeepSpeed only warns if the vocabulary does not suit tensor cores.")
      .or_null();
  top.checked_only<bool>("graph_harvesting", false,
                         "Captures steps as CUDA graphs; kernels.step_graph is ftrun's key.");
  top.checked_only<bool>("use_data_before_expert_parallelism", false, "Order of expert ranks.");
  top.checked_only<int64_t>("allgather_size", 500'000'000,
                            "Bucket size of the deprecated form zero_optimization: true.")
      .at_least(0);
  top.checked_only<bool>("fp32_allreduce", false,
                         "Removed from DeepSpeed; use communication_data_type: fp32.");
  top.any_value("seed", "DeepSpeed has no such key; ftrun's is train.seed.");
}

void declare_precision(Schema& s) {
  auto fp16 = section(
      s, {.path = "fp16", .doc = "Training in fp16 with loss scaling.", .origin = kDs},
      [](auto& c) -> auto& { return c.fp16; });
  fp16.key("enabled", &Fp16Config::enabled, "Train in fp16.");
  fp16.key("auto_cast", &Fp16Config::auto_cast, "Cast float inputs to fp16.").notice();
  fp16.key("loss_scale", &Fp16Config::loss_scale,
           "0 = a dynamic scale, above 0 = a static one. ftrun divides the loss by the counted "
           "tokens of the global batch before backward, so a rank's gradients are scaled by "
           "loss_scale / data-parallel ranks (by loss_scale / gradient_predivide_factor if that is "
           "set and prescale_gradients is off). DeepSpeed's gradients are scaled by loss_scale "
           "until they are averaged; for the same gradients in memory, multiply the static scale "
           "of its files by the number of ranks. The optimizer gets the same gradients from both.")
      .at_least(0);
  fp16.key("initial_scale_power", &Fp16Config::initial_scale_power,
           "The dynamic scale starts at 2 ^ initial_scale_power.")
      .range(0, 1000);
  fp16.key("loss_scale_window", &Fp16Config::loss_scale_window,
           "Steps without overflow before the scale is doubled.")
      .in_unit("steps");
  fp16.key("hysteresis", &Fp16Config::hysteresis, "Overflows before the scale is halved.")
      .in_unit("overflows");
  fp16.key("consecutive_hysteresis", &Fp16Config::consecutive_hysteresis,
           "Refill the hysteresis at every step without overflow.");
  fp16.key("min_loss_scale", &Fp16Config::min_loss_scale, "Least value of the dynamic scale.");
  fp16.checked_only<bool>("fp16_master_weights_and_grads", false,
                          "fp16 master weights: fewer bytes, other numbers.")
      .refuse_unless_default();

  auto bf16 = section(
      s, {.path = "bf16", .doc = "Training in bf16.", .origin = kDs, .nullable = true},
      [](auto& c) -> auto& { return c.bf16; });
  bf16.key("enabled", &Bf16Config::enabled,
           "Train in bf16 (master weights stay fp32). auto: on GPUs, unless fp16 is enabled.");
  bf16.key("check_grad_overflow", &Bf16Config::check_grad_overflow,
           "Skip the update of a step whose loss or gradient is not finite.")
      .notice("always done; train.max_nonfinite_steps limits such steps in a row");
  bf16.checked_only<bool>("immediate_grad_update", false, "Order of gradient updates.");
  bf16.key("bf16_master_weights_and_grads", &Bf16Config::bf16_master_weights_and_grads,
           "Master weights and gradients in bf16 (stages 1 to 3): fewer bytes, other numbers; "
           "rounded stochastically.")
      .may_change();
  bf16.key("bf16_optimizer_states", &Bf16Config::bf16_optimizer_states,
           "Moments in bf16: fewer bytes, other numbers; rounded stochastically.")
      .may_change();

  auto types = section(
      s, {.path = "data_types", .doc = "dtypes that may differ from the model's.", .origin = kDs},
      [](auto& c) -> auto& { return c.data_types; });
  types
      .key("grad_accum_dtype", &DataTypesConfig::grad_accum_dtype,
           "dtype in which gradients are accumulated: fp32, or the dtype of training (model).")
      .or_null();
  types
      .key("param_dtype", &DataTypesConfig::param_dtype,
           "dtype of parameters; must be that of fp16 or bf16.")
      .or_null();
  types.any_value("buffer_dtype", "dtype of buffers.");
}

namespace {

void declare_zero_keys(KeyRows<ZeroConfig>& zero) {
  zero.key("stage", &ZeroConfig::stage,
           "State that is sharded. 0: none. 1: optimizer state. 2: also gradients. 3: also "
           "parameters. FSDP's names are also accepted.")
      .range(0, 3)
      .word("NO_SHARD", 0)
      .word("SHARD_GRAD_OP", 2)
      .word("FULL_SHARD", 3)
      .refused_word("HYBRID_SHARD", kHybrid3)
      .refused_word("_HYBRID_SHARD_ZERO2", kHybrid2)
      .refused_word("HYBRID_SHARD_ZERO2", kHybrid2)
      .alias("sharding_strategy");
  zero.key("reduce_bucket_size", &ZeroConfig::reduce_bucket_size, "Bucket of gradient reductions.")
      .at_least(0)
      .in_unit("elements");
  zero.key("allgather_bucket_size", &ZeroConfig::allgather_bucket_size,
           "Bucket of parameter all-gathers (stages 1 and 2); even.")
      .at_least(0)
      .in_unit("elements");
  zero.key("overlap_comm", &ZeroConfig::overlap_comm, "Communicate while computing.")
      .or_null()
      .defaults_to("true at stage 3, else false");
  zero.key("contiguous_gradients", &ZeroConfig::contiguous_gradients,
           "Gradients are stored in flat buffers; ftrun always does so, with one for each unit.")
      .notice();
  zero.key("reduce_scatter", &ZeroConfig::reduce_scatter,
           "Gradients of stage 1: reduce-scatter instead of all-reduce.");
  zero.key("allgather_partitions", &ZeroConfig::allgather_partitions,
           "All-gather instead of broadcasts.")
      .notice();
  zero.key("load_from_fp32_weights", &ZeroConfig::load_from_fp32_weights,
           "Load master weights from a checkpoint's fp32 weights, not from its 16-bit weights.")
      .notice("checkpoints contain the optimizer's own weights, and a resumed run loads those");
  zero.key("sub_group_size", &ZeroConfig::sub_group_size, "Tile of the stage-3 update.")
      .at_least(0)
      .in_unit("elements")
      .notice();
  zero.key("prefetch_bucket_size", &ZeroConfig::prefetch_bucket_size,
           "Parameters gathered ahead of their use (stage 3).")
      .at_least(0)
      .in_unit("elements")
      .alias("stage3_prefetch_bucket_size");
  zero.key("param_persistence_threshold", &ZeroConfig::param_persistence_threshold,
           "Parameters smaller than this stay whole on each rank (stage 3).")
      .at_least(0)
      .in_unit("elements")
      .alias("stage3_param_persistence_threshold");
  zero.key("model_persistence_threshold", &ZeroConfig::model_persistence_threshold,
           "Most elements of all parameters that stay whole (stage 3).")
      .at_least(0)
      .in_unit("elements")
      .alias("stage3_model_persistence_threshold");
  zero.key("max_live_parameters", &ZeroConfig::max_live_parameters,
           "Most elements of gathered parameters in memory at a time (stage 3).")
      .at_least(0)
      .in_unit("elements")
      .alias("stage3_max_live_parameters");
  zero.key("max_reuse_distance", &ZeroConfig::max_reuse_distance,
           "Gathered parameters that are used again within this many elements are not released "
           "(stage 3). (DeepSpeed: 1e9.)")
      .at_least(0)
      .in_unit("elements")
      .alias("stage3_max_reuse_distance");
  zero.key("gather_16bit_weights_on_model_save", &ZeroConfig::gather_16bit_weights_on_model_save,
           "Write whole 16-bit weights at stage 3.")
      .alias("stage3_gather_16bit_weights_on_model_save")
      .notice("export.enabled and export.dtype decide, at every stage");
  zero.key("ignore_unused_parameters", &ZeroConfig::ignore_unused_parameters,
           "false: a parameter without gradient is an error.")
      .notice("every parameter that trains has a gradient");
  zero.key("round_robin_gradients", &ZeroConfig::round_robin_gradients,
           "Order of gradients inside shards.")
      .notice();
  zero.key("zero_hpz_partition_size", &ZeroConfig::hpz_partition_size,
           "Data-parallel ranks of a node that together keep a second copy of the weights (ZeRO++ "
           "hpZ, stage 3). The first gather of a step reads from all ranks, all others from this "
           "copy. A node is zero_hpz_partition_size × tensor consecutive ranks; a divisor of the "
           "ranks of a machine keeps it inside the machine. 0 and 1 = none.")
      .at_least(0)
      .in_unit("ranks");
  zero.key("mics_shard_size", &ZeroConfig::mics_shard_size,
           "Data-parallel ranks of a shard group (MiCS, stage 3); it sets parallel.data_replicate "
           "to data / mics_shard_size.")
      .in_unit("ranks");
}

/// Adds keys of DeepSpeed that are checked but not kept.
void declare_checked_zero_keys(SectionKeyRows& zero) {
  zero.checked_only<bool>("use_multi_rank_bucket_allreduce", true, "Reduction of mixed buckets.");
  zero.checked_only<bool>("elastic_checkpoint", false,
                          "ftrun's checkpoints load in every topology.");
  zero.checked_only<int64_t>("module_granularity_threshold", 0,
                             "Modules gathered as one (stage 3).")
      .alias("stage3_module_granularity_threshold");
  zero.checked_only<bool>("use_all_reduce_for_fetch_params", false,
                          "All-reduce to fetch (stage 3).")
      .alias("stage3_use_all_reduce_for_fetch_params");
  zero.checked_only<bool>("allgather_sequential", false, "One all-gather at a time (stage 3).")
      .alias("stage3_allgather_sequential");
  zero.checked_only<bool>("mics_hierarchical_params_gather", false, "Two-level gather (MiCS).");
  zero.checked_only<bool>("memory_efficient_linear", true, "Linear layers of stage 3.");
  zero.checked_only<bool>("pipeline_loading_checkpoint", false, "Loading in turns.");
  zero.checked_only<bool>("override_module_apply", true,
                          "A setting of DeepSpeed's Python modules.");
  zero.checked_only<bool>("log_trace_cache_warnings", false, "Warnings of the prefetcher.");
  zero.checked_only<bool>("enable_sanity_checks", false, "Checks of the prefetcher.");
  zero.checked_only<bool>("save_muon_momentum_buffer_in_memory", false,
                          "Keeps Muon's momentum buffer in memory.");
  zero.checked_only<bool>("legacy_stage1", false, "The old stage 1; removed from DeepSpeed.")
      .refuse_unless_default();
  zero.checked_only<bool>("zero_quantized_weights", false, "ZeRO++ qwZ: other numbers.")
      .refuse_unless_default();
  zero.checked_only<bool>("zero_quantized_nontrainable_weights", false, "ZeRO++: other numbers.")
      .refuse_unless_default();
  zero.checked_only<bool>("zero_quantized_gradients", false, "ZeRO++ qgZ: other numbers.")
      .refuse_unless_default();
}

/// Adds the sections of ZeRO that ftrun does not have.
void declare_foreign_zero_sections(Schema& s) {
  s.add_section({.path = "zero_optimization.zeropp_loco_param",
                 .doc = "ZeRO++ LoCo.",
                 .origin = kDs,
                 .support = KeySupport::kRefuse,
                 .nullable = true,
                 .free_form = true});
  s.add_section({.path = "zero_optimization.zenflow",
                 .doc = "ZenFlow: other numbers.",
                 .origin = kDs,
                 .support = KeySupport::kRefuse,
                 .nullable = true,
                 .free_form = true});
  s.add_section({.path = "zero_optimization.leaf_module",
                 .doc = "Modules gathered as one.",
                 .origin = kDs,
                 .support = KeySupport::kNotice,
                 .nullable = true,
                 .free_form = true});
}

void declare_offload_param(Schema& s) {
  auto param = section(
      s,
      {.path = "zero_optimization.offload_param",
       .doc = "Parameters kept off the device (stage 3).",
       .origin = kDs,
       .nullable = true},
      [](auto& c) -> auto& { return c.zero.offload_param; });
  param.key("device", &OffloadParamConfig::device, "Tier of the parameters.");
  param.key("nvme_path", &OffloadParamConfig::nvme_path, "Folder for device nvme.").or_null();
  param
      .key("buffer_count", &OffloadParamConfig::buffer_count,
           "Buffers for reads from NVMe. A rank reads at most buffer_count × buffer_size elements "
           "of its own ahead of their use (stage3_prefetch_bucket_size is the other limit).")
      .at_least(0);
  param
      .key("buffer_size", &OffloadParamConfig::buffer_size,
           "Size of a buffer for reads from NVMe; a larger unit is still read.")
      .at_least(0)
      .in_unit("elements");
  param
      .key("max_in_cpu", &OffloadParamConfig::max_in_cpu,
           "Elements kept in main memory with device nvme.")
      .at_least(0)
      .in_unit("elements")
      .notice(
          "with device nvme all parameters are on the disk; device cpu keeps them in main memory");
  param.key("pin_memory", &OffloadParamConfig::pin_memory,
            "Use page-locked host memory if there is a device.");
}

void declare_offload_optimizer(Schema& s) {
  auto optimizer = section(
      s,
      {.path = "zero_optimization.offload_optimizer",
       .doc = "Optimizer state and update off the device (stages 1 to 3).",
       .origin = kDs,
       .nullable = true},
      [](auto& c) -> auto& { return c.zero.offload_optimizer; });
  optimizer.key("device", &OffloadOptimizerConfig::device, "Tier of the optimizer state.");
  optimizer.key("nvme_path", &OffloadOptimizerConfig::nvme_path, "Folder for device nvme.")
      .or_null();
  optimizer.key("buffer_count", &OffloadOptimizerConfig::buffer_count, "Buffers for NVMe.")
      .at_least(0)
      .notice("the state is processed in intervals through two buffers, whatever the value");
  optimizer.key("pin_memory", &OffloadOptimizerConfig::pin_memory,
                "Use page-locked host memory if there is a device.");
  optimizer
      .key("pipeline_read", &OffloadOptimizerConfig::pipeline_read,
           "Reads the state from NVMe before it is used.")
      .notice("always done");
  optimizer
      .key("pipeline_write", &OffloadOptimizerConfig::pipeline_write,
           "Writes the state to NVMe while the next part is updated.")
      .notice("always done");
  optimizer.key("fast_init", &OffloadOptimizerConfig::fast_init, "Faster start with NVMe.")
      .notice();
  optimizer
      .key("ratio", &OffloadOptimizerConfig::ratio,
           "Share of the state that is off the device; below 1 at stage 3 only.")
      .range(0, 1);
  optimizer.checked_only<bool>("super_offload", false, "SuperOffload's scheduling.");
  optimizer.checked_only<double>("cpuadam_cores_perc", 0.8, "Share of cores for the update.")
      .range(0, 1);
}

}  // namespace

void declare_zero(Schema& s) {
  auto zero = section(
      s,
      {.path = "zero_optimization",
       .doc = "ZeRO: which state is sharded over data-parallel ranks.",
       .origin = kDs,
       .may_change = true},
      [](auto& c) -> auto& { return c.zero; });
  declare_zero_keys(zero);
  declare_checked_zero_keys(zero);
  declare_foreign_zero_sections(s);
  declare_offload_param(s);
  declare_offload_optimizer(s);
}

}  // namespace ftrun
