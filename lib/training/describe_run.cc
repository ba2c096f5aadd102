#include "training/describe_run.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "config/unsupported.h"
#include "data/sequence_reader.h"
#include "engine/choose_gpu.h"
#include "inputs/run_inputs.h"
#include "kernels/measured_attention.h"
#include "model/trained_table.h"
#include "program/plan_notes.h"
#include "training/run_folder_writer.h"

namespace ftrun {
namespace {

/// Returns the CUDA version that the driver supports: "CUDA 13.0".
std::string driver_text(const DeviceInfo& gpu) {
  return cat("CUDA ", gpu.driver_version / 1000, ".", gpu.driver_version % 1000 / 10);
}

/// GPU models for which docs/benchmarks.md has measurements.
constexpr std::string_view kBenchmarkedGpus[] = {"NVIDIA H200", "NVIDIA H100 80GB HBM3"};

bool is_benchmarked_gpu(const std::string& gpu) {
  return std::any_of(std::begin(kBenchmarkedGpus), std::end(kBenchmarkedGpus),
                     [&](std::string_view model) { return gpu.starts_with(model); });
}

void add_gpu_attention_notes(AttentionChoice choice, const Gpu& gpu,
                             std::vector<std::string>& notes) {
  const AttentionLibraryUse use = gpu.kernels().library_use();
  if (use.in_use != "own")
    notes.push_back(cat("attention by ", use.in_use, ", with ", human_bytes(use.workspace_bytes),
                        " of GPU memory in addition to the plan",
                        is_cudnn_measured(gpu.info())
                            ? ""
                            : "; it has not run on a GPU of this compute capability before"));
  else if (choice == AttentionChoice::kCudnn)
    notes.push_back(
        "kernels.attention: cudnn has no effect in this run: cuDNN is used only for bf16 and head "
        "sizes that are a multiple of 8 up to 128 (on GPUs of compute capability 9 up to 256, and "
        "for sequences of several documents), if its workspace needs at most an eighth of the "
        "GPU's memory");
  if (choice == AttentionChoice::kAuto && !use.notice.empty())
    notes.push_back(cat(
        "attention by ftrun's kernels, which take several times as long as cuDNN's: ", use.notice));
}

void add_device_notes(const RunDescriptionInputs& run, std::vector<std::string>& notes) {
  const Gpu* gpu = run.session.gpu();
  if (gpu == nullptr) return;
  notes.push_back(cat("on ", gpu->info().name, " (", driver_text(gpu->info()), ")"));
  if (!is_benchmarked_gpu(gpu->info().name))
    notes.push_back(
        "ftrun has no record of this kind of GPU (docs/benchmarks.md): compare the first losses "
        "with those of device: cpu");
  if (const auto& compared = run.setup.kernel_comparison())
    notes.push_back(cat(compared->operations,
                        " operations compared with the CPU's on a small model in ",
                        human_seconds(compared->seconds), ": off by ", compared->largest_difference,
                        " at most (", compared->worst_operation, ")"));
  if (const std::vector<std::string> features = features_only_emulated_on_gpus(run.request.config);
      !features.empty())
    notes.push_back(
        cat(join(features, ", "),
            ": tested only on emulated GPUs so far: compare the first losses with those of "
            "device: cpu"));
  add_gpu_attention_notes(run.request.config.kernels.attention, *gpu, notes);
  if (!gpu->options().pin_memory)
    notes.push_back(
        "main memory is pageable (pin_memory: false), so copies to and from the GPU block the lane "
        "that runs them");
}

/// Adds a note if the number of cores for each rank is limited, for example by a control group.
void add_thread_notes(const ThreadsInUse& threads, std::vector<std::string>& notes) {
  if (threads.limit_reason.empty()) return;
  if (threads.count <= threads.usable_cores)
    notes.push_back(cat(count_text(threads.count, "thread"), " per rank: ", threads.limit_reason));
  else
    notes.push_back(cat("threads is ", threads.count, ", but a rank's share is ",
                        threads.usable_cores, " (", threads.limit_reason,
                        "), so threads wait for each other; remove threads to use ",
                        count_text(threads.usable_cores, "thread"), " per rank"));
}

/// Returns how values of different ranks are summed (RunManifest::reduction). A single rank sums
/// nothing and is recorded as "rank order, fp32".
std::string reduction_text(const RunDescriptionInputs& run) {
  const bool uses_nccl = run.session.gpu() != nullptr && run.session.world_size() > 1;
  return uses_nccl && !run.request.config.comm.deterministic ? "nccl" : "rank order, fp32";
}

void add_attention_notes(const RunDescriptionInputs& run, std::vector<std::string>& notes) {
  if (run.request.config.kernels.attention != AttentionChoice::kAmx) return;
  if (!run.matmul_libraries || run.matmul_libraries->attention != kOnMatrixUnits)
    notes.push_back(
        "kernels.attention: amx has no effect: this process cannot use matrix units for bf16");
}

void add_matmul_notes(const std::optional<MatmulLibrariesInUse>& libraries,
                      std::vector<std::string>& notes) {
  if (!libraries || libraries->missing.empty()) return;
  notes.push_back(
      cat("matrix multiplication: ", libraries->fp32, ", as ", libraries->missing,
          ", which is faster on this CPU, cannot be loaded; scripts/setup.sh installs it"));
}

/// Returns the text "validation on 64 of 812 sequences (train.evaluation.samples)".
std::string validation_text(const EvaluationConfig& evaluation, const ValidationSet& set) {
  const SequenceSet& data = *set.sequences;
  const int64_t used =
      evaluation.samples == 0 ? data.size() : std::min(evaluation.samples, data.size());
  return cat(set.name, " on ",
             used == data.size() ? cat("all ", used) : cat(used, " of ", data.size()),
             " sequences (train.evaluation.samples)");
}

/// Returns whether a sequence gives the embedding of `token` a gradient: the token must be read at
/// or before a label that counts, in the same document.
bool trains_on(const MicroBatch& sequence, int32_t token) {
  auto reached = static_cast<int32_t>(sequence.tokens.size());
  for (size_t i = sequence.tokens.size(); i-- > 0;) {
    if (sequence.labels[i] >= 0) reached = sequence.starts[i];
    if (sequence.tokens[i] == token && static_cast<int32_t>(i) >= reached) return true;
  }
  return false;
}

/// Returns whether a sequence among the first million tokens of the data gives the embedding of
/// `token` a gradient.
bool trains_on(const SequenceSet& sequences, int64_t vocab_rows, int32_t token) {
  constexpr int64_t kMaxTokens = int64_t{1} << 20;
  const int64_t end =
      std::min(sequences.size(), std::max<int64_t>(1, kMaxTokens / sequences.sequence_length()));
  SequenceReader reader(sequences, vocab_rows);
  MicroBatch batch;
  for (int64_t sequence = 0; sequence < end; ++sequence) {
    reader.reset(batch, 1);
    reader.fill(batch, 0, sequence);
    if (trains_on(batch, token)) return true;
  }
  return false;
}

/// Adds a note about the row of pad_token_id if config.json names one: in transformers, this row of
/// the embedding (padding_idx) gets no gradient.
void add_padding_note(const RunDescriptionInputs& run, std::vector<std::string>& notes) {
  const std::optional<int64_t> row = run.setup.model_config().padding_row;
  const ModelDescription& model = run.setup.train_plan().model;
  const auto is_embedding = [name = cat(tensor_names(model.family).embedding, ".weight")](
                                const TensorInfo& tensor) { return tensor.name == name; };
  const auto embedding = std::find_if(model.tensors.begin(), model.tensors.end(), is_embedding);
  if (!row || embedding == model.tensors.end() || !embedding->trainable) return;
  if (!trains_on(*run.data.train, model.vocab_rows, static_cast<int32_t>(*row))) return;
  const std::string note_begin = cat("token ", *row, ", the model's pad_token_id, is trained on: ");
  if (run.request.config.model.padding_row_gradient == PaddingRowGradient::kTransformers)
    notes.push_back(note_begin +
                    "its row of the embedding gets no gradient from input tokens, as in "
                    "transformers (model.padding_row_gradient: transformers)");
  else
    notes.push_back(note_begin +
                    "its row of the embedding is trained as any other row; transformers gives it "
                    "no gradient, so its gradient norms and losses differ; for the same results "
                    "set model.padding_row_gradient: transformers");
}

}  // namespace

RunManifest describe_run(const RunDescriptionInputs& run) {
  RunManifest manifest = make_manifest(run.request);
  manifest.gpus = run.session.gpu_names();
  manifest.threads = run.threads.count;
  if (const Gpu* gpu = run.session.gpu()) {
    manifest.gpu_driver = driver_text(gpu->info());
    manifest.attention = gpu->kernels().library_use().in_use;
  }
  manifest.reduction = reduction_text(run);
  if (run.matmul_libraries) {
    manifest.matmul_libraries = {{"fp32", run.matmul_libraries->fp32},
                                 {"bf16", run.matmul_libraries->bf16}};
    manifest.attention = run.matmul_libraries->attention;
  }
  manifest.model =
      describe_model(manifest.model.path, run.setup.folder(), run.setup.train_plan().model);
  manifest.data["train"] = describe_data(*run.data.train);
  for (const ValidationSet& set : run.data.validation)
    manifest.data[set.role()] = describe_data(*set.sequences);
  return manifest;
}

std::vector<std::string> list_start_notes(const RunDescriptionInputs& run) {
  std::vector<std::string> notes = mix_lines(*run.data.train);
  for (const std::string& note : run.data.train->data().opening_notices()) notes.push_back(note);
  for (const ValidationSet& set : run.data.validation)
    for (const std::string& note : set.sequences->data().opening_notices()) notes.push_back(note);
  add_device_notes(run, notes);
  add_thread_notes(run.threads, notes);
  add_attention_notes(run, notes);
  add_matmul_notes(run.matmul_libraries, notes);
  add_padding_note(run, notes);
  for (const std::string& note : list_plan_notes(run.request.config, run.setup.plan()))
    notes.push_back(note);
  for (const std::string& line : trained_table(run.setup.train_plan().model)) notes.push_back(line);
  for (const ValidationSet& set : run.data.validation)
    notes.push_back(validation_text(run.request.config.train.evaluation, set));
  return notes;
}

}  // namespace ftrun
