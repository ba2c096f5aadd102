#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/best.h"
#include "checkpoint/checkpoint_group.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save_room.h"

namespace ftrun {

struct SaveOptions {
  /// The run folder's checkpoints/, on a file system that all ranks see.
  std::string root;
  /// Checkpoints that are kept, the new one among them; 0 keeps all. The best one, if there is one,
  /// is kept beside them.
  int64_t keep_last = 0;
  /// Reads every file back and verifies it before the checkpoint counts.
  bool verify_written = true;
  /// The rank's; null: memory for this save alone.
  const SaveRoom* room = nullptr;
  /// The new one is the best so far.
  std::optional<BestCheckpoint> best = std::nullopt;
};

struct SaveResult {
  /// The step folder.
  std::string folder;
  /// Bytes of all ranks' files.
  int64_t bytes = 0;
  /// All of them were read back from the disk, none from the kernel's memory or not at all.
  bool read_from_disk = true;
  /// The part of the save's time in which this rank read its files back.
  double read_back_seconds = 0;
};

/// Collective: every rank of `group` calls this with its own slices and the same meta and options.
/// The checkpoint appears complete and synced or not at all; when any rank fails, all throw the
/// same Error and earlier checkpoints stay as they are. An Error that says "was written" came after
/// the checkpoint was in place. A slice may be held by several ranks, and
/// every element that a later run needs must be held by one.
SaveResult save_checkpoint(FileSystem& files, const SaveOptions& options,
                           const CheckpointMeta& meta, const std::vector<StateSlice>& slices,
                           const CheckpointGroup& group);

/// Removes what interrupted saves left below `root`: folders and files that have, to the letter,
/// the names a save gives them, and no links. One process calls it, before the run begins.
void clean_checkpoints(FileSystem& files, const std::string& root);
/// The bytes on disk that clean_checkpoints() would free. Changes nothing.
int64_t checkpoint_leftover_bytes(FileSystem& files, const std::string& root);

}  // namespace ftrun
