#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/sequence_set.h"
#include "engine/setup.h"
#include "model/detokenizer.h"
#include "report/text_samples.h"

namespace ftrun {

/// The functions of this header make the results of a run from the trained weights: an export, and
/// text samples.

struct ExportOutcome {
  /// Says whether `stop` ended the export, so that no file of it remains.
  bool stopped = false;
  /// A failure of the writing rank between pieces, which the other ranks do not notice.
  std::exception_ptr failure;
  /// A text that names the trained tensors that have not changed since training began
  /// (ChangedTensors), set on the writing rank; "" if all have changed.
  std::string unchanged_warning;
};

/// Writes the trained weights as a Hugging Face folder, export_folder(), in the dtype the config
/// requests. Collective: the rank with `writes` receives the state of the other ranks piece by
/// piece, never a whole model. All ranks call `stop` (collective; it returns the same on all ranks)
/// before each piece. Throws if a rank fails in the joint work; the groups are then aborted, so
/// that the other ranks fail at once.
///
/// The pieces are in the memory that saves use (TrainingSetup::save_buffers), so no save may be in
/// progress.
ExportOutcome export_weights(const Config& config, TrainingSetup& setup, bool writes,
                             const std::function<bool()>& stop);

/// Returns an upper bound on the bytes that the writing rank's process needs for an export at the
/// end of the run, in addition to the memory that saves use; 0 if the config asks for no export.
int64_t export_working_bytes(const Config& config, TrainingSetup& setup);

/// Reads the model's tokenizer, which converts tokens to text. Returns nothing if the config asks
/// for no text samples, or the model folder has no tokenizer.json. Throws Error(kBadInput) for a
/// tokenizer that cannot be read.
std::optional<Detokenizer> read_detokenizer(const Config& config, const TrainingSetup& setup);

/// Returns an upper bound on the bytes that read_detokenizer() needs while it reads, and keeps; 0
/// if it would read nothing.
int64_t detokenizer_bytes(const Config& config, const TrainingSetup& setup);

/// Returns the prompts (beginnings of validation documents that the model continues) and prepares
/// the model. This does everything that may fail on a single rank. If a document begins with tokens
/// that are not trained on (as in a chat), the prompt consists of all these tokens.
std::vector<std::vector<int32_t>> sample_prompts(const Config& config, TrainingSetup& setup,
                                                 const SequenceSet& validation);

/// Generates the model's continuation of a prompt. Returns prompt and text; both are empty on ranks
/// without a detokenizer. Collective over all ranks if a single rank cannot run the model. Each
/// rank calls `stop` before each token; the text ends when it returns true.
TextSample sample_text(const Config& config, TrainingSetup& setup,
                       const std::vector<int32_t>& prompt, const Detokenizer* detokenizer,
                       const std::function<bool()>& stop);

}  // namespace ftrun
