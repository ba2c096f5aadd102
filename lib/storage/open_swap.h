#pragma once

#include <memory>
#include <string>

#include "base/owned_fd.h"
#include "storage/block_queue.h"
#include "storage/storage_system.h"
#include "storage/swap_file.h"

namespace ftrun {

/// OpenSwapFile is an open swap file with reserved space and no name, and the queue that moves its
/// blocks.
struct OpenSwapFile {
  /// The path that the file had before its name was removed, for messages.
  std::string path;
  OwnedFd fd;
  bool is_direct = false;
  bool uses_ring = false;
  std::unique_ptr<BlockQueue> queue;
};

/// Makes the folder, the file and the queue, and logs a notice for each feature that the machine
/// refused. Error(kUsage) for invalid options, Error(kEnvironment) for failures of the disk.
OpenSwapFile open_swap(const SwapOptions& options, StorageSystem& system);

}  // namespace ftrun
