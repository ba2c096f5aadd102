#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/best_checkpoint.h"
#include "checkpoint/checkpoint_group.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/save_buffers.h"

namespace ftrun {

struct SaveOptions {
  /// The run folder's checkpoints/, on a file system that all ranks can access.
  std::string root;
  /// The number of checkpoints that are kept, including the new one; 0 keeps all. The best
  /// checkpoint is kept in addition.
  int64_t keep_last = 0;
  /// Says whether every file is read back and verified before the checkpoint is committed.
  bool verify_written = true;
  /// The rank's memory for saves; null: memory is allocated for this save only.
  const SaveBuffers* buffers = nullptr;
  /// The record of the new checkpoint if it is the best so far.
  std::optional<BestCheckpoint> best = std::nullopt;
};

struct SaveResult {
  /// The path of the step folder.
  std::string folder;
  /// The number of bytes of all ranks' files.
  int64_t bytes = 0;
  /// Says whether all files were read back from the disk. False if some came from the kernel's page
  /// cache, or were not read back.
  bool read_from_disk = true;
  /// Seconds of the save that this rank spent on reading its files back.
  double read_back_seconds = 0;
};

/// Saves a checkpoint. Collective: every rank of `group` calls this with its own slices and the
/// same meta and options. The checkpoint appears complete and synced, or not at all; if any rank
/// fails, all throw the same Error and earlier checkpoints stay unchanged. An Error that says "was
/// written" is thrown after the checkpoint was committed. Several ranks may hold the same slice;
/// each element that a later run needs must be held by some rank.
SaveResult save_checkpoint(FileSystem& files, const SaveOptions& options,
                           const CheckpointMeta& meta, const std::vector<StateSlice>& slices,
                           const CheckpointGroup& group);

/// Removes what interrupted saves left below `root`: folders and files with exactly the names that
/// a save gives them, but no links. One process calls it, before the run begins.
void clean_checkpoints(FileSystem& files, const std::string& root);
/// Returns the bytes on disk that clean_checkpoints() would free. Changes nothing.
int64_t checkpoint_leftover_bytes(FileSystem& files, const std::string& root);

}  // namespace ftrun
