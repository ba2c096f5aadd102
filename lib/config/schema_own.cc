#include "config/schema_tables.h"

namespace ftrun {
namespace {

constexpr auto kOwn = Vocabulary::kFtrun;

void declare_model_and_data(Schema& s) {
  auto model = section(
      s, {.path = "model", .doc = "The model to fine-tune.", .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.model; });
  model.key(
      "path", &ModelSection::path,
      "Folder in Hugging Face layout (config.json, *.safetensors, tokenizer files), or the name of "
      "a model that the Hugging Face cache holds: owner/name, owner/name@revision. A folder of "
      "that path comes first. Needed to train.");
  model.key("padding_row_gradient", &ModelSection::padding_row_gradient,
            "trained: the embedding's row of config.json's pad_token_id is trained as any other; "
            "transformers: it gets no gradient from the tokens that are read, as there "
            "(padding_idx), for runs that are compared.");

  auto data = section(
      s, {.path = "data", .doc = "Tokenised data sets.", .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.data; });
  data.key("train", &DataConfig::train,
           "Data set file, or a list of them read one after the other; or a list of {path, "
           "weight}: data sets that are mixed by weight. A data set of the Hugging Face cache is "
           "named owner/name or owner/name@revision: its train.bin or train.jsonl. Needed to "
           "train.")
      .or_weighted();
  data.key("train_weights", &DataConfig::train_weights,
           "Relative weight of each entry of train: its share of the tokens that are trained on. "
           "Another way to write {path, weight} there; empty: train is one stream.")
      .above(0);
  data.key("validation", &DataConfig::validation,
           "Data set file or files for the validation loss; or several sets by name, {NAME: file "
           "or files}. One set without a name is called validation. None = no validation.")
      .or_named();
  data.key("validation_names", &DataConfig::validation_names,
           "The name of the set of each entry of validation; entries of one name are one set. "
           "Another way to write {NAME: ...} there; empty: one set.");
  data.key("sequence_length", &DataConfig::sequence_length, "Tokens in a row.")
      .at_least(1)
      .in("tokens");
  data.key("packing", &DataConfig::packing,
           "concat: documents run together, and attention crosses from one into the next; "
           "documents: packed, attention stays inside a document; none: one document a row, "
           "padded.")
      .defaults_to("documents where the samples are conversations, else concat");
  data.key("format", &DataConfig::format, "Format of the files; auto looks at name and content.");
  data.key(
      "token_dtype", &DataConfig::token_dtype,
      "Width of a token in flat files that do not record it; auto: the value in x.json or "
      "meta.json beside the file, else uint16 for train.bin and val.bin (nanoGPT's names); for "
      "other files it must be set.");
  data.key("shuffle", &DataConfig::shuffle,
           "Order rows by seed; false = file order. Either is a function of seed and step alone.");
  data.key("prefetch", &DataConfig::prefetch,
           "Optimizer steps for which batches are prepared in advance.")
      .range(0, 1024)
      .in("steps");
}

void declare_train(Schema& s) {
  auto train = section(
      s, {.path = "train", .doc = "Length of the training and its settings.", .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.train; });
  train.key("steps", &TrainConfig::steps, "Optimizer steps; give this or epochs.")
      .at_least(1)
      .in("steps")
      .unset_is_zero()
      .defaults_to("by epochs");
  train.key("epochs", &TrainConfig::epochs, "Passes over the data; give this or steps.")
      .above(0)
      .in("epochs")
      .unset_is_zero()
      .defaults_to("1 without steps");
  train.key("seed", &TrainConfig::seed, "Seed of sample order and of all randomness.").at_least(0);
  train
      .key("learning_rate", &TrainConfig::learning_rate,
           "Learning rate where optimizer.params.lr is absent or \"auto\".")
      .at_least(0);
  train
      .key("weight_decay", &TrainConfig::weight_decay,
           "Weight decay where optimizer.params.weight_decay is absent or \"auto\".")
      .at_least(0);
  train
      .key("warmup_steps", &TrainConfig::warmup_steps,
           "Warm-up where scheduler.params.warmup_num_steps is absent or \"auto\".")
      .at_least(0)
      .in("steps");
  train.key("freeze", &TrainConfig::freeze,
            "Parameters that do not train: regular expressions, each of a part of a name "
            "(\"embed_tokens\", \"layers\\\\.[0-7]\\\\.\"). They have no gradient and no optimizer "
            "state.");
  train.key("only", &TrainConfig::only,
            "Parameters that train, written as in freeze; all others are frozen.");
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
      .in("steps");

  train
      .key("check_replicas", &TrainConfig::check_replicas,
           "Steps between comparisons, by hashes, of state that several ranks hold equally (whole "
           "parameters, replicas); it is also compared before each checkpoint. A memory or CPU "
           "that changed a bit is named. 0 = never.")
      .at_least(0)
      .in("steps");

  auto evaluation = section(
      s,
      {.path = "train.evaluation",
       .doc = "Loss, perplexity and token accuracy on each set of data.validation, before the "
              "first and after the last step and in between.",
       .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.train.evaluation; });
  evaluation
      .key("every", &EvaluationConfig::every,
           "Steps between two validations; 0 = only before the first and after the last.")
      .at_least(0)
      .in("steps");
  evaluation
      .key("every_minutes", &EvaluationConfig::every_minutes,
           "Also evaluate when this many minutes have passed since the last evaluation; 0 = only "
           "by steps.")
      .at_least(0)
      .in("minutes");
  evaluation
      .key("samples", &EvaluationConfig::samples,
           "Sequences of each set that are used, always the same; 0 = all.")
      .at_least(0)
      .in("sequences");

  auto stopping = section(
      s,
      {.path = "train.early_stopping",
       .doc = "The run ends before its last step when evaluations do not improve any more. The one "
              "before the first step does not count.",
       .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.train.early_stopping; });
  stopping.key("metric", &EarlyStoppingConfig::metric,
               "SET.loss, SET.perplexity or SET.accuracy, such as validation.loss; none = never.");
  stopping
      .key("patience", &EarlyStoppingConfig::patience,
           "Evaluations in a row without an improvement after which the run ends.")
      .at_least(1)
      .in("evaluations");
  stopping
      .key("min_delta", &EarlyStoppingConfig::min_delta,
           "A metric counts as improved only if it beats the last improvement by more than this.")
      .at_least(0);

  auto log = section(
      s,
      {.path = "train.log",
       .doc = "Lines and files that a run writes while it trains.",
       .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.train.log; });
  log.key("every", &LogConfig::every, "Steps between two printed lines.").at_least(1).in("steps");
  log.key("tensorboard", &LogConfig::tensorboard, "Write TensorBoard event files.");

  auto generate = section(
      s,
      {.path = "train.generate",
       .doc = "Text that the model writes at each evaluation and at the end.",
       .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.train.generate; });
  generate
      .key("prompt_tokens", &GenerateConfig::prompt_tokens,
           "Tokens of a validation document that are continued; of a conversation, the whole "
           "prompt (all tokens before the first one that is trained on); 0 = no text.")
      .at_least(0)
      .in("tokens");
  generate
      .key("prompts", &GenerateConfig::prompts,
           "Documents of the first validation set that are continued, from its start.")
      .range(1, 64)
      .in("documents");
  generate.key("tokens", &GenerateConfig::tokens, "Length of each text.").at_least(1).in("tokens");
  generate.key("temperature", &GenerateConfig::temperature, "0 = always the likeliest token.")
      .at_least(0);

  auto trace = section(
      s,
      {.path = "train.trace",
       .doc = "Start and end of each instruction of some steps: measured, beside the predicted "
              "step, in trace.json of the run folder, for Perfetto's and Chrome's viewers "
              "(docs/plan.md).",
       .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.train.trace; });
  trace
      .key("steps", &TraceConfig::steps,
           "Steps that are traced, counted from 1, at most 32; the first two are slower than "
           "others. Empty = none.")
      .at_least(1);
  trace
      .key("ranks", &TraceConfig::ranks,
           "Ranks that are traced; empty = the lowest rank of each set of ranks with equal "
           "programs, as in the trace of ftrun plan.")
      .at_least(0);
}

void declare_parallel(Schema& s) {
  auto parallel = section(
      s, {.path = "parallel", .doc = "Degrees of the rank mesh.", .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.parallel; });
  parallel
      .key("data", &ParallelConfig::data,
           "All data-parallel ranks, replicas × shards; auto = the launcher's ranks, divided by "
           "tensor × pipeline × context.")
      .at_least(1)
      .in("ranks")
      .unset_is_zero()
      .defaults_to("auto");
  parallel
      .key("tensor", &ParallelConfig::tensor,
           "Ranks that share each matrix of a layer; neighbours, so that they lie on one machine.")
      .at_least(1)
      .in("ranks");
  parallel.key("sequence", &ParallelConfig::sequence,
               "Norms and residuals are split by tokens over the tensor ranks (sequence "
               "parallelism); no effect at tensor 1.");
  parallel
      .key("pipeline", &ParallelConfig::pipeline,
           "Stages of a pipeline: consecutive layers on ranks of their own; micro-batches are the "
           "accumulation steps.")
      .at_least(1)
      .in("ranks");
  parallel.key(
      "schedule", &ParallelConfig::schedule,
      "The order in which stages run micro-batches: gpipe, all forward passes first; 1f1b, one "
      "forward, one backward; interleaved, the same with several parts of the model a stage; "
      "zb-h1, 1f1b with weight gradients in idle time; zbv, the same with two parts a stage. "
      "docs/parallelism.md compares them.");
  parallel
      .key("virtual_stages", &ParallelConfig::virtual_stages,
           "Parts of the model that each stage has, for schedule interleaved.")
      .at_least(1)
      .in("parts")
      .unset_is_zero()
      .defaults_to("2 for interleaved and zbv, else 1");
  parallel
      .key(
          "pipeline_layers", &ParallelConfig::pipeline_layers,
          "Blocks (decoder layers) of each part of the model, pipeline x virtual_stages numbers in "
          "the order of the parts; the embedding goes with the first, the head with the last, and "
          "these two may be 0.")
      .at_least(0)
      .in("blocks")
      .unset_is_zero()
      .defaults_to("balanced by cost");
  parallel.key("context", &ParallelConfig::context, "Ranks that share each sequence.")
      .at_least(1)
      .in("ranks");
  parallel
      .key("expert", &ParallelConfig::expert,
           "Ranks that share the experts; folded inside the data ranks.")
      .at_least(1)
      .in("ranks");
  parallel
      .key("data_replicate", &ParallelConfig::data_replicate,
           "Replicas among the data-parallel ranks; ZeRO shards over data / data_replicate.")
      .at_least(1)
      .in("ranks");

  auto elastic = section(
      s,
      {.path = "elastic",
       .doc = "The numbers of ranks that a run may continue with. A rank with two failures of its "
              "own in a row and no new checkpoint leaves with its replica: there are fewer "
              "data-parallel ranks then, with the same train_batch_size. On one machine, under "
              "ftrun's own restarts.",
       .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.elastic; });
  elastic
      .key("min_ranks", &ElasticConfig::min_ranks,
           "Fewest ranks; 0 = no rank may leave, or elasticity.min_gpus if elasticity is enabled.")
      .at_least(0)
      .in("ranks");

  auto partition = section(
      s, {.path = "partition", .doc = "Groups of parameters.", .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.partition; });
  partition.key("unit", &PartitionConfig::unit,
                "The parameters that are gathered together: block (attention and MLP separately), "
                "layer, or model.");
}

void declare_checkpoint(Schema& s) {
  auto rows = section(
      s,
      {.path = "checkpoint",
       .doc =
           "Checkpoints: when they are saved and which are kept; ftrun's keys beside DeepSpeed's.",
       .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.checkpoint; });
  rows.key("every", &CheckpointConfig::every,
           "Steps between two checkpoints; 0 = at the end and on a signal only.")
      .at_least(0)
      .in("steps");
  rows.key("every_minutes", &CheckpointConfig::every_minutes,
           "Also save when this many minutes have passed since the last checkpoint; 0 = only by "
           "steps.")
      .at_least(0)
      .in("minutes");
  rows.key(
      "background", &CheckpointConfig::background,
      "Training waits only until the state has been copied to main memory (on a disk tier: "
      "noted), and continues while the checkpoint is written. false: it waits for the whole of "
      "it, and needs no memory for a copy.");
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
       .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.checkpoint.keep_best; });
  best.key("metric", &KeepBestConfig::metric,
           "SET.loss, SET.perplexity or SET.accuracy, such as validation.loss; none = no best "
           "checkpoint.");
  best.key("mode", &KeepBestConfig::mode,
           "The better direction: min (less) or max (more); auto: more of accuracy, less of the "
           "others.")
      .or_auto();
  const auto theirs = [](Field& field) -> Field& {
    field.vocabulary = Vocabulary::kDeepSpeed;
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
  theirs(rows.unkept<bool>("checkpoint_serialization", true, "DeepSpeed's own serialisation."));
  theirs(rows.free("parallel_write", "DeepSpeed's parallel writing."));
  theirs(rows.free("writer", "DeepSpeed's writer."));
}

void declare_recompute(Schema& s) {
  auto recompute = section(
      s,
      {.path = "recompute",
       .doc = "Activations computed again in backward instead of kept.",
       .vocabulary = kOwn,
       .plain_key = "policy"},
      [](auto& c) -> auto& { return c.recompute; });
  recompute.key("policy", &RecomputeConfig::policy,
                "selective: results inside a layer that are cheap to recompute; full: everything "
                "but a layer's input.");
  recompute
      .key("every", &RecomputeConfig::every,
           "Layers from one recomputed layer to the next (2: layers 0, 2, 4, ... recompute); the "
           "others keep their activations.")
      .at_least(1)
      .in("layers");
}

void declare_rest(Schema& s) {
  auto kernels = section(
      s, {.path = "kernels", .doc = "Implementations of the computation.", .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.kernels; });
  kernels.key("products", &KernelsConfig::products,
              "Library that multiplies matrices; auto: by vendor and instructions of the CPU.");
  kernels.key("attention", &KernelsConfig::attention,
              "Implementation of attention on GPUs. cudnn: cuDNN 9 in bf16 (heads of up to 128 "
              "elements, on compute capability 9.x 256 and documents of a row as sequences of "
              "their own; other bits than own), own kernels elsewhere. amx: on CPUs with matrix "
              "units for bf16 (Intel's AMX) these multiply in bf16 (other bits). auto: "
              "cudnn on compute capability 9.0, where it was measured, if cuDNN 9.19 or later is "
              "installed, documents with heads of 96 elements and more alone, as own is faster for "
              "smaller ones; else own, as amx has run on no such CPU yet.");
  kernels.key("step_graph", &KernelsConfig::step_graph,
              "A step on GPUs without offload and pipelines is recorded once (CUDA graphs) and "
              "started as a whole, which saves small models the time to start their kernels (2 to "
              "3 % of a step of SmolLM2-135M on an H200).");

  auto comm = section(
      s, {.path = "comm", .doc = "Communication between ranks.", .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.comm; });
  comm.key("backend", &CommConfig::backend, "auto: nccl between GPUs, gloo between hosts.");
  comm.key("timeout", &CommConfig::timeout,
           "Longest wait for another rank in a collective; 0 or auto: ten times the slowest step "
           "of the run so far, at least ten minutes, and half an hour until the first step is "
           "done. Work that a rank does alone is waited for while its heartbeat continues.")
      .range(0,
             // a week: more would be no limit, and no longer fit the clocks and polls that wait
             604'800)
      .defaults_to("auto")
      .in("seconds");
  comm.key("deterministic", &CommConfig::deterministic,
           "Sums on GPUs add in rank order, 16 bits in fp32, by ftrun's kernels instead of NCCL's, "
           "whose order and rounding follow its topology. Costs a second pass over what is summed "
           "and 32 MiB a group. On CPUs sums always add in rank order.");

  auto out = section(
      s, {.path = "export", .doc = "The Hugging Face folder at the end.", .vocabulary = kOwn},
      [](auto& c) -> auto& { return c.model_export; });
  out.key("enabled", &ExportConfig::enabled, "Write export/ when training has ended.");
  out.key("which", &ExportConfig::which,
          "The weights after the last step, or those of checkpoint.keep_best.");
  out.key("dtype", &ExportConfig::dtype,
          "dtype of the written weights; auto: the model's own; fp32 for an adapter.");

  auto top = top_level(s, kOwn);
  top.key("output_dir", &Config::output_dir,
          "Run folder: logs, metrics, checkpoints, export. Must be empty or resumed.");
  top.key("device", &Config::device,
          "The device that ranks compute on; auto: NVIDIA GPUs where this process sees some that "
          "support what the config requests, else CPUs.")
      .or_auto();
  top.key("threads", &Config::threads,
          "Threads of a rank; 0 = the cores that this machine's ranks may use (affinity, cgroup "
          "quota), divided by the number of those ranks.")
      .range(0, 4096)
      .in("threads");
}

}  // namespace

void declare_own_sections(Schema& s) {
  declare_model_and_data(s);
  declare_adapter(s);
  declare_quantization(s);
  declare_train(s);
  declare_parallel(s);
  declare_recompute(s);
  declare_checkpoint(s);
  declare_rest(s);
}

}  // namespace ftrun
