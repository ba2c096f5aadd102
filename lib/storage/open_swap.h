#pragma once

#include <memory>
#include <string>

#include "base/owned_fd.h"
#include "storage/block_queue.h"
#include "storage/storage_system.h"
#include "storage/swap_file.h"

namespace ftrun {

/// A swap file that is open, reserved and nameless, and the queue that moves its blocks.
struct OpenedSwap {
  /// Folder and the name it had for a moment: what messages call it.
  std::string path;
  OwnedFd fd;
  bool direct = false;
  bool ring = false;
  std::unique_ptr<BlockQueue> queue;
};

/// Makes the folder, the file and the queue; a notice for each thing the machine refused.
/// Error(kUsage) for options that cannot hold, Error(kEnvironment) for what the disk refuses.
OpenedSwap open_swap(const SwapOptions& options, StorageSystem& system);

}  // namespace ftrun
