#include "config/schema_tables.h"

namespace ftrun {
namespace {

SectionKeyRows add_ignored_section(Schema& s, const char* path, const char* doc) {
  return section(s, {.path = path, .doc = doc, .origin = kDs, .support = KeySupport::kNotice});
}

void declare_activation_checkpointing(Schema& s) {
  auto rows = section(
      s,
      {.path = "activation_checkpointing",
       .doc = "Storage of the inputs of recomputed layers. As in DeepSpeed, this section does not "
              "enable recomputation: recompute does.",
       .origin = kDs,
       .may_change = true},
      [](auto& c) -> auto& { return c.activation_checkpointing; });
  rows.key("cpu_checkpointing", &ActivationCheckpointingConfig::cpu_checkpointing,
           "Keep the inputs of recomputed layers in main memory until backward needs them.");
  rows.checked_only<bool>("partition_activations", false,
                          "Divides the inputs among the tensor ranks.");
  rows.checked_only<bool>("contiguous_memory_optimization", false,
                          "Keeps all inputs in one buffer; ftrun's memory plan always does.");
  rows.checked_only<int64_t>("number_checkpoints", 0, "Number of inputs in this buffer.").or_null();
  rows.checked_only<bool>("synchronize_checkpoint_boundary", false, "Waits for the device.");
  rows.checked_only<bool>("profile", false, "Times recomputation.");
}

void declare_aio(Schema& s) {
  auto aio = section(
      s, {.path = "aio", .doc = "Disk access to state on NVMe.", .origin = kDs, .may_change = true},
      [](auto& c) -> auto& { return c.aio; });
  aio.key("block_size", &AioConfig::block_size, "Size of one request; a multiple of 4096.")
      .range(1, 1 << 30)
      .in_unit("bytes")
      .or_null();
  aio.key("queue_depth", &AioConfig::queue_depth, "Requests that each thread keeps in flight.")
      .range(1, 32768)
      .in_unit("requests")
      .or_null();
  aio.key("intra_op_parallelism", &AioConfig::intra_op_parallelism,
          "Threads that share one transfer.")
      .range(1, 1024)
      .in_unit("threads")
      .or_null();
  aio.key("single_submit", &AioConfig::single_submit,
          "Hand requests to the kernel one by one, not in batches.")
      .or_null();
  aio.key("overlap_events", &AioConfig::overlap_events, "Submit requests while others complete.")
      .or_null();
  aio.checked_only<int64_t>("thread_count", 1, "Ignored by DeepSpeed since 0.16.4.").or_null();
  aio.checked_only<bool>("use_gds", false, "GPUDirect Storage: speed only.").or_null();
}

void declare_placement_sections(Schema& s) {
  declare_activation_checkpointing(s);
  declare_aio(s);
  auto pipeline = section(
      s,
      {.path = "pipeline",
       .doc = "DeepSpeed's pipeline engine; parallel.pipeline is ftrun's key.",
       .origin = kDs},
      [](auto& c) -> auto& { return c.pipeline; });
  pipeline
      .key("stages", &PipelineConfig::stages, "Another name of parallel.pipeline; 0 and 1 = off.")
      .at_least(0)
      .in_unit("stages");
  pipeline.key(
      "partition", &PipelineConfig::partition,
      "Measure that is balanced over the model chunks. best: the time of forward and "
      "backward. parameters: the number of parameters. uniform: the number of layers, embedding "
      "and head included. type:REGEX: the number of layers whose class matches (decoder layers).");
  pipeline.checked_only<bool>("seed_layers", false, "Seeds the random numbers of each layer.");
  pipeline.checked_only<int64_t>("activation_checkpoint_interval", 0,
                                 "Layers that are recomputed together.");
  pipeline.checked_only<bool>("pipe_partitioned", true,
                              "Splits activations between stages over the tensor ranks.");
  pipeline.checked_only<bool>("grad_partitioned", true,
                              "Splits their gradients over the tensor ranks.");
  pipeline.checked_only<bool>("use_reentrant", true, "Selects PyTorch's reentrant recomputation.");
}

void declare_monitors(Schema& s) {
  auto csv = section(
      s,
      {.path = "csv_monitor",
       .doc = "Metrics as CSV files in DeepSpeed's layout, with one header and each step once, "
              "even if the run is resumed.",
       .origin = kDs,
       .may_change = true},
      [](auto& c) -> auto& { return c.csv_monitor; });
  csv.key("enabled", &CsvMonitorConfig::enabled, "Write these files.");
  csv.key("output_path", &CsvMonitorConfig::output_path,
          "Folder, relative to the working directory of the command; empty = the run folder.")
      .or_null();
  csv.key("job_name", &CsvMonitorConfig::job_name, "Folder inside output_path.");

  auto wandb = section(
      s,
      {.path = "wandb",
       .doc = "Weights & Biases. scripts/follow_run.py runs beside the training, reads the files "
              "that the run writes, and sends them, if a Python environment has the client.",
       .origin = kDs,
       .may_change = true},
      [](auto& c) -> auto& { return c.wandb; });
  wandb.key("enabled", &WandbConfig::enabled,
            "Start the script with the run. If there is no client, a warning is printed at the "
            "start and at the end.");
  wandb.key("group", &WandbConfig::group, "Group of runs; empty = none.").or_null();
  wandb
      .key("team", &WandbConfig::team,
           "Account or team of Weights & Biases; empty = the client's default.")
      .or_null();
  wandb.key("project", &WandbConfig::project, "Project of Weights & Biases.").or_null();

  auto tensorboard =
      add_ignored_section(s, "tensorboard", "ftrun writes tensorboard/ in the run folder itself.");
  tensorboard.checked_only<bool>("enabled", false, "Writes event files.");
  tensorboard.any_value("output_path", "Folder of the event files.");
  tensorboard.any_value("job_name", "Folder inside output_path.");
  auto comet = add_ignored_section(s, "comet", "DeepSpeed's metrics for Comet.");
  comet.checked_only<bool>("enabled", false, "Sends metrics to Comet.");
  comet.checked_only<int64_t>("samples_log_interval", 100, "Sequences between two metrics.");
  for (const char* name :
       {"project", "workspace", "api_key", "experiment_name", "experiment_key", "online", "mode"})
    comet.any_value(name, "A setting of Comet's client.");

  auto comms =
      add_ignored_section(s, "comms_logger", "ftrun counts bytes of every collective itself.");
  comms.checked_only<bool>("enabled", false, "Records collectives.");
  comms.checked_only<bool>("verbose", false, "Prints each collective.");
  comms.checked_only<bool>("prof_all", true, "Records all collectives.");
  comms.any_value("prof_ops", "Names of the collectives that are recorded.");
  comms.checked_only<bool>("debug", false, "Adds the calling function to each record.");
  auto flops = add_ignored_section(s, "flops_profiler", "DeepSpeed's count of operations.");
  flops.checked_only<bool>("enabled", false, "Counts operations.");
  flops.checked_only<double>("recompute_fwd_factor", 0.0,
                             "Share of the forward pass that backward recomputes.");
  flops.checked_only<int64_t>("profile_step", 1, "The step that is counted.");
  flops.checked_only<int64_t>("module_depth", -1, "Depth of the modules in the report.");
  flops.checked_only<int64_t>("top_modules", 1, "Modules that the report lists at each depth.");
  flops.checked_only<bool>("detailed", true, "Reports every module.");
  flops.any_value("output_file", "File of the report.");
  add_ignored_section(s, "timers", "Timers of DeepSpeed.");
  auto throughput = add_ignored_section(s, "timers.throughput", "Throughput timer.");
  throughput.checked_only<bool>("enabled", true, "Measures sequences per second.");
  throughput.checked_only<bool>("synchronized", true,
                                "Waits for the device before each measurement.");
}

void declare_compile(Schema& s) {
  auto compile = add_ignored_section(s, "compile", "DeepCompile: speed only.");
  for (const char* name :
       {"deepcompile", "free_activation", "offload_activation", "offload_opt_states",
        "symmetric_memory", "debug_log", "offload_parameters", "sync_before_reduce",
        "sync_after_reduce", "sync_before_allgather", "sync_after_allgather",
        "keep_all_input_tensors"})
    compile.checked_only<bool>(name, false, "A setting of DeepCompile.");
  for (const char* name :
       {"offload_activation_pin_memory", "double_buffer", "keep_int_input_tensors"})
    compile.checked_only<bool>(name, true, "A setting of DeepCompile.");
  compile.checked_only<int64_t>("free_activation_threshold", 10 * 1024 * 1024,
                                "Bytes from which DeepCompile frees an activation.");
  compile.any_value("passes", "Passes of DeepCompile.");
}

void declare_elasticity(Schema& s) {
  auto rows = section(
      s,
      {.path = "elasticity",
       .doc = "Batch sizes that can be divided among several numbers of ranks.",
       .origin = kDs},
      [](auto& c) -> auto& { return c.elasticity; });
  using C = ElasticityConfig;
  rows.key("enabled", &C::enabled, "Choose the batch sizes from the number of ranks.");
  rows.key("max_train_batch_size", &C::max_train_batch_size, "Largest batch; required if enabled.")
      .at_least(1)
      .in_unit("sequences");
  rows.key("micro_batch_sizes", &C::micro_batch_sizes,
           "Micro-batches to choose from; required if enabled.")
      .at_least(1);
  rows.key("min_gpus", &C::min_gpus, "Fewest ranks.").range(1, 65'536).in_unit("ranks");
  rows.key("max_gpus", &C::max_gpus, "Most ranks.").range(1, 65'536).in_unit("ranks");
  rows.key("min_time", &C::min_time, "Shortest time between two sizes.")
      .at_least(0)
      .in_unit("minutes")
      .notice("failed ranks leave at once, and adding ranks needs a new start");
  rows.key("version", &C::version,
           "0.1: the batch fits numbers of ranks. 0.2: it fits numbers of machines, and other "
           "numbers of ranks get their own batch.")
      .range(0.1, 0.2);
  rows.key("prefer_larger_batch", &C::prefer_larger_batch,
           "Prefer the larger batch among those that fit equally many numbers of ranks.");
  rows.key("ignore_non_elastic_batch_info", &C::ignore_non_elastic_batch_info,
           "Allow elasticity to override the batch keys.");
  rows.key("model_parallel_size", &C::model_parallel_size,
           "Ranks that share one copy of the model: tensor × pipeline × context.")
      .at_least(1)
      .in_unit("ranks")
      .defaults_to("from parallel");
  rows.key("num_gpus_per_node", &C::num_gpus_per_node, "Ranks of a machine (version 0.2).")
      .range(1, 65'536)
      .in_unit("ranks");
}

void declare_foreign_features(Schema& s) {
  const auto feature = [&](const char* path, const char* doc, KeySupport support,
                           bool needs_enabled) {
    s.add_section({.path = path,
                   .doc = doc,
                   .origin = kDs,
                   .support = support,
                   .nullable = true,
                   .free_form = true,
                   .needs_enabled = needs_enabled});
  };
  feature("amp", "apex's mixed precision; use bf16 or fp16.", KeySupport::kRefuseUnlessDefault,
          true);
  feature("torch_autocast", "PyTorch's autocast; use bf16 or fp16.",
          KeySupport::kRefuseUnlessDefault, false);
  feature("expert_parallel", "DeepSpeed's AutoEP.", KeySupport::kRefuseUnlessDefault, false);
  feature("hybrid_engine", "Training and generation in turns (RLHF).",
          KeySupport::kRefuseUnlessDefault, false);
  feature("autotuning", "DeepSpeed's autotuner.", KeySupport::kRefuseUnlessDefault, false);
  feature("curriculum_learning", "Sequence length by curriculum.", KeySupport::kRefuseUnlessDefault,
          true);
  feature("data_efficiency", "Data sampling and random layer-token drop.",
          KeySupport::kRefuseUnlessDefault, false);
  feature("compression_training", "Quantization, pruning, layer reduction.",
          KeySupport::kRefuseUnlessDefault, false);
  feature("progressive_layer_drop", "Layers dropped in training.", KeySupport::kRefuseUnlessDefault,
          true);
  feature("eigenvalue", "Eigenvalues for quantized training (MoQ).",
          KeySupport::kRefuseUnlessDefault, false);
  feature("quantize_training", "Quantized training (MoQ).", KeySupport::kRefuseUnlessDefault,
          false);
  feature("sparse_attention", "Block-sparse attention.", KeySupport::kRefuse, false);
  feature("nebula", "A checkpoint engine of DeepSpeed.", KeySupport::kNotice, false);
  feature("datastates_ckpt", "A checkpoint engine of DeepSpeed.", KeySupport::kNotice, false);
  feature("weight_quantization", "Quantized weights of DeepSpeed's inference.", KeySupport::kNotice,
          false);
  feature("inference", "DeepSpeed's inference.", KeySupport::kNotice, false);
  feature("msamp", "MS-AMP, as Hugging Face's launcher writes it.", KeySupport::kNotice, false);
}

// The reason why keys about splits have no effect: the model's family determines how a matrix is
// split, and no split changes the result.
constexpr auto kSplit = "how each matrix is split follows from the model";

void declare_tensor_parallel(Schema& s) {
  auto rows = section(
      s,
      {.path = "tensor_parallel",
       .doc = "DeepSpeed's AutoTP; parallel.tensor is ftrun's key.",
       .origin = kDs,
       .nullable = true,
       .may_change = true},
      [](auto& c) -> auto& { return c.tensor_parallel; });
  rows.key(
          "autotp_size", &TensorParallelConfig::autotp_size,
          "Another name of parallel.tensor; 0 and 1 = off. In ftrun the data-parallel ranks are "
          "ranks / tensor; DeepSpeed's batch arithmetic counts all ranks, and a notice shows both.")
      .at_least(0)
      .in_unit("ranks");
  rows.any_value("preset_model", "Rules of a known model.").notice(kSplit);
  rows.any_value("partition_config", "The user's own rules.").notice(kSplit);
  rows.any_value("injection_policy_tuple", "Linear layers whose results are summed.")
      .notice(kSplit);
  for (const char* name : {"tp", "tensor_parallel"})
    rows.any_value(name, "tp_size and tp_grain_size.")
        .notice("autotp_size decides the degree, as in DeepSpeed");
  rows.any_value("dtype", "dtype of the model.")
      .notice("the sections bf16 and fp16 decide the dtype");
  rows.checked_only<bool>("tp_overlap_comm", false,
                          "Overlaps sums over tensor ranks with computation.")
      .notice("it would change only the speed");
  rows.checked_only<bool>("keep_module_on_host", false,
                          "Keeps whole weights in main memory while they are split.")
      .notice("ranks read their own parts of the weights");
  rows.checked_only<bool>("kernel_inject", false, "Kernels of inference.")
      .alias("replace_with_kernel_inject")
      .notice();
}

}  // namespace

void declare_deepspeed_sections(Schema& s) {
  declare_monitors(s);
  declare_placement_sections(s);
  declare_compile(s);
  declare_elasticity(s);
  declare_foreign_features(s);
  declare_tensor_parallel(s);
}

void declare_legacy(Schema& s) {
  const auto add = [&](const char* section, std::initializer_list<const char*> names,
                       const char* reason) {
    for (const char* name : names) s.add_legacy(section, name, reason);
  };
  add("fp16", {"opt_level", "type", "fp16", "fp16_scale_tolerance"},
      "an old key that DeepSpeed no longer reads");
  add("bf16",
      {"loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "min_loss_scale",
       "bf16"},
      "bf16 needs no loss scaling");
  add("zero_optimization", {"find_unused_parameters", "grad_hooks"},
      "never a key of DeepSpeed's source");
  add("zero_optimization", {"cpu_offload_use_pin_memory"}, "deprecated, without effect");
  add("zero_optimization",
      {"cpu_offload", "cpu_offload_param", "cpu_offload_params",
       "stage3_gather_fp16_weights_on_model_save"},
      "deprecated; read as its new form");
  add("", {"bfloat16"}, "the old spelling of bf16; read as that");
  add("compile", {"disable", "backend", "enabled", "kwargs"},
      "an old key that DeepSpeed no longer reads");
  add("", {"comment", "_comment"}, "a comment");
  add("", {"$schema"}, "for editors");
  add("", {"cuda_visible_devices", "log", "comms_config", "monitor_config"},
      "DeepSpeed does not read this key");
  add("", {"offload_optimizer"},
      "DeepSpeed does not read this key here; it belongs in zero_optimization");
  add("",
      {"num-layers",
       "hidden-size",
       "num-attention-heads",
       "seq-length",
       "max-position-embeddings",
       "pos-emb",
       "no-weight-tying",
       "attention-dropout",
       "hidden-dropout",
       "bias-gelu-fusion",
       "scaled-upper-triang-masked-softmax-fusion",
       "checkpoint-activations",
       "checkpoint-factor",
       "checkpoint-num-layers",
       "partition-activations",
       "synchronize-each-layer",
       "data-impl",
       "distributed-backend",
       "eval-interval",
       "eval-iters",
       "keep-last-n-checkpoints",
       "log-interval",
       "lr-decay-iters",
       "lr-decay-style",
       "save-interval",
       "train-iters",
       "train-data-paths",
       "valid-data-paths",
       "test-data-paths",
       "weight-decay"},
      "a gpt-neox key; the model comes from model.path here");
  add("", {"model-parallel-size"}, "a gpt-neox key; write parallel.tensor");
  add("", {"pipe-parallel-size"}, "a gpt-neox key; write parallel.pipeline");
}

}  // namespace ftrun
