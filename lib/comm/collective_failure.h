#pragma once

#include <string>

namespace ftrun {

/// CollectiveFailure describes how a collective failed. The error message adds the rank, the
/// collective and the peers to it.
struct CollectiveFailure {
  /// "waited 5.0s in", "lost a peer in", "lost a connection in".
  std::string what;
  /// The transport's message, "" if there is none.
  std::string detail;
  /// Says whether the failure is a timeout: the other ranks are still waiting in the collective.
  bool timed_out = false;
};

}  // namespace ftrun
