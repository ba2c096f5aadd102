#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace ftrun {

enum class CommBackend {
  kAuto,          // shared memory when all members share a machine, else Gloo; NCCL on devices
  kGloo,          // TCP between hosts
  kSharedMemory,  // ranks of one machine
  kNccl,          // GPUs; only in builds with CUDA
};
std::string_view backend_name(CommBackend backend);

struct CommOptions {
  CommBackend backend = CommBackend::kAuto;
  /// Longest wait in any collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Gloo: the number of first collectives that are compared among the ranks before they start (a
  /// mismatch would end the process inside Gloo); -1 for all. Shared memory always compares.
  int64_t checked_collectives = 256;
  /// The CUDA device of this rank; -1 for main memory.
  int device = -1;
  /// Adds sums among GPUs in rank order; null leaves them to NCCL (Communicator::Setup).
  SumBlocks sum_blocks = {};
  /// Says whether send() and receive() will be called on a group of GPUs (Communicator::Setup).
  bool carries_messages = false;
};

/// Opens the communicator `name` among `members` (global ranks, ascending, this rank among them).
/// Collective: every member calls it with the same arguments, in the same order of names. Throws
/// Error(kPeerLost) if members do not come, Error(kUnsupported) for a backend that is not built,
/// Error(kBug) if members disagree about the group.
std::unique_ptr<Communicator> open_communicator(Rendezvous& rendezvous, const std::string& name,
                                                const std::vector<int>& members,
                                                const CommOptions& options);

}  // namespace ftrun
