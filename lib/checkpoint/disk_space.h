#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/file.h"

namespace ftrun {

/// DiskSpaceNeeds describes what a run is going to write, before it begins.
struct DiskSpaceNeeds {
  /// The folder of the checkpoints, and the bytes of one checkpoint.
  std::string checkpoints_folder;
  int64_t checkpoint_bytes = 0;
  /// The keys checkpoint.keep_last and checkpoint.every, and the number of steps of the whole run,
  /// 0 if it is not known yet.
  int64_t keep_last = 0;
  /// Says whether the best checkpoint is kept in addition.
  bool keep_best = false;
  int64_t save_interval_steps = 0;
  /// Says whether the key checkpoint.every_minutes is set; the number of checkpoints is then not
  /// known.
  bool saves_by_minutes = false;
  int64_t total_steps = 0;
  /// The folder of the export and its bytes; 0 for none.
  std::string export_folder;
  int64_t export_bytes = 0;
  /// The folder of the disk tier and the bytes that the run will have there; 0 for none.
  std::string swap_folder;
  int64_t swap_bytes = 0;
  /// The minimum size of the largest file of checkpoints and export, and the size limit of files of
  /// this process (ulimit -f).
  int64_t largest_file_bytes = 0;
  int64_t file_size_limit = std::numeric_limits<int64_t>::max();
};

/// Returns a warning with the arithmetic ("" for none) if the checkpoints (those that are kept, and
/// the one in progress) and the export will not fit. Throws Error(kEnvironment) if not even one
/// checkpoint and the export fit, or if a file would be larger than this process may write. Space
/// that the disk tier needs on the same file system does not count as free. Existing checkpoints
/// are counted; the leftovers of a killed run, which the start will remove, count as free.
std::string check_disk_space(FileSystem& files, const DiskSpaceNeeds& needs);

}  // namespace ftrun
