#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/file.h"

namespace ftrun {

/// SpaceWanted is what a run is going to write, before it begins.
struct SpaceWanted {
  /// The folder of the checkpoints, and bytes of one.
  std::string checkpoints;
  int64_t checkpoint_bytes = 0;
  /// checkpoint.keep_last and .every; steps of the whole run, 0 when that is not known yet.
  int64_t keep_last = 0;
  /// Says whether the best one is kept besides.
  bool keep_best = false;
  int64_t every = 0;
  /// checkpoint.every_minutes is set: how many will be saved is not known.
  bool by_minutes = false;
  int64_t steps = 0;
  /// The folder of the export and its bytes; 0 for none.
  std::string exported;
  int64_t export_bytes = 0;
  /// The folder of the disk tier and what the run will have there; 0 for none.
  std::string swap;
  int64_t swap_bytes = 0;
  /// Bytes that the largest file of checkpoints and export has at least, and that a file of this
  /// process may have at most (ulimit -f).
  int64_t largest_file_bytes = 0;
  int64_t file_size_limit = std::numeric_limits<int64_t>::max();
};

/// A warning with the arithmetic ("" for none) where checkpoints (those that are kept, and the one
/// under way) and export will not fit; Error(kEnvironment) where not even one checkpoint and the
/// export do, or where a file would be larger than this process may write. What the disk tier takes
/// of the same file system is not free. Checkpoints that are there already are counted; what a
/// killed run left, and the start will remove, counts as free.
std::string admit_space(FileSystem& files, const SpaceWanted& wanted);

}  // namespace ftrun
