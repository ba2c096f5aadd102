#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace ftrun {

/// Everything that is wrong with a checkpoint, read in full: one sentence a problem, with the file
/// and, for damaged data, the tensor. `folder` is a step folder, or a checkpoints/ folder, of which
/// every step folder and `latest` are checked. Empty when all is good. Error(kBadInput) when the
/// path is neither.
std::vector<std::string> verify_checkpoint(const std::string& folder);

/// Describes what a step folder or a checkpoints/ folder holds, for a person: several lines.
std::string describe_checkpoint(const std::string& folder);

/// The step of a checkpoint, with those of its steps that were skipped: "500 (2 skipped)".
std::string step_text(const CheckpointMeta& meta);

/// Describes what a Hugging Face model folder holds, for a person: several lines.
std::string describe_model(const std::string& folder);

/// Describes what an adapter's folder in PEFT's layout holds, and how the base was quantized that
/// it was trained on: several lines.
std::string describe_adapter(const std::string& folder);

/// A folder that scripts/import_checkpoint.py wrote, read and verified as a whole.
std::string describe_import(const std::string& folder);

}  // namespace ftrun
