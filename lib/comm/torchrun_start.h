#pragma once

// Only this folder's sources include this header, because it includes c10d's.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "comm/rendezvous.h"

namespace ftrun {

// The store that torchrun's agent serves outlives the ranks: it still holds what ranks of earlier
// starts wrote. The number of earlier starts cannot distinguish starts, as each agent counts the
// failures of its own workers. So rank 0 draws a word for each start, and the others read it:
//
//   ftrun/launch          drawn once for all starts of the launch
//   ftrun/starts          how many starts rank 0 has announced
//   ftrun/start           the number of ranks, and the word of the start that rank 0 announced last
//   ftrun/WORD/rank/R     a random number of the process that wants to be rank R of that start
//   ftrun/WORD/members    the launch, the number of earlier starts, and the random numbers of all
//                         ranks, once all ranks have registered
//
// A rank belongs to the start whose member list contains its random number. A rank may read the
// word of a dead start: one that nobody completes, or whose members are processes that have ended.
// It then waits until rank 0 announces another word.

struct TorchrunStart {
  /// The prefix of the keys of this start.
  std::string prefix;
  TorchrunLaunch launch;
};

/// Agrees with the other ranks on the start they belong to. Collective: all ranks of one start.
/// Throws Error(kPeerLost) naming the ranks that did not register within options.timeout.
TorchrunStart agree_on_start(c10d::Store& store, const RendezvousOptions& options);

}  // namespace ftrun
