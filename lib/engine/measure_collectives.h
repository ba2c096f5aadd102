#pragma once

#include <functional>
#include <map>
#include <string>

#include "machine/machine.h"

namespace ftrun {

/// CollectiveRequest describes one of the ranks that measure the seconds of collectives.
struct CollectiveRequest {
  int rank = 0;
  int ranks = 1;
  /// The address of rank 0's store on this machine, and its socket (rank 0; -1 on the others).
  int port = 0;
  int listen_fd = -1;
  std::string token;
  /// The cores that the ranks share, and the threads that each rank computes with.
  int cores = 1;
  int threads = 1;
  /// The number of samples of each collective, at least 1.
  int samples = 1;
  /// Runs the computation that precedes each collective.
  std::function<void()> compute;
};

/// Measures the seconds of collectives by bytes (Machine::collectives). As in a step, each rank
/// computes before it exchanges, and a separate thread runs the collective: a time includes the
/// waits for ranks that are late and the time in which threads wake up. It does not include the
/// work itself: the elapsed time of the work is subtracted, or its scaled CPU time if there are
/// more threads than cores. A time is the mean of the ranks' means without outliers. Collective:
/// each of `ranks` processes calls it and gets the same result. Throws Error(kPeerLost) if another
/// rank fails.
std::map<std::string, Curve> measure_collectives(const CollectiveRequest& request);

}  // namespace ftrun
