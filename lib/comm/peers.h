#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/collective.h"

namespace ftrun {

/// Who a rank is, as it tells its peers when they meet.
struct PeerIdentity {
  std::string host;
  /// Equal on two ranks exactly when they can open each other's files under /proc: same boot of the
  /// same machine, same process-id namespace, same user.
  std::string machine;
  int pid = 0;
  /// Start time of the process in clock ticks: tells a reused process id from ours.
  uint64_t start_ticks = 0;

  bool same_process(const PeerIdentity& other) const {
    return machine == other.machine && pid == other.pid && start_ticks == other.start_ticks;
  }
};

PeerIdentity own_identity();
std::string identity_text(const PeerIdentity& identity);
PeerIdentity parse_identity(const std::string& text);

enum class ProcessState { kUnknown, kRunning, kStopped, kGone };
/// Looks under /proc; kUnknown for a rank of another machine.
ProcessState process_state(const PeerIdentity& peer, const PeerIdentity& self);

/// What one rank knows of another when it must explain a failure.
struct PeerView {
  int global_rank = 0;
  PeerIdentity identity;
  ProcessState process = ProcessState::kUnknown;
  /// No sign of life on the control connection although there should have been some.
  bool silent = false;
  CollectiveRecord record;
};

/// Names the ranks that keep `mine` from finishing and why: gone, stopped, silent, not yet there,
/// in another collective. `views` is by rank in the group, `self` ours.
std::string explain_peers(const std::vector<PeerView>& views, const CollectiveRecord& mine,
                          int self);

}  // namespace ftrun
