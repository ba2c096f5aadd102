#pragma once

#include <memory>

#include "storage/block_queue.h"

namespace ftrun {

/// QueueOrErrno is a queue, or the errno with which the kernel refused it.
struct QueueOrErrno {
  std::unique_ptr<BlockQueue> queue;
  int error_number = 0;
};

/// Opens a queue that uses io_uring. A kernel whose io_uring cannot wait with a time limit (before
/// 5.11) is treated as one that refuses it. With `single_submit` each block has its own system
/// call.
QueueOrErrno open_ring_queue(int fd, int depth, bool single_submit);

}  // namespace ftrun
