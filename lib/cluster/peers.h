#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/collective_record.h"
#include "cluster/rank_state.h"

namespace ftrun {

/// PeerIdentity identifies the process of a rank. Ranks exchange it when they connect.
struct PeerIdentity {
  std::string host;
  /// A text that is equal on two ranks if and only if they can open each other's files under /proc:
  /// same boot of the same machine, same process-id namespace, same user.
  std::string machine;
  int pid = 0;
  /// The start time of the process in clock ticks, which distinguishes it from a later process with
  /// the same id.
  uint64_t start_ticks = 0;
};

PeerIdentity read_own_identity();
/// Reads the identity of another process of this machine.
PeerIdentity read_process_identity(int pid);
std::string identity_text(const PeerIdentity& identity);
PeerIdentity parse_identity(const std::string& text);

enum class ProcessState { kUnknown, kRunning, kStopped, kGone };
/// Returns whether a process of this machine is stopped.
bool is_stopped(int pid);
/// Returns whether a process has ended, or its first thread has ended and the others are ending.
/// Waiting for the process returns only after all have ended.
bool is_gone(int pid);
/// Reads a peer's state under /proc; kUnknown for a rank of another machine.
ProcessState read_process_state(const PeerIdentity& peer, const PeerIdentity& self);

/// PeerView holds the facts about a peer from which a rank explains a failure.
struct PeerView {
  int global_rank = 0;
  PeerIdentity identity;
  ProcessState process = ProcessState::kUnknown;
  /// Says whether the control connection was silent although a heartbeat was due.
  bool is_silent = false;
  /// Says whether the peer's last heartbeat could be read, so that its activity is known.
  bool has_heartbeat = true;
  /// The peer's latest collective in the group that failed.
  CollectiveRecord record;
  /// The content of the peer's board (cluster/board_table.h).
  RankState state;
};

/// WaitExplanation says why a collective does not end.
struct WaitExplanation {
  std::string text;
  /// The rank for which all others wait, directly or through others; -1 if it is not known.
  int culprit = -1;
};

/// Names the ranks that keep `own_record` from finishing, and why: gone, stopped, silent, not yet
/// in the collective, in another collective. For a rank that is not in the collective, the text
/// says what the rank does instead. If that rank waits for others in another group, it follows
/// these to the rank that waits for no other; likewise, if all ranks have entered, from a rank
/// that gave up in another group, because its device may have entered only afterwards. `views` is
/// by rank in the group, `self` is this rank's number in the group; `others` are views of ranks of
/// other groups.
WaitExplanation explain_peers(const std::vector<PeerView>& views,
                              const CollectiveRecord& own_record, int self,
                              const std::vector<PeerView>& others = {});

/// Lists the ranks whose views explain_peers() needs and does not have yet.
std::vector<int> ranks_without_views(const std::vector<PeerView>& views,
                                     const CollectiveRecord& own_record, int self,
                                     const std::vector<PeerView>& others);

}  // namespace ftrun
