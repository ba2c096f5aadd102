#pragma once

#include <string>

#include "config/config.h"
#include "data/sample_set.h"
#include "exec/setup.h"

namespace ftrun {

/// What a run leaves behind when it has come to its end.

/// Writes the trained weights as a Hugging Face folder, in the dtype the config asks for.
void export_weights(const Config& config, TrainingSetup& setup, const std::string& folder);

/// The beginning of the validation text, continued by the model; "" when the config asks for none
/// or the model folder has no tokenizer.json to read it with. One rank may call it alone: the
/// logits program has no collective.
std::string sample_text(const Config& config, TrainingSetup& setup, const SampleSet& validation);

/// What was planned beside what was allocated, by category; the process's own figures below.
std::string memory_text(const TrainingSetup& setup);

}  // namespace ftrun
