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

/// Results are what a run makes of the trained weights at its end: an export, and a sample of text.

struct ExportOutcome {
  /// `stop` gave it up, and nothing of it stays.
  bool stopped = false;
  /// A failure of the writer only, between pieces: the other ranks do not know of it.
  std::exception_ptr failure;
  /// The trained tensors that are unchanged since training began (MovedTensors), known to the
  /// writer; "" if all have moved.
  std::string unmoved;
};

/// Writes the trained weights as a Hugging Face folder, export_folder(), in the dtype the config
/// asks for. Collective: the rank that `writes` gets what others hold piece by piece, never a whole
/// model. All ranks ask `stop` (collective, the same answer for all) before each piece. Throws what
/// fails where ranks work together; the groups are then given up, and the others fail at once.
ExportOutcome export_weights(const Config& config, TrainingSetup& setup, bool writes,
                             const std::function<bool()>& stop);

/// Reads the model's tokenizer, to show text with: nothing when the config asks for no text or the
/// model folder has no tokenizer.json. Error(kBadInput) for one that cannot be read.
std::optional<Detokenizer> read_detokenizer(const Config& config, const TrainingSetup& setup);

/// Returns the beginnings of validation documents, which the model continues, and makes the model
/// ready for it: all steps that may fail on a single rank. A document that begins with tokens that
/// are not trained on (a chat) gives all of these.
std::vector<std::vector<int32_t>> sample_prompts(const Config& config, TrainingSetup& setup,
                                                 const SampleSet& validation);

/// Writes the prompt and the model's text after it; empty on ranks without `detokenizer`.
/// Collective over all ranks where a single one cannot run the model. Each of them asks `stop`
/// before each token; the text ends where it says true.
TextSample sample_text(const Config& config, TrainingSetup& setup,
                       const std::vector<int32_t>& prompt, const Detokenizer* detokenizer,
                       const std::function<bool()>& stop);

}  // namespace ftrun
