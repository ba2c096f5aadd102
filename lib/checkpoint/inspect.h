#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"

namespace ftrun {

/// Everything that is wrong with a checkpoint, read in full: one sentence a problem, with the file
/// and, for damaged data, the tensor. `folder` is a step folder, or a checkpoints/ folder, of which
/// every step folder and `latest` are checked. Empty when all is good. Error(kBadInput) when the
/// path is neither.
std::vector<std::string> verify_checkpoint(const std::string& folder);

/// Description is a list of names and values that tell a person what a folder holds.
struct Description {
  using Rows = std::vector<std::pair<std::string, std::string>>;
  Rows facts;
  /// `tensors` has dtype and shape of each tensor, where there are tensors to list.
  Rows tensors = {};
  /// Writes the description as several lines, in columns.
  std::string text() const;
};

/// Describes a step folder, or a checkpoints/ folder.
Description describe_checkpoint(const std::string& folder);

/// The step of a checkpoint, with those of its steps that were skipped: "500 (2 skipped)".
std::string step_text(const CheckpointMeta& meta);

/// Describes a Hugging Face model folder.
Description describe_model(const std::string& folder);

/// Describes an adapter's folder in PEFT's layout, and how its base was quantized.
Description describe_adapter(const std::string& folder);

/// A folder that scripts/import_checkpoint.py wrote, read and verified as a whole.
Description describe_import(const std::string& folder);

}  // namespace ftrun
