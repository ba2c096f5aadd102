#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/collective.h"
#include "cluster/rank_state.h"

namespace ftrun {

/// PeerIdentity says who a rank is, as it reports to its peers when they meet.
struct PeerIdentity {
  std::string host;
  /// Equal on two ranks exactly when they can open each other's files under /proc: same boot of the
  /// same machine, same process-id namespace, same user.
  std::string machine;
  int pid = 0;
  /// Start time of the process in clock ticks: distinguishes a reused process id from ours.
  uint64_t start_ticks = 0;

  bool same_process(const PeerIdentity& other) const {
    return machine == other.machine && pid == other.pid && start_ticks == other.start_ticks;
  }
};

PeerIdentity own_identity();
/// Reads the identity of a process beside ours.
PeerIdentity identity_of(int pid);
std::string identity_text(const PeerIdentity& identity);
PeerIdentity parse_identity(const std::string& text);

enum class ProcessState { kUnknown, kRunning, kStopped, kGone };
/// Says whether a process of this machine is stopped.
bool is_stopped(int pid);
/// Says whether a process has ended, or its first thread has and the others are ending: only then
/// can it be waited for.
bool is_gone(int pid);
/// Reads a peer's state under /proc; kUnknown for a rank of another machine.
ProcessState process_state(const PeerIdentity& peer, const PeerIdentity& self);

/// PeerView is what one rank knows of another when it must explain a failure.
struct PeerView {
  int global_rank = 0;
  PeerIdentity identity;
  ProcessState process = ProcessState::kUnknown;
  /// Says whether the control connection gave no sign of life although it should have.
  bool silent = false;
  /// Says whether the peer's last heartbeat could be read, so that its activity is known.
  bool heard = true;
  /// The peer's collective of the group at hand.
  CollectiveRecord record;
  /// The content of its board (cluster/board_table.h).
  RankState state;
};

/// Explanation says why a collective does not end.
struct Explanation {
  std::string text;
  /// The rank that all wait for in the end; -1 where it is not known.
  int culprit = -1;
};

/// Names the ranks that keep `mine` from finishing and why: gone, stopped, silent, not yet there,
/// in another collective; and, for a rank that is not there, what it does instead. If it waits for
/// others in another group, these are followed to the rank that waits for nobody. `views` is by
/// rank in the group, `self` ours; `others` are ranks of other groups.
Explanation explain_peers(const std::vector<PeerView>& views, const CollectiveRecord& mine,
                          int self, const std::vector<PeerView>& others = {});

/// Lists the ranks that explain_peers() would need to know of and does not.
std::vector<int> unknown_ranks(const std::vector<PeerView>& views, const CollectiveRecord& mine,
                               int self, const std::vector<PeerView>& others);

}  // namespace ftrun
