#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/sample_set.h"
#include "engine/setup.h"
#include "model/detokenizer.h"
#include "report/text_samples.h"

namespace ftrun {

/// The functions of this header make a run's results from the trained weights: an export, and
/// samples of text.

struct ExportOutcome {
  /// `stop` ended the export, and nothing of it remains.
  bool stopped = false;
  /// A failure that only the writing rank had between pieces; the other ranks do not know of it.
  std::exception_ptr failure;
  /// The trained tensors that have not changed since training began (MovedTensors), known to the
  /// writing rank; "" if all have changed.
  std::string unmoved;
};

/// Writes the trained weights as a Hugging Face folder, export_folder(), in the dtype the config
/// requests. Collective: the rank with `writes` receives the other ranks' state piece by piece,
/// never a whole model. All ranks call `stop` (collective, the same result for all) before each
/// piece. Throws a failure of the ranks' joint work; the groups are then aborted, and the other
/// ranks fail at once.
ExportOutcome export_weights(const Config& config, TrainingSetup& setup, bool writes,
                             const std::function<bool()>& stop);

/// Reads the model's tokenizer, which makes text of tokens. Returns nothing when the config asks
/// for no text or the model folder has no tokenizer.json. Throws Error(kBadInput) for a tokenizer
/// that cannot be read.
std::optional<Detokenizer> read_detokenizer(const Config& config, const TrainingSetup& setup);

/// Returns the prompts, beginnings of validation documents that the model continues, and prepares
/// the model: this does everything that may fail on a single rank. If a document begins with tokens
/// that are not trained on (a chat), the prompt is all of these.
std::vector<std::vector<int32_t>> sample_prompts(const Config& config, TrainingSetup& setup,
                                                 const SampleSet& validation);

/// Generates the model's continuation of a prompt. Returns prompt and text; both are empty on ranks
/// without `detokenizer`. Collective over all ranks if a single rank cannot run the model. Each
/// rank calls `stop` before each token; the text ends when it returns true.
TextSample sample_text(const Config& config, TrainingSetup& setup,
                       const std::vector<int32_t>& prompt, const Detokenizer* detokenizer,
                       const std::function<bool()>& stop);

}  // namespace ftrun
