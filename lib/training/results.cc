#include "training/results.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "axes/mesh.h"
#include "base/as_error.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/log.h"
#include "base/text.h"
#include "data/sequence_reader.h"
#include "engine/changed_tensors.h"
#include "engine/generate.h"
#include "inputs/export_options.h"
#include "inputs/weights_check.h"

namespace ftrun {
namespace {

/// Returns the beginning of the document at [begin, end) of a sequence: all tokens before the first
/// token that is trained on, or `count` tokens if all tokens except the first are trained on. The
/// label at a position is the next token.
std::vector<int32_t> beginning_of(const Batch& sequence, size_t begin, size_t end, int64_t count) {
  size_t context = begin;
  while (context < end && sequence.labels[context] < 0) ++context;
  const bool masked = context > begin && context < end;
  const size_t stop = masked ? context + 1 : std::min(end, begin + static_cast<size_t>(count));
  return {sequence.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
          sequence.tokens.begin() + static_cast<std::ptrdiff_t>(stop)};
}

/// Finds the first position of each document of a sequence, and the end of the last document,
/// without padding.
std::vector<size_t> document_bounds(const Batch& sequence) {
  std::vector<size_t> bounds;
  size_t end = sequence.tokens.size();
  while (end > 0 && sequence.labels[end - 1] < 0 &&
         sequence.tokens[end - 1] == sequence.tokens.back())
    --end;
  for (size_t i = 0; i < end; ++i)
    if (static_cast<size_t>(sequence.starts[i]) == i) bounds.push_back(i);
  bounds.push_back(end);
  return bounds;
}

/// InitialWeightsReader reads the initial values of the trained tensors, which ChangedTensors
/// compares with the trained values. If they can no longer be read, nothing is compared, because
/// the export must not fail for this reason.
class InitialWeightsReader {
 public:
  InitialWeightsReader(const Config& config, const TrainingSetup& setup, DType dtype) {
    if (!setup.folder().has_intact_files()) return;
    try {
      const std::string& begun_from = config.adapter.path;
      if (!begun_from.empty()) adapter_.emplace(find_adapter_folder(begun_from).folder);
      initial_.emplace(setup.folder(), static_cast<uint64_t>(config.train.seed),
                       adapter_ ? &*adapter_ : nullptr);
      initial_->check_fit(setup.train_plan().model);
      changed_tensors_.emplace(setup.train_plan().model, *initial_, dtype);
    } catch (const Error& error) {
      log_debug(cat("cannot check whether trained tensors changed: ", error.message()));
    }
  }
  ChangedTensors* changed_tensors() { return changed_tensors_ ? &*changed_tensors_ : nullptr; }

 private:
  std::optional<AdapterFolder> adapter_;
  std::optional<InitialWeights> initial_;
  std::optional<ChangedTensors> changed_tensors_;
};

/// ExportStopped is thrown through export_model(), which then removes the files that it has
/// written.
struct ExportStopped {};

/// PieceCollector does one rank's part of the joint work on each piece of the export: all ranks
/// agree on whether to stop, and the writing rank receives the piece.
class PieceCollector {
 public:
  /// Keeps references to all arguments. `changed_tensors` is null except on the writing rank.
  PieceCollector(TrainingSetup& setup, bool writes, const std::function<bool()>& stop,
                 ChangedTensors* changed_tensors)
      : setup_(setup), writes_(writes), stop_(stop), changed_tensors_(changed_tensors) {}

  /// Collects a piece. Collective. If this rank fails, it aborts all groups, because the other
  /// ranks would wait for it.
  void collect(const ExportPiece& piece, std::span<float> out) {
    ++next_piece_;
    try {
      if (stop_()) throw ExportStopped{};
      if (is_sender())
        setup_.state().gather_elements(piece.tensor, piece.begin, piece.end, writes_,
                                       *setup_.communicators().host_model, out,
                                       setup_.save_buffers().sectors());
      if (changed_tensors_ != nullptr && !out.empty())
        changed_tensors_->compare(piece.tensor, piece.begin, out);
    } catch (const std::exception& exception) {
      has_failed_ = true;
      const std::string reason =
          cat("it failed at exporting ", piece.tensor, ": ", as_error(exception).message());
      for (Communicator* group : setup_.communicators().distinct_communicators())
        group->abort(reason);
      throw;
    }
  }

  /// Takes part in collecting the remaining pieces, and drops them.
  void collect_remaining(const std::vector<ExportPiece>& pieces) {
    std::vector<float> dropped;
    for (size_t i = next_piece_; i < pieces.size(); ++i) {
      if (writes_) dropped.resize(static_cast<size_t>(pieces[i].end - pieces[i].begin));
      collect(pieces[i], dropped);
    }
  }

  bool has_failed() const { return has_failed_; }

 private:
  /// Returns whether this rank sends its state. All replicas hold the same state, so only the ranks
  /// of the first replica send; the others only take part in the agreement.
  bool is_sender() const { return setup_.plan().options.state.replica == 0; }

  TrainingSetup& setup_;
  const bool writes_;
  const std::function<bool()>& stop_;
  ChangedTensors* changed_tensors_;
  size_t next_piece_ = 0;
  bool has_failed_ = false;
};

/// Throws an Error unless the export can be opened as a run would open it, and has every tensor in
/// its shape.
void check_loads(const ExportOptions& options, const ModelDescription& model) {
  if (options.format == ExportFormat::kAdapter) {
    check_adapter(model, AdapterFolder(options.folder));
    return;
  }
  ModelFolder folder(options.folder);
  map_to_model_names(folder, model, /*logs_notices=*/false);
  check_model_weights(model, folder);
}

/// Writes the export on the writing rank. Returns an exception that occurred between pieces, which
/// the other ranks do not notice.
std::exception_ptr write_export(const ExportOptions& options,
                                const std::vector<ExportTensor>& tensors,
                                const ModelDescription& model, PieceCollector& pieces) {
  try {
    export_model(
        posix_files(), options, tensors,
        [&](const ExportPiece& piece, std::span<float> out) { pieces.collect(piece, out); });
    check_loads(options, model);
  } catch (const std::exception&) {
    if (pieces.has_failed()) throw;
    return std::current_exception();
  }
  return nullptr;
}

/// The number of elements of a piece of a run's export. The values of a piece are in the memory
/// that saves use, because no save is in progress. All other memory of the export is small compared
/// with that of a step.
constexpr int64_t kPieceElements = int64_t{1} << 18;

/// Returns the export options of the config, with pieces in the memory of the save buffers.
ExportOptions options_of_run(const Config& config, const TrainingSetup& setup) {
  ExportOptions options = export_options(config, setup.model_config());
  options.piece_elements = kPieceElements;
  options.piece_buffer = setup.save_buffers().file();
  return options;
}

/// Returns the path of the tokenizer for text samples; "" if the config asks for none, or the model
/// folder has no tokenizer.json.
std::string tokenizer_of_samples(const Config& config, const TrainingSetup& setup) {
  const std::string tokenizer = setup.folder().path() + "/tokenizer.json";
  const bool is_read = config.train.generate.prompt_tokens > 0 && posix_files().exists(tokenizer);
  return is_read ? tokenizer : "";
}

}  // namespace

int64_t export_working_bytes(const Config& config, TrainingSetup& setup) {
  if (!config.model_export.enabled) return 0;
  const bool receives = setup.communicators().host_model->size() > 1;
  return setup.state().gather_bytes(kPieceElements) +
         (receives ? kPieceElements * dtype_bytes(DType::kF32) : 0) +
         export_whole_bytes(
             export_tensors(options_of_run(config, setup), setup.train_plan().model));
}

ExportOutcome export_weights(const Config& config, TrainingSetup& setup, bool writes,
                             const std::function<bool()>& stop) {
  ExportOptions options = options_of_run(config, setup);
  if (options.format == ExportFormat::kModel) options.config_json = setup.folder().config_json();
  const std::vector<ExportTensor> tensors = export_tensors(options, setup.train_plan().model);
  std::optional<InitialWeightsReader> initial_weights;
  if (writes) initial_weights.emplace(config, setup, options.dtype);
  PieceCollector pieces(setup, writes, stop,
                        initial_weights ? initial_weights->changed_tensors() : nullptr);
  ExportOutcome outcome;
  try {
    if (writes) outcome.failure = write_export(options, tensors, setup.train_plan().model, pieces);
    // After a failure of the writing rank the other ranks continue to send. It receives and drops
    // the remaining pieces, so that all ranks reach the point where the failure is reported.
    const bool alone = setup.communicators().host_world->size() == 1;
    if (!writes || (outcome.failure && !alone))
      pieces.collect_remaining(export_pieces(options, tensors));
  } catch (const ExportStopped&) {
    outcome.stopped = true;
  }
  if (initial_weights && initial_weights->changed_tensors() != nullptr)
    outcome.unchanged_warning = initial_weights->changed_tensors()->warning();
  return outcome;
}

std::optional<Detokenizer> read_detokenizer(const Config& config, const TrainingSetup& setup) {
  const std::string tokenizer = tokenizer_of_samples(config, setup);
  if (tokenizer.empty()) return std::nullopt;
  return Detokenizer::parse(read_file(tokenizer), tokenizer);
}

int64_t detokenizer_bytes(const Config& config, const TrainingSetup& setup) {
  std::error_code error;
  const auto file_bytes = std::filesystem::file_size(tokenizer_of_samples(config, setup), error);
  if (error) return 0;
  // The text; and of each token a node of the parsed vocabulary and one of the map by ids, whose
  // strings have blocks of their own if they are long. Added tokens need more, but are few.
  constexpr int64_t kOfToken = 240;
  return static_cast<int64_t>(file_bytes) + kOfToken * setup.model_config().vocab_rows;
}

std::vector<std::vector<int32_t>> sample_prompts(const Config& config, TrainingSetup& setup,
                                                 const SequenceSet& validation) {
  const ModelDescription& model = setup.generation_plan().model;
  const auto wanted = static_cast<size_t>(config.train.generate.prompts);
  const int64_t longest =
      std::min(config.train.generate.prompt_tokens, model.batch.sequence_length);
  std::vector<std::vector<int32_t>> prompts;
  SequenceReader reader(validation, model.vocab_rows);
  Batch batch;
  for (int64_t sequence = 0; sequence < validation.size() && prompts.size() < wanted; ++sequence) {
    reader.reset(batch, 1);
    reader.fill(batch, 0, sequence);
    const std::vector<size_t> bounds = document_bounds(batch);
    for (size_t i = 0; i + 1 < bounds.size() && prompts.size() < wanted; ++i)
      prompts.push_back(beginning_of(batch, bounds[i], bounds[i + 1], longest));
  }
  return prompts;
}

TextSample sample_text(const Config& config, TrainingSetup& setup,
                       const std::vector<int32_t>& prompt, const Detokenizer* detokenizer,
                       const std::function<bool()>& stop) {
  const GenerateConfig& wanted = config.train.generate;
  // The pipeline stage with the head has the logits.
  const StateOptions& state = setup.plan().options.state;
  const int head_stage = state.pipeline.last_stage();
  const GenerateOptions options{
      .tokens = wanted.tokens,
      .temperature = wanted.temperature,
      .seed = static_cast<uint64_t>(config.train.seed),
      .stop_ids = setup.model_config().eos_ids,
      .sampling_rank = state_mesh(state).rank_at({.pipeline = head_stage}),
      .has_logits = state.pipeline_stage == head_stage,
      .should_stop = stop};
  Communicator* others = setup.needs_all_ranks() ? setup.communicators().host_world : nullptr;
  const std::vector<int32_t> text = generate(setup.generation_executor(), setup.generation_plan(),
                                             setup.memory(), prompt, options, others);
  if (detokenizer == nullptr) return {};
  return {static_cast<int64_t>(prompt.size()), detokenizer->decode(prompt),
          detokenizer->decode(text)};
}

}  // namespace ftrun
