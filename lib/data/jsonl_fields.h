#pragma once

#include <string>
#include <string_view>

namespace ftrun {

/// JsonlField is the meaning of a field of a JSONL line.
enum class JsonlField {
  kInputIds,
  kLabels,
  kAttentionMask,
  kPositionIds,
  /// 1 for each token that counts in the loss, 0 for the others.
  kLossMask,
  /// A mask whose meaning is not known.
  kOtherMask,
  /// Lengths of the documents that share a line.
  kLengths,
  /// Positions at which documents of a line begin, and its end.
  kBoundaries,
  /// The number of the document to which each token belongs.
  kSegments,
  kWeights,
  /// A chosen or rejected answer.
  kPreference,
  /// A flag that says whether the answer is to be imitated.
  kDesirable,
  /// A flag that says whether the line is trained on.
  kTrain,
  /// Targets of the loss in another form than labels: ids or numbers.
  kOtherTargets,
  kMedia,
  /// Metadata that does not affect training: the closed list of docs/data.md.
  kMetadata,
  kUnknown,
};

/// Returns the meaning of a key, given as the text between its quotes. Case, "_", "-" and spaces do
/// not count.
JsonlField classify_jsonl_key(std::string_view key);

}  // namespace ftrun
