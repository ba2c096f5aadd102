#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"

namespace ftrun {

/// BestCheckpoint names the best checkpoint of a run: it is the content of the file `best` next to
/// `latest` (docs/checkpoint.md). The named checkpoint is not removed with older ones.
struct BestCheckpoint {
  int64_t step = 0;
  /// The metric, "validation.loss", and its value after that step.
  std::string metric;
  double value = 0;
};

/// The name of the file next to the checkpoints that holds this record.
inline constexpr const char* kBestFile = "best";

/// Replaces the record below `root` atomically.
void write_best_record(FileSystem& files, const std::string& root, const BestCheckpoint& best);
/// Reads the best checkpoint; nothing if there is none, or if its value is not finite. Throws
/// Error(kBadInput) if the record cannot be read.
std::optional<BestCheckpoint> read_best_record(FileSystem& files, const std::string& root);
void remove_best_record(FileSystem& files, const std::string& root);

}  // namespace ftrun
