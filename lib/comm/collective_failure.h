#pragma once

#include <string>

namespace ftrun {

/// CollectiveFailure describes how a collective failed, to be reported with rank, collective and
/// peers around it.
struct CollectiveFailure {
  /// "waited 5.0s in", "lost a peer in", "lost a connection in".
  std::string what;
  /// The transport's words, "" for none.
  std::string detail;
  /// Says whether only the time limit has passed: the other ranks still are where they wait.
  bool late = false;
};

}  // namespace ftrun
