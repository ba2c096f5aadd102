#include "cluster/peers.h"

#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/owned_fd.h"
#include "base/text.h"
#include "base/uninterrupted.h"

namespace ftrun {
namespace {

std::string first_line_of_file(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  char target[PATH_MAX];
  const ssize_t size = ::readlink(path, target, sizeof target);
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : "";
}

struct ProcStat {
  /// Says whether the process could not be examined, for example because no descriptor was free.
  bool unknown = false;
  char state = 0;
  uint64_t start_ticks = 0;
};

/// Reads fields 3 and 22 of /proc/PID/stat. The program's name in front of them may contain spaces
/// and parentheses.
ProcStat read_stat(int pid) {
  ProcStat stat;
  const OwnedFd file(::open(cat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {.unknown = errno != ENOENT && errno != ESRCH};
  std::array<char, 1024> text{};
  const ssize_t size = uninterrupted([&] { return ::read(file.get(), text.data(), text.size()); });
  if (size < 0) return {.unknown = errno != ESRCH};
  const std::string line(text.data(), static_cast<size_t>(size));
  const size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos) return stat;
  std::istringstream fields(line.substr(name_end + 2));
  std::string skipped;
  fields >> stat.state;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  return stat;
}

bool is_in_exit_state(const ProcStat& stat) {
  return !stat.unknown && (stat.state == 0 || stat.state == 'Z' || stat.state == 'X');
}
bool is_in_stop_state(const ProcStat& stat) {
  return stat.state == 'T' || stat.state == 't';
}

double seconds_since_unix_ns(int64_t unix_ns) {
  const auto now = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch());
  return static_cast<double>(now.count() - unix_ns) * 1e-9;
}

std::string last_collective_text(const CollectiveRecord& record) {
  if (record.state == CollectiveState::kNone)
    return "it has entered no collective of the group yet";
  const char* verb = record.state == CollectiveState::kEntered ? "entered" : "finished";
  return cat("its last was ", describe(record), ", ", verb, " ",
             human_seconds(std::max(seconds_since_unix_ns(record.unix_ns), 0.0)), " ago");
}

std::string peer_name(const PeerView& peer) {
  const std::string process =
      peer.identity.pid > 0 ? cat(" (process ", peer.identity.pid, " on ", peer.identity.host, ")")
                            : "";
  return cat("rank ", peer.global_rank, process);
}

/// Returns whether a peer has reached the collective of `own_record`, or has passed it.
bool has_entered(const CollectiveRecord& peer, const CollectiveRecord& own_record) {
  return peer.state != CollectiveState::kNone && peer.sequence >= own_record.sequence;
}

/// Returns whether a peer is in the collective of `own_record` but has given up another one. Its
/// device may then have gone on to this one, which it had not reached before. A peer that has
/// finished the collective or passed it is not what holds it up.
bool entered_after_giving_up(const PeerView& peer, const CollectiveRecord& own_record) {
  return is_in_collective(peer.record, own_record.sequence) &&
         std::ranges::any_of(peer.state.groups, [](const RankState::GroupState& group) {
           return group.record.state == CollectiveState::kAborted;
         });
}

/// WaitChain follows ranks that wait for others: from a rank that has not entered a collective, to
/// the collective of another group in which that rank waits, to the ranks that have not entered
/// this one, and so on.
class WaitChain {
 public:
  WaitChain(const std::vector<PeerView>& views, const CollectiveRecord& own_record, int self,
            const std::vector<PeerView>& others) {
    for (size_t i = 0; i < views.size(); ++i)
      first_present_ +=
          static_cast<int>(i) == self || has_entered(views[i].record, own_record) ? 1 : 0;
    for (const PeerView& view : views) views_by_rank_.emplace(view.global_rank, &view);
    for (const PeerView& view : others) views_by_rank_.emplace(view.global_rank, &view);
    if (self < static_cast<int>(views.size()))
      visited_.insert(views[static_cast<size_t>(self)].global_rank);
  }

  /// Returns what `peer` is doing instead, to be appended to its name; "" if nothing is known. Sets
  /// the culprit.
  std::string waits_text(const PeerView& peer) {
    culprit = peer.global_rank;
    visited_.insert(peer.global_rank);
    if (max_present_ == 0) max_present_ = first_present_, ring_culprit_ = culprit;
    const std::string own_activity = activity_text(peer.state);
    // Ranks that are not on the chain yet are followed first. A rank that is on the chain closes a
    // ring only if there are no others.
    for (const bool closes_ring : {false, true})
      for (const RankState::GroupState& group : peer.state.groups) {
        if (!waited_in(peer.state, group)) continue;
        const std::string waits = waits_in_group_text(peer, group, closes_ring);
        if (!waits.empty()) return waits;
      }
    return own_activity.empty() ? "" : cat("it is in ", own_activity);
  }

  int culprit = -1;
  std::vector<int> unknown;

 private:
  /// Returns whether the rank waits in this group, or did so until its timeout, a moment before
  /// this rank's.
  static bool waited_in(const RankState& state, const RankState::GroupState& group) {
    if (group.record.state == CollectiveState::kAborted) return true;
    return group.record.state == CollectiveState::kEntered && !find_own_work(state);
  }

  /// Returns the text "it waits in all_gather #4 (hidden) of group tensor for rank 3, which ...".
  std::string waits_in_group_text(const PeerView& peer, const RankState::GroupState& group,
                                  bool closes_ring) {
    for (const int rank : group.members) {
      if (rank == peer.global_rank || (visited_.contains(rank) && !closes_ring) ||
          (is_point_to_point(group.record.kind) && rank != partner_rank(group)))
        continue;
      const auto found = views_by_rank_.find(rank);
      if (found == views_by_rank_.end()) {
        unknown.push_back(rank);
        continue;
      }
      const PeerView& other = *found->second;
      const CollectiveRecord theirs = record_of(other, group.name);
      const bool ended =
          other.process == ProcessState::kGone || other.process == ProcessState::kStopped;
      const bool takes_part = is_point_to_point(group.record.kind)
                                  ? is_other_end(theirs, group.record, peer, group)
                                  : has_entered(theirs, group.record);
      if (takes_part && !ended && !other.is_silent) continue;
      const int present = count_entered(group);
      if (present > max_present_) max_present_ = present, ring_culprit_ = rank;
      const char* const waits = group.record.state == CollectiveState::kAborted
                                    ? "it gave up waiting in "
                                    : "it waits in ";
      return cat(waits, describe(group.record), " of group ", group.name, " for ",
                 describe_awaited(other));
    }
    return "";
  }

  std::string describe_awaited(const PeerView& other) {
    const std::string name = peer_name(other);
    const bool was_visited = visited_.contains(other.global_rank);
    if (!was_visited) culprit = other.global_rank;
    if (other.process == ProcessState::kGone) return name + ", which is gone";
    if (other.process == ProcessState::kStopped) return name + ", which is stopped";
    if (other.is_silent) return name + ", which does not respond";
    if (was_visited) {
      culprit = ring_culprit_;
      return name + ": they wait for each other";
    }
    const std::string next = waits_text(other);
    return next.empty() ? name : cat(name, ": ", next);
  }

  int count_entered(const RankState::GroupState& group) const {
    return static_cast<int>(std::ranges::count_if(group.members, [&](int rank) {
      const auto found = views_by_rank_.find(rank);
      return found == views_by_rank_.end() ||
             has_entered(record_of(*found->second, group.name), group.record);
    }));
  }
  static int partner_rank(const RankState::GroupState& group) {
    const auto at = static_cast<size_t>(group.record.peer);
    return group.record.peer >= 0 && at < group.members.size() ? group.members[at] : -1;
  }
  static CollectiveRecord record_of(const PeerView& peer, const std::string& group) {
    const RankState::GroupState* found = peer.state.find_group(group);
    return found == nullptr ? CollectiveRecord{} : found->record;
  }
  /// Returns whether a peer is at the other end of the wanted message: a send waits for its receive
  /// and a receive for its send, and both ends number the messages of one direction in the same
  /// way.
  static bool is_other_end(const CollectiveRecord& theirs, const CollectiveRecord& wanted,
                           const PeerView& peer, const RankState::GroupState& group) {
    const bool back = theirs.peer >= 0 && static_cast<size_t>(theirs.peer) < group.members.size() &&
                      group.members[static_cast<size_t>(theirs.peer)] == peer.global_rank;
    return is_point_to_point(theirs.kind) && theirs.kind != wanted.kind && back &&
           theirs.state != CollectiveState::kNone && theirs.sequence >= wanted.sequence;
  }

  std::map<int, const PeerView*> views_by_rank_;
  std::set<int> visited_;
  /// The number of ranks that have entered this rank's collective, and the largest number that have
  /// entered a collective of the chain. In a ring of ranks that wait for each other, the culprit is
  /// the rank for which the most ranks of a group wait.
  int first_present_ = 0;
  int max_present_ = 0;
  int ring_culprit_ = -1;
};

/// Returns why this rank has to wait for the peer; "" if it does not seem to wait for it.
std::string delay_reason(const PeerView& peer, const CollectiveRecord& own_record) {
  const std::string who = peer_name(peer);
  if (peer.record.state == CollectiveState::kAborted)
    return cat(who, " gave up in ", describe(peer.record));
  if (peer.process == ProcessState::kGone) return cat(who, " is gone");
  if (peer.process == ProcessState::kStopped) return cat(who, " is stopped");
  if (peer.record.state == CollectiveState::kLeft) return cat(who, " has left the group");
  if (peer.is_silent)
    return cat(who, " does not respond",
               peer.has_heartbeat ? "; " + last_collective_text(peer.record) : "");
  if (is_point_to_point(own_record.kind))
    return "";  // each pair of ranks counts its messages separately
  if (!has_entered(peer.record, own_record))
    return cat(who, " has not entered it; ", last_collective_text(peer.record));
  if (peer.record.sequence == own_record.sequence && !same_collective(peer.record, own_record))
    return cat(who, " is in ", describe(peer.record), " instead");
  return "";
}

/// PeerReports holds the texts of one kind of report, and the culprit of each.
struct PeerReports {
  std::vector<std::string> texts;
  std::vector<int> culprits;
};

}  // namespace

PeerIdentity read_own_identity() {
  return read_process_identity(::getpid());
}

PeerIdentity read_process_identity(int pid) {
  utsname names{};
  ::uname(&names);
  PeerIdentity identity;
  identity.host = names.nodename;
  identity.machine = cat(first_line_of_file("/proc/sys/kernel/random/boot_id"), ".",
                         link_target("/proc/self/ns/pid"), ".", ::getuid());
  identity.pid = pid;
  identity.start_ticks = read_stat(pid).start_ticks;
  return identity;
}

std::string identity_text(const PeerIdentity& identity) {
  return cat(identity.host, "\n", identity.machine, "\n", identity.pid, "\n", identity.start_ticks);
}

/// Parses the identity that another process reports. It is not trusted: it is only shown in
/// messages and compared, and never used as a path.
PeerIdentity parse_identity(const std::string& text) {
  constexpr size_t kLongestName = 256;
  std::istringstream lines(text);
  PeerIdentity identity;
  std::getline(lines, identity.host);
  std::getline(lines, identity.machine);
  for (std::string* name : {&identity.host, &identity.machine}) {
    name->resize(std::min(name->size(), kLongestName));
    for (char& c : *name)
      if (c < ' ' || c > '~') c = '?';
  }
  lines >> identity.pid >> identity.start_ticks;
  if (!lines || identity.pid < 0) identity.pid = 0;
  return identity;
}

bool is_stopped(int pid) {
  return is_in_stop_state(read_stat(pid));
}

bool is_gone(int pid) {
  return is_in_exit_state(read_stat(pid));
}

ProcessState read_process_state(const PeerIdentity& peer, const PeerIdentity& self) {
  if (peer.machine != self.machine || peer.pid <= 0) return ProcessState::kUnknown;
  const ProcStat stat = read_stat(peer.pid);
  if (stat.unknown) return ProcessState::kUnknown;
  if (is_in_exit_state(stat) || stat.start_ticks != peer.start_ticks) return ProcessState::kGone;
  return is_in_stop_state(stat) ? ProcessState::kStopped : ProcessState::kRunning;
}

WaitExplanation explain_peers(const std::vector<PeerView>& views,
                              const CollectiveRecord& own_record, int self,
                              const std::vector<PeerView>& others) {
  // A dead rank explains why the others are late; a rank that aborted is always a consequence.
  PeerReports dead, late, gave_up;
  for (size_t i = 0; i < views.size(); ++i) {
    const PeerView& peer = views[i];
    const bool is_relevant =
        !is_point_to_point(own_record.kind) || own_record.peer == static_cast<int>(i);
    if (static_cast<int>(i) == self || !is_relevant) continue;
    std::string text = delay_reason(peer, own_record);
    if (text.empty()) continue;
    const bool ended =
        peer.process == ProcessState::kGone || peer.process == ProcessState::kStopped;
    const bool aborted = peer.record.state == CollectiveState::kAborted;
    int culprit = peer.global_rank;
    if (!ended && !aborted && !has_entered(peer.record, own_record)) {
      WaitChain chain(views, own_record, self, others);
      if (const std::string waits = chain.waits_text(peer); !waits.empty()) text += "; " + waits;
      culprit = chain.culprit;
    }
    PeerReports& kind = aborted ? gave_up : ended ? dead : late;
    kind.texts.push_back(std::move(text));
    kind.culprits.push_back(culprit);
  }
  if (!dead.texts.empty()) return {join(dead.texts, "; "), dead.culprits.front()};
  if (!late.texts.empty()) return {join(late.texts, "; "), late.culprits.front()};
  if (!gave_up.texts.empty()) return {join(gave_up.texts, "; "), -1};
  if (!is_point_to_point(own_record.kind)) {
    for (size_t i = 0; i < views.size(); ++i) {
      if (static_cast<int>(i) == self || !entered_after_giving_up(views[i], own_record)) continue;
      WaitChain chain(views, own_record, self, others);
      const std::string waits = chain.waits_text(views[i]);
      if (chain.culprit != views[i].global_rank)
        return {cat(peer_name(views[i]), " has entered it; ", waits), chain.culprit};
    }
    return {"every rank has entered it and none is known to be lost", -1};
  }
  const PeerView& partner = views[static_cast<size_t>(own_record.peer)];
  WaitChain chain(views, own_record, self, others);
  const std::string waits = chain.waits_text(partner);
  return {cat("rank ", partner.global_rank, " is running but has not taken part",
              waits.empty() ? "" : "; ", waits),
          chain.culprit};
}

std::vector<int> ranks_without_views(const std::vector<PeerView>& views,
                                     const CollectiveRecord& own_record, int self,
                                     const std::vector<PeerView>& others) {
  std::set<int> unknown;
  for (size_t i = 0; i < views.size(); ++i) {
    const bool is_relevant =
        !is_point_to_point(own_record.kind) || own_record.peer == static_cast<int>(i);
    if (static_cast<int>(i) == self || !is_relevant ||
        (!is_point_to_point(own_record.kind) && has_entered(views[i].record, own_record) &&
         !entered_after_giving_up(views[i], own_record)))
      continue;
    WaitChain chain(views, own_record, self, others);
    chain.waits_text(views[i]);
    unknown.insert(chain.unknown.begin(), chain.unknown.end());
  }
  return {unknown.begin(), unknown.end()};
}

}  // namespace ftrun
