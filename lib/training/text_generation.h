#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "config/config.h"
#include "data/sequence_set.h"
#include "engine/setup.h"
#include "model/detokenizer.h"
#include "report/text_samples.h"

namespace ftrun {

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
std::vector<std::vector<int32_t>> choose_sample_prompts(const Config& config, TrainingSetup& setup,
                                                        const SequenceSet& validation);

/// Generates the model's continuation of a prompt. Returns prompt and text; both are empty on ranks
/// without a detokenizer. Collective over all ranks if a single rank cannot run the model. Each
/// rank calls `stop` before each token; the text ends when it returns true.
TextSample generate_sample(const Config& config, TrainingSetup& setup,
                           const std::vector<int32_t>& prompt, const Detokenizer* detokenizer,
                           const std::function<bool()>& stop);

}  // namespace ftrun
