#include "config/schema_tables.h"

namespace ftrun {
namespace {

constexpr auto kOwn = KeyOrigin::kFtrun;

void declare_model_and_data(Schema& s) {
  auto model = section(
      s, {.path = "model", .doc = "The model to fine-tune.", .origin = kOwn},
      [](auto& c) -> auto& { return c.model; });
  model
      .key("path", &ModelSection::path,
           "Folder in Hugging Face layout (config.json, *.safetensors, tokenizer files), or the "
           "name of a model in the Hugging Face cache: owner/name, owner/name@revision. A folder "
           "with that path takes precedence. Required for training.")
      .may_change();
  model.key("padding_row_gradient", &ModelSection::padding_row_gradient,
            "trained: the embedding row of the padding token (config.json's pad_token_id) is "
            "trained as any other row. transformers: the row gets no gradient from input tokens, "
            "as in transformers (padding_idx), so that losses can be compared.");

  auto data = section(
      s, {.path = "data", .doc = "Tokenized data sets.", .origin = kOwn},
      [](auto& c) -> auto& { return c.data; });
  data.key("train", &DataConfig::train,
           "Data set file, or a list of files that are read one after the other, or a list of "
           "{path, weight}, which mixes data sets by weight. owner/name or owner/name@revision "
           "names a data set of the Hugging Face cache, of which train.bin or train.jsonl is read. "
           "Required for training.")
      .or_weighted()
      .may_change();
  data.key("train_weights", &DataConfig::train_weights,
           "Relative weight of each entry of train: its share of the trained tokens. This key is "
           "another way to write {path, weight} in train; empty: the files are read one after the "
           "other.")
      .greater_than(0);
  data.key("validation", &DataConfig::validation,
           "Data set file or files for the validation loss, or several sets by name: {NAME: file "
           "or files}. A single set without a name is called validation. none = no validation.")
      .or_named()
      .may_change();
  data.key("validation_names", &DataConfig::validation_names,
           "Name of the set to which each entry of validation belongs; entries with the same name "
           "are one set. This key is another way to write {NAME: ...} in validation; empty: one "
           "set.")
      .may_change();
  data.key("sequence_length", &DataConfig::sequence_length,
           "Tokens of a sequence, which are trained together.")
      .at_least(1)
      .in_unit("tokens");
  data.key("packing", &DataConfig::packing,
           "concat: documents are joined, and attention crosses from one document into the next. "
           "documents: documents are packed into sequences, and attention stays inside each. none: "
           "a sequence contains one document and padding.")
      .defaults_to("documents where the data are conversations, else concat");
  data.key("format", &DataConfig::format,
           "Format of the files; auto: ftrun recognizes it by name and content.");
  data.key("token_dtype", &DataConfig::token_dtype,
           "Integer type of a token in flat files, which do not record it. auto: the type that "
           "NAME.json or meta.json beside the file names, else uint16 for train.bin and val.bin "
           "(nanoGPT's names); for other files the key is required.");
  data.key(
      "shuffle", &DataConfig::shuffle,
      "Shuffle the sequences by train.seed; false = file order. Either order depends on seed and "
      "step only.");
  data.key("prefetch", &DataConfig::prefetch,
           "Optimizer steps whose batches are read ahead of the current step.")
      .range(0, 1024)
      .in_unit("steps")
      .may_change();
}

void declare_train(Schema& s) {
  auto train = section(
      s, {.path = "train", .doc = "Length of the training and its settings.", .origin = kOwn},
      [](auto& c) -> auto& { return c.train; });
  train.key("steps", &TrainConfig::steps, "Optimizer steps; give this or epochs.")
      .at_least(1)
      .in_unit("steps")
      .unset_is_zero()
      .defaults_to("by epochs")
      .may_change();
  train.key("epochs", &TrainConfig::epochs, "Passes over the data; give this or steps.")
      .greater_than(0)
      .in_unit("epochs")
      .unset_is_zero()
      .defaults_to("1 without steps")
      .may_change();
  train.key("seed", &TrainConfig::seed, "Seed of the order of sequences and of all randomness.")
      .at_least(0);
  train
      .key("learning_rate", &TrainConfig::learning_rate,
           "Learning rate where optimizer.params.lr is absent or \"auto\".")
      .at_least(0)
      .part_of_other_key();
  train
      .key("weight_decay", &TrainConfig::weight_decay,
           "Weight decay where optimizer.params.weight_decay is absent or \"auto\".")
      .at_least(0)
      .part_of_other_key();
  train
      .key("warmup_steps", &TrainConfig::warmup_steps,
           "Warm-up where scheduler.params.warmup_num_steps is absent or \"auto\".")
      .at_least(0)
      .in_unit("steps")
      .part_of_other_key();
  train.key("freeze", &TrainConfig::freeze,
            "Frozen parameters: regular expressions, each of which matches a part of a parameter's "
            "name (\"embed_tokens\", \"layers\\\\.[0-7]\\\\.\"). Frozen parameters have no "
            "gradient and no optimizer state.");
  train.key("only", &TrainConfig::only,
            "Trained parameters, written as in freeze; all others are frozen.");
  train
      .key("weight_decay_exempt", &TrainConfig::weight_decay_exempt,
           "Parameters without weight decay; auto: norms and biases when optimizer is absent, "
           "none when it is written (as DeepSpeed).")
      .or_auto();
  train
      .key("max_nonfinite_steps", &TrainConfig::max_nonfinite_steps,
           "Steps in a row with a loss or gradient that is not finite before the run stops with "
           "exit code 7.")
      .at_least(1)
      .in_unit("steps")
      .may_change();
  train
      .key("check_replicas", &TrainConfig::check_replicas,
           "Steps between two comparisons of state that several ranks share (whole parameters, "
           "replicas). Ranks compare hashes, also before each checkpoint; an error names the rank "
           "whose memory or CPU changed a bit. 0 = never.")
      .at_least(0)
      .in_unit("steps")
      .may_change();
}

void declare_evaluation(Schema& s) {
  auto evaluation = section(
      s,
      {.path = "train.evaluation",
       .doc = "Loss, perplexity and token accuracy on each set of data.validation: before the "
              "first step, after the last step, and between them.",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.train.evaluation; });
  evaluation
      .key("every", &EvaluationConfig::every,
           "Steps between two evaluations; 0 = only before the first and after the last.")
      .at_least(0)
      .in_unit("steps");
  evaluation
      .key("every_minutes", &EvaluationConfig::every_minutes,
           "Also evaluate when this many minutes have passed since the last evaluation; 0 = only "
           "by steps.")
      .at_least(0)
      .in_unit("minutes");
  evaluation
      .key("samples", &EvaluationConfig::samples,
           "Sequences of each set that are evaluated, always the same ones; 0 = all.")
      .at_least(0)
      .in_unit("sequences");

  auto stopping = section(
      s,
      {.path = "train.early_stopping",
       .doc = "The run ends before its last step when evaluations no longer improve. The "
              "evaluation before the first step does not count.",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.train.early_stopping; });
  stopping.key("metric", &EarlyStoppingConfig::metric,
               "SET.loss, SET.perplexity or SET.accuracy, such as validation.loss; none = never.");
  stopping
      .key("patience", &EarlyStoppingConfig::patience,
           "Evaluations in a row without an improvement after which the run ends.")
      .at_least(1)
      .in_unit("evaluations");
  stopping
      .key("min_delta", &EarlyStoppingConfig::min_delta,
           "A metric counts as improved only if it beats the last improvement by more than this.")
      .at_least(0);
}

void declare_train_outputs(Schema& s) {
  auto log = section(
      s,
      {.path = "train.log",
       .doc = "Lines and files that a run writes while it trains.",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.train.log; });
  log.key("every", &LogConfig::every, "Steps between two printed lines.")
      .at_least(1)
      .in_unit("steps");
  log.key("tensorboard", &LogConfig::tensorboard, "Write TensorBoard event files.");

  auto generate = section(
      s,
      {.path = "train.generate",
       .doc = "Text that the model writes at each evaluation and at the end.",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.train.generate; });
  generate
      .key("prompt_tokens", &GenerateConfig::prompt_tokens,
           "Tokens of a validation document that the model continues. Of a conversation it "
           "continues the whole prompt: all tokens before the first trained one. 0 = no text.")
      .at_least(0)
      .in_unit("tokens");
  generate
      .key("prompts", &GenerateConfig::prompts,
           "Documents that the model continues, from the start of the first validation set.")
      .range(1, 64)
      .in_unit("documents");
  generate.key("tokens", &GenerateConfig::tokens, "Length of each text.")
      .at_least(1)
      .in_unit("tokens");
  generate
      .key("temperature", &GenerateConfig::temperature,
           "Sampling temperature; 0 = always the likeliest token.")
      .at_least(0);

  auto trace = section(
      s,
      {.path = "train.trace",
       .doc = "Measured start and end of each instruction of some steps. The run folder's "
              "trace.json contains them beside the predicted step, for the viewers of Perfetto and "
              "Chrome (docs/plan.md).",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.train.trace; });
  trace
      .key("steps", &TraceConfig::steps,
           "Steps that are traced, counted from 1, at most 32; the first two are slower than "
           "others. Empty = none.")
      .at_least(1);
  trace
      .key("ranks", &TraceConfig::ranks,
           "Ranks that are traced; empty = the lowest rank of each group with the same program, as "
           "in the trace of ftrun plan.")
      .at_least(0);
}

void declare_parallel(Schema& s) {
  auto parallel = section(
      s,
      {.path = "parallel", .doc = "Degrees of the rank mesh.", .origin = kOwn, .may_change = true},
      [](auto& c) -> auto& { return c.parallel; });
  parallel
      .key("data", &ParallelConfig::data,
           "All data-parallel ranks: replicas × shards. auto = the number of ranks / (tensor × "
           "pipeline × context).")
      .at_least(1)
      .in_unit("ranks")
      .unset_is_zero()
      .defaults_to("auto");
  parallel
      .key("tensor", &ParallelConfig::tensor,
           "Ranks that share each matrix of a layer (tensor parallelism). They have consecutive "
           "numbers, so that they are on one machine.")
      .at_least(1)
      .in_unit("ranks");
  parallel.key("sequence", &ParallelConfig::sequence,
               "Norms and residuals are split by tokens over the tensor ranks (sequence "
               "parallelism); no effect at tensor 1.");
  parallel
      .key("pipeline", &ParallelConfig::pipeline,
           "Stages of a pipeline. Each stage has consecutive layers on its own ranks. The "
           "accumulation steps are its micro-batches.")
      .at_least(1)
      .in_unit("stages");
  parallel.key(
      "schedule", &ParallelConfig::schedule,
      "The order in which stages run micro-batches. gpipe: all forward passes, then all backward "
      "passes. 1f1b: one forward and one backward in turn. interleaved: 1f1b with several model "
      "chunks on each stage. zb-h1: 1f1b that computes weight gradients in idle time. zbv: zb-h1 "
      "with two model chunks on each stage. docs/parallelism.md compares them.");
  parallel
      .key("virtual_stages", &ParallelConfig::virtual_stages,
           "Model chunks of each stage: 2 or more for schedule interleaved, 2 for zbv, else 1.")
      .at_least(1)
      .in_unit("chunks")
      .unset_is_zero()
      .defaults_to("2 for interleaved and zbv, else 1");
  parallel
      .key("pipeline_layers", &ParallelConfig::pipeline_layers,
           "Decoder layers of each model chunk: pipeline × virtual_stages numbers in the order of "
           "the layers. The embedding belongs to the first chunk and the head to the last, so "
           "these two may have 0.")
      .at_least(0)
      .in_unit("layers")
      .unset_is_zero()
      .defaults_to("balanced by cost");
  parallel
      .key("context", &ParallelConfig::context,
           "Ranks that share each sequence (context parallelism).")
      .at_least(1)
      .in_unit("ranks");
  parallel
      .key("expert", &ParallelConfig::expert,
           "Ranks that share the experts of a mixture of experts, among the data-parallel ranks.")
      .at_least(1)
      .in_unit("ranks");
  parallel
      .key("data_replicate", &ParallelConfig::data_replicate,
           "Replicas among the data-parallel ranks; ZeRO shards over data / data_replicate.")
      .at_least(1)
      .in_unit("ranks");

  auto elastic = section(
      s,
      {.path = "elastic",
       .doc = "The numbers of ranks with which a run may continue. If a rank fails twice in a row "
              "without a new checkpoint, ftrun removes its replica: the run continues on fewer "
              "data-parallel ranks with the same train_batch_size. This works on one machine, if "
              "ftrun restarts the ranks.",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.elastic; });
  elastic
      .key("min_ranks", &ElasticConfig::min_ranks,
           "Fewest ranks with which the run continues. 0 = no rank is removed, unless elasticity "
           "is enabled; then its min_gpus is the limit.")
      .at_least(0)
      .in_unit("ranks");

  auto partition = section(
      s,
      {.path = "partition",
       .doc = "Groups of parameters that ZeRO gathers and shards together (units).",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.partition; });
  partition.key("unit", &PartitionConfig::unit,
                "Parameters of a unit: block (attention and MLP are two units), layer, or model.");
}

void declare_checkpoint(Schema& s) {
  auto rows = section(
      s,
      {.path = "checkpoint",
       .doc =
           "Checkpoints: when they are saved and which are kept; ftrun's keys beside DeepSpeed's.",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.checkpoint; });
  rows.key("every", &CheckpointConfig::every,
           "Steps between two checkpoints; 0 = at the end and on a signal only.")
      .at_least(0)
      .in_unit("steps");
  rows.key("every_minutes", &CheckpointConfig::every_minutes,
           "Also save when this many minutes have passed since the last checkpoint; 0 = only by "
           "steps.")
      .at_least(0)
      .in_unit("minutes");
  rows.key(
      "background", &CheckpointConfig::background,
      "Training waits only until the state has been copied to main memory (state on a disk tier is "
      "not copied), and continues while the checkpoint is written. false: training waits until the "
      "checkpoint is written, and needs no memory for a copy.");
  rows.key("if_busy", &CheckpointConfig::if_busy,
           "The action if a checkpoint is due while the one before is still being written: wait "
           "for it, or skip this one.");
  rows.key("keep_last", &CheckpointConfig::keep_last,
           "Checkpoints kept; 0 = all, 1 is raised to 2.")
      .at_least(0);
  auto best = section(
      s,
      {.path = "checkpoint.keep_best",
       .doc = "The checkpoint of the best evaluation so far: saved when it is found, and kept "
              "beside those of keep_last. The evaluation before the first step does not count.",
       .origin = kOwn},
      [](auto& c) -> auto& { return c.checkpoint.keep_best; });
  best.key("metric", &KeepBestConfig::metric,
           "SET.loss, SET.perplexity or SET.accuracy, such as validation.loss; none = no best "
           "checkpoint.");
  best.key("mode", &KeepBestConfig::mode,
           "The better direction: min (lower is better) or max (higher is better). auto: max for "
           "accuracy, min for the others.")
      .or_auto();
  const auto theirs = [](Field& field) -> Field& {
    field.origin = KeyOrigin::kDeepSpeed;
    return field;
  };
  theirs(rows.key("tag_validation", &CheckpointConfig::tag_validation,
                  "The action if ranks disagree on a checkpoint's name."))
      .in_any_case()
      .notice("a checkpoint is named after its step, which the ranks agree on");
  theirs(rows.key("load_universal", &CheckpointConfig::load_universal,
                  "Load a checkpoint of another topology."))
      .notice("every checkpoint of ftrun loads on every number of ranks");
  theirs(rows.key("use_node_local_storage", &CheckpointConfig::use_node_local_storage,
                  "Every node writes to its own disk."));
  theirs(
      rows.checked_only<bool>("checkpoint_serialization", true, "DeepSpeed's own serialization."));
  theirs(rows.any_value("parallel_write", "Settings of DeepSpeed's parallel checkpoint writer."));
  theirs(rows.any_value("writer", "DeepSpeed's writer."));
}

void declare_recompute(Schema& s) {
  auto recompute = section(
      s,
      {.path = "recompute",
       .doc = "Activations that the backward pass computes again instead of keeping them "
              "(activation checkpointing).",
       .origin = kOwn,
       .shorthand_key = "policy",
       .may_change = true},
      [](auto& c) -> auto& { return c.recompute; });
  recompute.key("policy", &RecomputeConfig::policy,
                "selective: activations that are cheap to compute again; full: all activations "
                "except a layer's input.");
  recompute
      .key("every", &RecomputeConfig::every,
           "Layers from one recomputed layer to the next (2: layers 0, 2, 4, ... recompute); the "
           "others keep their activations.")
      .at_least(1)
      .in_unit("layers");
}

void declare_rest(Schema& s) {
  auto kernels = section(
      s,
      {.path = "kernels",
       .doc = "Implementations of the computation.",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.kernels; });
  kernels.key("products", &KernelsConfig::matmul,
              "Library that multiplies matrices; auto: by vendor and instructions of the CPU.");
  kernels.key(
      "attention", &KernelsConfig::attention,
      "Implementation of attention. own: ftrun's kernels. cudnn: cuDNN 9 on GPUs in bf16, for "
      "heads of up to 128 elements; on compute capability 9.x up to 256 elements, and also "
      "sequences of several documents. ftrun's kernels compute what cuDNN does not. amx: "
      "multiplications in bf16 on CPUs with matrix units (Intel's AMX). cudnn and amx give other "
      "bits than own. auto: amx on CPUs that have such units; cudnn 9.19 or later on compute "
      "capability 9.0, where it was measured (for sequences of several documents only with heads "
      "of at least 96 elements); else own.");
  kernels.key("step_graph", &KernelsConfig::step_graph,
              "Capture a step on GPUs once as a CUDA graph and launch it as a whole, which saves "
              "the time to launch single kernels: 2 to 3 % of a step of SmolLM2-135M on an H200. "
              "No effect with offload or pipelines.");

  auto comm = section(
      s,
      {.path = "comm", .doc = "Communication between ranks.", .origin = kOwn, .may_change = true},
      [](auto& c) -> auto& { return c.comm; });
  comm.key("backend", &CommConfig::backend,
           "auto: nccl between GPUs; between CPUs shared memory inside a machine, and gloo between "
           "machines. gloo: also inside a machine; ranks then use CPUs.");
  comm.key("timeout", &CommConfig::timeout,
           "Longest wait for another rank in a collective. 0 or auto: ten times the slowest step "
           "of the run so far, at least ten minutes, and half an hour until the first step is "
           "done. While one rank works alone, the others wait as long as its heartbeat continues.")
      .range(0,
             // a week: more would be no limit, and no longer fit the clocks and polls that wait
             604'800)
      .defaults_to("auto")
      .in_unit("seconds");
  comm.key(
      "deterministic", &CommConfig::deterministic,
      "Sum ranks' values on GPUs in rank order, 16-bit values in fp32, by ftrun's kernels instead "
      "of NCCL's, whose order and rounding depend on its topology. This costs a second pass over "
      "the summed data and 32 MiB for each group. Sums on CPUs are always in rank order.");

  auto out = section(
      s,
      {.path = "export",
       .doc = "The Hugging Face model folder that a run writes at its end.",
       .origin = kOwn,
       .may_change = true},
      [](auto& c) -> auto& { return c.model_export; });
  out.key("enabled", &ExportConfig::enabled, "Write export/ when training has ended.");
  out.key("which", &ExportConfig::which,
          "The weights after the last step, or those of checkpoint.keep_best.");
  out.key("dtype", &ExportConfig::dtype,
          "dtype of the written weights; auto: the model's own dtype, and fp32 for an adapter.");

  auto top = top_level(s, kOwn);
  top.key("output_dir", &Config::output_dir,
          "Run folder: logs, metrics, checkpoints, export. Must be empty or resumed.")
      .may_change();
  top.key("device", &Config::device,
          "Device on which ranks compute. auto: NVIDIA GPUs if each rank of the machine can have "
          "one and comm.backend is not gloo; else CPUs.")
      .or_auto()
      .may_change();
  top.key("threads", &Config::threads,
          "Threads of each rank; 0 = the cores that the ranks of a machine may use (by "
          "affinity and control group) / the number of these ranks.")
      .range(0, 4096)
      .in_unit("threads")
      .may_change();
}

}  // namespace

void declare_own_sections(Schema& s) {
  declare_model_and_data(s);
  declare_adapter(s);
  declare_quantization(s);
  declare_train(s);
  declare_evaluation(s);
  declare_train_outputs(s);
  declare_parallel(s);
  declare_recompute(s);
  declare_checkpoint(s);
  declare_rest(s);
}

}  // namespace ftrun
