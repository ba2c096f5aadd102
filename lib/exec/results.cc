#include "exec/results.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/as_error.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "exec/export_options.h"
#include "exec/generate.h"

namespace ftrun {
namespace {

/// The first `count` tokens of the validation set's first row.
std::vector<int32_t> first_tokens(const SampleSet& validation, int64_t vocab_rows, int64_t count) {
  RowReader reader(validation, vocab_rows);
  Batch batch;
  reader.start(batch, 1);
  reader.fill(batch, 0, 0);
  batch.tokens.resize(std::min(batch.tokens.size(), static_cast<size_t>(count)));
  return batch.tokens;
}

/// Thrown through export_model, which then removes what it has written.
struct ExportStopped {};

/// Takes part in the pieces behind the first `asked` without keeping any.
void help_with_pieces(const ExportOptions& options, const std::vector<ExportTensor>& tensors, size_t asked,
                      bool receives, const ReadPiece& collect) {
  const std::vector<ExportPiece> pieces = export_pieces(options, tensors);
  std::vector<float> dropped;
  for (size_t i = asked; i < pieces.size(); ++i) {
    if (receives) dropped.resize(static_cast<size_t>(pieces[i].end - pieces[i].begin));
    collect(pieces[i], dropped);
  }
}

/// The writer's part.
void write_export(const ExportOptions& options, const std::vector<ExportTensor>& tensors, bool alone,
                  const ReadPiece& collect) {
  size_t asked = 0;
  try {
    export_model(posix_files(), options, tensors, [&](const ExportPiece& piece, std::span<float> out) {
      ++asked;
      collect(piece, out);
    });
  } catch (const std::exception& exception) {
    // The others go on sending: what is left is taken and dropped, so that all can be told.
    if (as_error(exception).code() != ExitCode::kPeerLost && !alone)
      help_with_pieces(options, tensors, asked, true, collect);
    throw;
  }
}

}  // namespace

bool export_weights(const Config& config, TrainingSetup& setup, bool writes, const std::function<bool()>& stop) {
  ExportOptions options = export_options(config, setup.model_config());
  options.config_json = setup.folder().config_json();
  const std::vector<ExportTensor> tensors = export_tensors(setup.train().model);
  // Replicas hold the same: the first one's ranks send, the others only vote on stopping.
  const bool sends = setup.plan().options.state.replica == 0;
  Communicator& shard = setup.groups().shard_words();
  const ReadPiece collect = [&](const ExportPiece& piece, std::span<float> out) {
    if (stop()) throw ExportStopped{};
    if (sends) setup.state().collect(piece.tensor, piece.begin, piece.end, writes, shard, out);
  };
  try {
    if (writes)
      write_export(options, tensors, setup.groups().words().size() == 1, collect);
    else
      help_with_pieces(options, tensors, 0, false, collect);
  } catch (const ExportStopped&) {
    return false;
  }
  return true;
}

std::optional<Detokenizer> read_words(const Config& config, const TrainingSetup& setup) {
  const std::string tokenizer = setup.folder().path() + "/tokenizer.json";
  if (config.train.generate.prompt_tokens == 0 || !posix_files().exists(tokenizer)) return std::nullopt;
  return Detokenizer::parse(read_file(tokenizer), tokenizer);
}

std::string sample_text(const Config& config, TrainingSetup& setup, const SampleSet& validation,
                        const Detokenizer* words, const std::function<bool()>& stop) {
  const GenerateConfig& wanted = config.train.generate;
  TrainingSetup::Writer& writer = setup.writer();
  const ModelDescription& model = writer.plan.model;
  const std::vector<int32_t> prompt = first_tokens(
      validation, model.vocab_rows, std::min(wanted.prompt_tokens, model.batch.row_tokens));
  const GenerateOptions options{wanted.tokens, wanted.temperature,
                                static_cast<uint64_t>(config.train.seed),
                                setup.model_config().eos_ids, stop};
  Communicator* others = setup.shards_parameters() ? &setup.groups().words() : nullptr;
  const std::vector<int32_t> text =
      generate(*writer.executor, model, setup.memory(), prompt, options, others);
  if (words == nullptr) return "";
  return cat("\nsample (the validation text's first ", prompt.size(),
             " tokens, continued by the model):\n", words->decode(prompt), " >>>",
             words->decode(text), "\n");
}

}  // namespace ftrun
