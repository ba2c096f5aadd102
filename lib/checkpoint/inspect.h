#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_manifest.h"

namespace ftrun {

/// Reads a whole checkpoint and lists its problems: one sentence each, with the file and, for
/// damaged data, the tensor. `folder` is a step folder, or a checkpoints/ folder, whose step
/// folders and `latest` are all checked. The list is empty if there is no problem. Throws
/// Error(kBadInput) if the path is neither.
std::vector<std::string> verify_checkpoint(const std::string& folder);

/// FolderDescription is a list of names and values that describe a folder for the user.
struct FolderDescription {
  using NamedValues = std::vector<std::pair<std::string, std::string>>;
  NamedValues facts;
  /// The dtype and shape of each tensor, if there are tensors to list.
  NamedValues tensors = {};
  /// Formats the description as several lines, in columns.
  std::string text() const;
};

/// Describes a step folder, or a checkpoints/ folder.
FolderDescription describe_checkpoint(const std::string& folder);

/// Returns the step of a checkpoint, with the number of skipped steps: "500 (2 skipped)".
std::string step_text(const CheckpointMeta& meta);

/// Describes a Hugging Face model folder.
FolderDescription describe_model(const std::string& folder);

/// Describes an adapter's folder in PEFT's layout, and the quantization of its base.
FolderDescription describe_adapter(const std::string& folder);

/// Reads and verifies a whole folder that scripts/import_checkpoint.py wrote, and describes it.
FolderDescription describe_import(const std::string& folder);

}  // namespace ftrun
