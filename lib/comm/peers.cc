#include "comm/peers.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

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
  char state = 0;
  uint64_t start_ticks = 0;
};

/// Fields 3 and 22 of /proc/PID/stat; the name before them may hold blanks and brackets.
ProcStat read_stat(int pid) {
  const std::string line = first_line_of_file(cat("/proc/", pid, "/stat"));
  const size_t name_end = line.rfind(") ");
  ProcStat stat;
  if (name_end == std::string::npos) return stat;
  std::istringstream fields(line.substr(name_end + 2));
  std::string skipped;
  fields >> stat.state;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  return stat;
}

double seconds_since(int64_t unix_ns) {
  const auto now = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch());
  return static_cast<double>(now.count() - unix_ns) * 1e-9;
}

std::string last_seen(const CollectiveRecord& record) {
  using State = CollectiveRecord::State;
  if (record.state == State::kNone) return "it has entered no collective of the group yet";
  const char* verb = record.state == State::kEntered ? "entered" : "finished";
  return cat("its last was ", describe(record), ", ", verb, " ",
             human_seconds(std::max(seconds_since(record.unix_ns), 0.0)), " ago");
}

/// Why this peer holds us up; "" when it does not seem to.
std::string complaint(const PeerView& peer, const CollectiveRecord& mine) {
  using State = CollectiveRecord::State;
  const std::string who = cat("rank ", peer.global_rank);
  const std::string process =
      peer.identity.pid > 0 ? cat(" (process ", peer.identity.pid, " on ", peer.identity.host, ")")
                            : "";
  if (peer.record.state == State::kAborted)
    return cat(who, process, " gave up in ", describe(peer.record));
  if (peer.process == ProcessState::kGone) return cat(who, process, " is gone");
  if (peer.process == ProcessState::kStopped) return cat(who, process, " is stopped");
  if (peer.record.state == State::kLeft) return cat(who, process, " has left the group");
  if (peer.silent) return cat(who, process, " gives no sign of life; ", last_seen(peer.record));
  if (between_two(mine.kind)) return "";  // sequences of two ranks are counted apart
  const bool there = peer.record.state != State::kNone && peer.record.sequence >= mine.sequence;
  if (!there) return cat(who, process, " has not entered it; ", last_seen(peer.record));
  if (peer.record.sequence == mine.sequence && !same_collective(peer.record, mine))
    return cat(who, process, " is in ", describe(peer.record), " instead");
  return "";
}

}  // namespace

PeerIdentity own_identity() {
  utsname names{};
  ::uname(&names);
  PeerIdentity self;
  self.host = names.nodename;
  self.machine = cat(first_line_of_file("/proc/sys/kernel/random/boot_id"), ".",
                     link_target("/proc/self/ns/pid"), ".", ::getuid());
  self.pid = ::getpid();
  self.start_ticks = read_stat(self.pid).start_ticks;
  return self;
}

std::string identity_text(const PeerIdentity& identity) {
  return cat(identity.host, "\n", identity.machine, "\n", identity.pid, "\n", identity.start_ticks);
}

PeerIdentity parse_identity(const std::string& text) {
  std::istringstream lines(text);
  PeerIdentity identity;
  std::getline(lines, identity.host);
  std::getline(lines, identity.machine);
  lines >> identity.pid >> identity.start_ticks;
  return identity;
}

ProcessState process_state(const PeerIdentity& peer, const PeerIdentity& self) {
  if (peer.machine != self.machine || peer.pid <= 0) return ProcessState::kUnknown;
  const ProcStat stat = read_stat(peer.pid);
  if (stat.state == 0 || stat.start_ticks != peer.start_ticks) return ProcessState::kGone;
  if (stat.state == 'Z' || stat.state == 'X') return ProcessState::kGone;
  return stat.state == 'T' || stat.state == 't' ? ProcessState::kStopped : ProcessState::kRunning;
}

std::string explain_peers(const std::vector<PeerView>& views, const CollectiveRecord& mine,
                          int self) {
  // With a dead rank the others' delays are its consequence; a rank that gave up is always one.
  std::vector<std::string> dead, late, gave_up;
  for (size_t i = 0; i < views.size(); ++i) {
    const bool concerned = !between_two(mine.kind) || mine.peer == static_cast<int>(i);
    if (static_cast<int>(i) == self || !concerned) continue;
    std::string text = complaint(views[i], mine);
    if (text.empty()) continue;
    const bool ended =
        views[i].process == ProcessState::kGone || views[i].process == ProcessState::kStopped;
    const bool aborted = views[i].record.state == CollectiveRecord::State::kAborted;
    (aborted ? gave_up : ended ? dead : late).push_back(std::move(text));
  }
  for (const auto& told : {dead, late, gave_up}) {
    if (!told.empty()) return join(told, "; ");
  }
  if (between_two(mine.kind))
    return cat("rank ", views[static_cast<size_t>(mine.peer)].global_rank,
               " is there but has not taken its part");
  return "every rank has entered it and none is known to be lost";
}

}  // namespace ftrun
