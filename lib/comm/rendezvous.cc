#include "comm/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <ranges>
#include <set>
#include <span>
#include <thread>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/loopback.h"
#include "base/text.h"
#include "cluster/local_boards.h"
#include "comm/agent_start.h"
#include "comm/job_store.h"
#include "comm/listen_socket.h"
#include "comm/meeting_file.h"
#include "comm/open_files.h"
#include "comm/store_access.h"
#include "comm/store_protocol.h"
#include "comm/store_server.h"
#include "comm/store_text.h"
#include "comm/store_value.h"
#include "comm/store_worker.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
constexpr Milliseconds kSlice{1000};  // how long to wait before looking for dead peers
constexpr Milliseconds kControlTimeout{2000};
/// The limit for a rank that did not answer last time: who must end soon does not wait so long for
/// each of several answers.
constexpr Milliseconds kSilentTimeout{500};
/// The limit while that answer is still missing.
constexpr Milliseconds kStuckTimeout{50};
constexpr Milliseconds kMomentToDie{200};
/// The time after the limit for which a complete group waits for its texts to be put together.
constexpr Milliseconds kToPutTogether{2000};

/// The server did not answer in time. It may be back later.
struct StoreSilent : std::runtime_error {
  StoreSilent() : std::runtime_error("the store does not answer") {}
};

/// Prepares c10d before its first use. It reports what we report, but in its own way and with stack
/// traces; and its flight recorder, which the progress board makes superfluous, breaks when two
/// threads of a process use communicators.
void prepare_c10d() {
  static const bool done = [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
    // Otherwise the address of a rank, which all others read, has a number for each of them. All ranks must have it alike.
    ::setenv("GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER", "1", 1);
    std::signal(SIGPIPE, SIG_IGN);  // a connection that a peer closed is an error, not our end
    raise_open_files();  // of connections each rank may have as many as there are ranks, rank 0 more
    return true;
  }();
  static_cast<void>(done);
}

/// The most ranks of which the log says who they are and what they do while they are waited for.
constexpr std::ptrdiff_t kTold = 8;
/// The exchange by which ranks meet.
constexpr const char* kMeetingKey = "identity";

/// "1, 2, 3", "1, 2, 3, 4, 5, 6, 7, 8 and 24 more".
std::string few_ranks(const std::vector<int>& ranks) {
  const auto told = std::min(kTold, std::ssize(ranks));
  const std::string list = join_numbers(std::vector<int>(ranks.begin(), ranks.begin() + told), ", ");
  return told == std::ssize(ranks) ? list : cat(list, " and ", std::ssize(ranks) - told, " more");
}

std::string alive_key(int rank) {
  return cat("alive/", rank);
}

}  // namespace

struct Rendezvous::Impl {
  Impl(const RendezvousOptions& from, StorePtr main_store, StorePtr control_store)
      : options(from),
        main{std::move(main_store), {}, false},
        control{std::move(control_store), {}, true},
        local(LocalBoards::open(OwnedFd(from.board_fd))),
        board(from.rank, from.local_rank < local.count() ? &local.table(from.local_rank) : nullptr),
        identities(static_cast<size_t>(from.world)) {}

  /// Connection is one client of the store, with the thread that waits for its answers.
  struct Connection {
    StorePtr store;
    StoreWorker worker;
    /// The server answers at once or not at all: nothing is waited for there.
    bool prompt;
    std::atomic<bool> silent = false;

    /// Returns what `operation` makes of the store; throws StoreSilent where the server does not
    /// answer within the limit.
    template <typename Operation>
    auto call(Operation operation, Milliseconds limit = kControlTimeout) {
      if (is_stuck()) throw StoreSilent();
      if (prompt && silent) limit = std::min(limit, kSilentTimeout);
      auto result = worker.run([store = store, operation] { return operation(*store); }, limit);
      silent = !result;
      if (!result) throw StoreSilent();
      return std::move(*result);
    }
    /// The last answer is missing still.
    bool is_stuck() { return prompt && silent && worker.is_stuck(kStuckTimeout); }
    void set(const std::string& key, std::vector<uint8_t> value, Milliseconds limit = kControlTimeout) {
      call([key, value](c10d::Store& server) { return server.set(key, value), true; }, limit);
    }
    bool has(const std::string& key, Milliseconds limit = kControlTimeout) { return has_all({key}, limit); }
    bool has_all(const std::vector<std::string>& wanted, Milliseconds limit = kControlTimeout) {
      return call([wanted](c10d::Store& server) { return server.check(wanted); }, limit);
    }
    std::vector<uint8_t> get(const std::string& key) {
      return call([key](c10d::Store& server) { return server.get(key); });
    }
  };

  void start_heartbeat() {
    if (options.world == 1) return;
    heart = std::jthread([this](std::stop_token stop) { beat(stop); });
    watch = std::jthread([this](std::stop_token stop) { watch_collectives(stop); });
  }
  void beat(const std::stop_token& stop);
  void watch_collectives(const std::stop_token& stop);
  std::optional<std::string> collective_wait_text(const RankState::Group& group, const std::string& waited);
  void show_state();
  std::optional<std::vector<uint8_t>> last_heartbeat(int rank);
  /// Notes whether a rank gave no sign of life when it was looked at last.
  void note_silent(int rank, bool is_silent);
  bool is_silent(int rank);
  std::vector<std::string> keys_of_leaving(bool of_ended);
  std::optional<RankState> shown_here(int rank) const;
  PeerView view_of(int rank, const std::optional<std::vector<uint8_t>>& beat) const;
  std::vector<PeerView> look_at(const std::vector<int>& ranks);
  struct Exchange;
  struct Absence;
  using FindAbsent = std::function<Absence(bool look_at_all)>;
  std::string all_texts(const Exchange& exchange, const std::string& text, Patience patience);
  std::string gather_texts(const Exchange& exchange, Patience patience);
  template <typename Work>
  auto or_tell(const Exchange& exchange, const std::string& key, Work work);
  void tell_failure(const Exchange& exchange, const std::string& key, const Error& error) noexcept;
  Absence absent_for_first(const Exchange& exchange);
  Absence absent_for_others(const Exchange& exchange, bool look_at_all);
  std::vector<int> asked_about(const Exchange& exchange, bool look_at_all);
  void await_keys(const Exchange& exchange, const std::vector<std::string>& keys, const FindAbsent& find_absent,
                  Patience patience);
  bool wait_for_keys(const std::vector<std::string>& keys, Milliseconds limit);
  std::vector<int> missing(const Exchange& exchange, std::span<const int> ranks);
  void put(const Exchange& exchange, const std::string& key, const std::string& text, int64_t last_use);
  void remove_left(const Exchange& exchange);
  std::vector<int> gone_of(std::vector<int> ranks) const;
  bool any_gone(const std::vector<int>& ranks) const { return !gone_of(ranks).empty(); }
  /// The time without a sign of life after which a rank is lost; a few may be late on a busy
  /// machine.
  Milliseconds life_limit() const { return std::max(options.timeout, 30 * options.heartbeat); }
  bool tells_wait(const Exchange& exchange, const Absence& absence) const;
  std::string wait_text(const Exchange& exchange, const Absence& absence, Patience patience, const std::string& waited);
  [[noreturn]] void did_not_come(const Exchange& exchange, const Absence& absence, const std::vector<int>& gone, Milliseconds waited);
  Error lost_store(const Exchange& exchange, const std::string& why) const;
  ProcessState state_of(int rank) const {
    return process_state(identities[static_cast<size_t>(rank)],
                         identities[static_cast<size_t>(options.rank)]);
  }

  RendezvousOptions options;
  Connection main;     // for the rank's own thread
  Connection control;  // a second one, so that a wait does not silence us
  LocalBoards local;
  ProgressBoard board;
  std::vector<PeerIdentity> identities;
  std::map<std::string, int64_t> uses;  // how often each exchange key was used
  /// The keys that this rank has left in the store, by the prefix of its exchange key: the key, and
  /// the use with which it may go.
  std::map<std::string, std::map<std::string, int64_t>> left;
  std::function<StorePtr()> connect_again;
  std::string keys = "x/";  // where the keys of exchanges begin
  std::optional<AgentLaunch> agent;
  std::shared_ptr<const StoreServer> server;  // rank 0's
  const MeetingFile* meeting = nullptr;  // while ranks may still come by it
  std::mutex heart_mutex;
  std::condition_variable_any heart_wake;
  std::atomic<int64_t> beats = 0;
  std::mutex silent_mutex;
  std::set<int> silent_ranks;
  /// Waits in collectives that are so long are usual.
  std::atomic<int64_t> usual_wait_ms = 0;
  std::mutex watch_mutex;
  std::condition_variable_any watch_wake;
  std::jthread heart, watch;  // last: stop before what they use goes
};

void Rendezvous::Impl::show_state() {
  const int64_t beat = ++beats;
  std::vector<uint8_t> bytes(sizeof beat);
  std::memcpy(bytes.data(), &beat, sizeof beat);
  const std::vector<uint8_t> image = board.image();
  bytes.insert(bytes.end(), image.begin(), image.end());
  control.set(alive_key(options.rank), bytes);
}

void Rendezvous::Impl::beat(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    try {
      show_state();
    } catch (const std::exception&) {
      // The store is gone with rank 0: the rank's own waits will say so.
    }
    std::unique_lock lock(heart_mutex);
    heart_wake.wait_for(lock, stop, options.heartbeat, [] { return false; });
  }
}

/// Logs collectives that this rank stands in for long. In a thread of its own: the log may stand
/// still, and no heartbeat may.
void Rendezvous::Impl::watch_collectives(const std::stop_token& stop) {
  struct Wait {
    CollectiveRecord record;
    WaitNotice notice;
  };
  std::map<std::string, Wait> waits;  // by group
  const auto interval = std::min<Milliseconds>(Milliseconds(1000), options.notices.first / 2);
  while (!stop.stop_requested()) {
    const RankState own = board.state();
    for (const RankState::Group& group : own.groups) {
      const CollectiveRecord& now = group.record;
      const auto known = waits.find(group.name);
      if (now.state != CollectiveRecord::State::kEntered) {
        if (known != waits.end()) waits.erase(known);
        continue;
      }
      if (known == waits.end() || known->second.record.unix_ns != now.unix_ns) {
        WaitNoticeOptions times = options.notices;
        times.first = std::max(times.first, Milliseconds(usual_wait_ms.load()));
        waits.insert_or_assign(group.name, Wait{now, WaitNotice(times)});
        continue;
      }
      known->second.notice.look_if([&](const std::string& waited) { return collective_wait_text(group, waited); });
    }
    std::unique_lock lock(watch_mutex);
    watch_wake.wait_for(lock, stop, interval, [] { return false; });
  }
}

/// Logs a wait in a collective: of those that stand in it the first one does, of a message the
/// one who waits for it.
std::optional<std::string> Rendezvous::Impl::collective_wait_text(const RankState::Group& group, const std::string& waited) {
  const auto own = std::ranges::find(group.members, options.rank);
  if (own == group.members.end()) return std::nullopt;
  const auto self = static_cast<int>(own - group.members.begin());
  const auto seen = [&](const std::vector<int>& ranks) {
    std::vector<PeerView> views = look_at(ranks);
    for (PeerView& view : views) view.record = ProgressBoard::find(view.state, group.name);
    return views;
  };
  const std::vector<PeerView> views = seen(group.members);
  const auto stands_there = [&](const PeerView& view) {
    return view.record.state == CollectiveRecord::State::kEntered && view.record.sequence == group.record.sequence;
  };
  if (!between_two(group.record.kind) && std::any_of(views.begin(), views.begin() + self, stands_there)) return std::nullopt;
  const Explanation why = explain_peers(views, group.record, self, look_at(unknown_ranks(views, group.record, self, {})));
  constexpr size_t kLongest = 600;
  return cat("rank ", options.rank, " has waited ", waited, " in ", describe(group.record), " of group ", group.name, ": ",
             why.text.size() > kLongest ? cat(why.text.substr(0, kLongest), " ...") : why.text);
}

std::optional<std::vector<uint8_t>> Rendezvous::Impl::last_heartbeat(int rank) {
  try {
    if (!control.has(alive_key(rank))) return std::vector<uint8_t>();
    return control.get(alive_key(rank));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void Rendezvous::Impl::note_silent(int rank, bool is_silent) {
  const std::lock_guard lock(silent_mutex);
  if (is_silent)
    silent_ranks.insert(rank);
  else
    silent_ranks.erase(rank);
}

bool Rendezvous::Impl::is_silent(int rank) {
  const std::lock_guard lock(silent_mutex);
  return silent_ranks.contains(rank);
}

/// Reads what a rank of our supervisor shows at this moment.
std::optional<RankState> Rendezvous::Impl::shown_here(int rank) const {
  const PeerIdentity& peer = identities[static_cast<size_t>(rank)];
  if (peer.machine != identities[static_cast<size_t>(options.rank)].machine) return std::nullopt;
  const BoardTable* table = local.find(rank, peer.pid);
  if (table == nullptr) return std::nullopt;
  return read_state(*table);
}

PeerView Rendezvous::Impl::view_of(int rank, const std::optional<std::vector<uint8_t>>& beat) const {
  PeerView view{.global_rank = rank, .identity = identities[static_cast<size_t>(rank)]};
  view.process = state_of(rank);
  if (auto here = shown_here(rank))
    view.state = std::move(*here);
  else if (beat && beat->size() > sizeof(int64_t))
    view.state = decode_state(std::span(*beat).subspan(sizeof(int64_t)), options.world);
  return view;
}

std::vector<PeerView> Rendezvous::Impl::look_at(const std::vector<int>& ranks) {
  std::vector<PeerView> views;
  bool answers = true;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= options.world) continue;
    const bool asks = answers && !shown_here(rank);
    const auto beat = asks ? last_heartbeat(rank) : std::nullopt;
    answers = answers && (!asks || beat);
    views.push_back(view_of(rank, beat));
  }
  return views;
}

std::vector<int> Rendezvous::Impl::gone_of(std::vector<int> ranks) const {
  std::erase_if(ranks, [&](int rank) { return state_of(rank) != ProcessState::kGone; });
  return ranks;
}

/// Exchange is one use of a key. Each member leaves its text; the first one puts all of them
/// together under one key, for which the others wait: were each to wait for the keys of all and to
/// read them, the store would hold as many requests and answers as there are pairs of ranks.
struct Rendezvous::Impl::Exchange {
  /// Every rank looks by itself who is absent; of more, the first one reports to the others.
  static constexpr size_t kFew = 32;

  std::string prefix;  // of the exchange key
  int64_t use;
  std::vector<int> members;
  std::string what;  // for messages
  bool begins_run = false;  // by which the ranks meet

  int first() const { return members.front(); }
  std::string of(int rank) const { return cat(prefix, "/", use, "/", rank); }
  std::string all() const { return cat(prefix, "/", use, "/all/", first()); }
  std::string absent() const { return cat(prefix, "/", use, "/absent/", first()); }
  std::vector<std::string> keys(std::span<const int> ranks) const {
    std::vector<std::string> some;
    for (const int rank : ranks) some.push_back(of(rank));
    return some;
  }
};

/// Absence says who is waited for.
struct Rendezvous::Impl::Absence {
  std::vector<int> ranks;
  /// Says whether the first one is waited for, which has arrived but not finished collecting the
  /// replies.
  bool has_come = false;

  /// The ranks whose end ends the wait: without the first one it has no other.
  std::vector<int> awaited(int first) const {
    std::vector<int> all = ranks;
    if (!all.empty() && all.front() != first) all.insert(all.begin(), first);
    return all;
  }
};

/// Finds those of some members who have not come: few are found with few requests.
std::vector<int> Rendezvous::Impl::missing(const Exchange& exchange, std::span<const int> ranks) {
  if (ranks.empty() || control.has_all(exchange.keys(ranks))) return {};
  if (ranks.size() == 1) return {ranks.front()};
  std::vector<int> absent = missing(exchange, ranks.first(ranks.size() / 2));
  const std::vector<int> others = missing(exchange, ranks.subspan(ranks.size() / 2));
  absent.insert(absent.end(), others.begin(), others.end());
  return absent;
}

/// Puts a text into the store and notes it for remove_left(), which may remove it as soon as every
/// member has entered the exchange `last_use`.
void Rendezvous::Impl::put(const Exchange& exchange, const std::string& key, const std::string& text, int64_t last_use) {
  for (const std::string& each : text_keys(key, text.size())) left[exchange.prefix][each] = last_use;
  main.call([key, text](c10d::Store& server) { return put_text(server, key, text), true; }, options.timeout);
}

/// Every member has entered this use, and the first one has read what they have left for it.
void Rendezvous::Impl::remove_left(const Exchange& exchange) {
  auto& keys_left = left[exchange.prefix];
  for (auto each = keys_left.begin(); each != keys_left.end();) {
    const auto& [key, last_use] = *each;
    if (last_use > exchange.use) {
      ++each;
      continue;
    }
    main.call([key = key](c10d::Store& server) { return server.deleteKey(key); }, options.timeout);
    each = keys_left.erase(each);
  }
}

Rendezvous::Impl::Absence Rendezvous::Impl::absent_for_first(const Exchange& exchange) {
  const std::vector<int> absent = missing(exchange, exchange.members);
  if (exchange.members.size() <= Exchange::kFew) return {absent};
  std::string list;
  for (const int rank : absent) put_field(list, std::to_string(rank));
  left[exchange.prefix][exchange.absent()] = exchange.use + 1;
  control.set(exchange.absent(), bytes_of(list));
  return {absent};
}

/// Lists the ranks whose keys a rank that is not the first looks at. In a large group only the
/// first looks at all keys: if each did so once a second, the store would have nothing else to do.
/// If no first one reports who is absent, each looks once, at the end.
std::vector<int> Rendezvous::Impl::asked_about(const Exchange& exchange, bool look_at_all) {
  if (exchange.members.size() <= Exchange::kFew) return exchange.members;
  if (!control.has(exchange.of(exchange.first()))) return {exchange.first()};
  if (!control.has(exchange.absent())) return look_at_all ? exchange.members : std::vector<int>();
  const std::string list = text_of(control.get(exchange.absent()));
  std::vector<int> ranks;
  for (const std::string_view rank : fields_of(list).value_or(std::vector<std::string_view>()))
    ranks.push_back(std::stoi(std::string(rank)));
  return ranks;
}

Rendezvous::Impl::Absence Rendezvous::Impl::absent_for_others(const Exchange& exchange, bool look_at_all) {
  const std::vector<int> asked = asked_about(exchange, look_at_all);
  // The first one may have stopped since it reported who was absent. It is enough that one of a
  // long list is.
  const bool each = look_at_all || asked.size() <= Exchange::kFew;
  Absence absence;
  if (each)
    absence.ranks = missing(exchange, asked);
  else if (!control.has_all(exchange.keys(asked)))
    absence.ranks = asked;
  if (absence.ranks.empty()) absence = {{exchange.first()}, true};
  // The texts that ranks left go when all have been read.
  if (control.has(exchange.all())) return {};
  return absence;
}

/// Says whether this rank logs the wait: the first one of those that wait does.
bool Rendezvous::Impl::tells_wait(const Exchange& exchange, const Absence& absence) const {
  if (absence.ranks.empty()) return false;
  return std::ranges::all_of(exchange.members, [&](int member) {
    return member >= options.rank || std::ranges::find(absence.ranks, member) != absence.ranks.end();
  });
}

std::string Rendezvous::Impl::wait_text(const Exchange& exchange, const Absence& absence, Patience patience, const std::string& waited) {
  std::string text = cat("rank ", options.rank, " of ", options.world, " has waited ", waited, " for rank ", few_ranks(absence.ranks),
                         exchange.begins_run ? " to come" : cat(" in ", exchange.what));
  const auto told = std::min(kTold, std::ssize(absence.ranks));
  for (const PeerView& view : look_at({absence.ranks.begin(), absence.ranks.begin() + told}))
    if (const std::string doing = activity_text(view.state); !doing.empty()) text += cat("; rank ", view.global_rank, " is in ", doing);
  return patience == Patience::kWhileAlive ? text : cat(text, "; it gives up after ", human_seconds(static_cast<double>(options.timeout.count()) * 1e-3));
}

void Rendezvous::Impl::did_not_come(const Exchange& exchange, const Absence& absence, const std::vector<int>& gone,
                                    Milliseconds waited) {
  const std::vector<int>& named = gone.empty() ? absence.ranks : gone;
  std::vector<std::string> names, doing;
  for (const PeerView& view : look_at(named)) {
    names.push_back(std::to_string(view.global_rank));
    const std::string text = activity_text(view.state);
    if (!text.empty()) doing.push_back(cat("; rank ", view.global_rank, " is in ", text));
  }
  const char* known = !gone.empty()      ? " is gone"
                      : absence.has_come ? " has not finished collecting the replies"
                                         : " did not arrive in time";
  const Error error(ExitCode::kPeerLost,
                    cat("rank ", options.rank, " waited ", human_seconds(static_cast<double>(waited.count()) * 1e-3), " for ",
                        exchange.what, ": rank ", join(names, ", "), known, join(doing, "")),
                    "look at that rank's own log first");
  throw ExchangeError(error, named.size() == 1 ? std::optional(named.front()) : std::nullopt);
}

Error Rendezvous::Impl::lost_store(const Exchange& exchange, const std::string& why) const {
  const ProcessState state = state_of(0);
  const char* known = state == ProcessState::kGone      ? "rank 0, which serves it, is gone"
                      : state == ProcessState::kStopped ? "rank 0, which serves it, is stopped"
                                                        : "it is served by rank 0";
  return {ExitCode::kPeerLost,
          cat("rank ", options.rank, " lost the rendezvous in ", exchange.what, ": ", known, " [", first_line(why), "]"),
          "look at rank 0's own log first"};
}

/// Returns false when some are not there within the limit, or the store is silent.
bool Rendezvous::Impl::wait_for_keys(const std::vector<std::string>& keys, Milliseconds limit) {
  const auto wait = [keys, limit](c10d::Store& server) {
    try {
      server.wait(keys, limit);
      return true;
    } catch (const std::exception&) {
      return false;  // late or broken: the control connection reports it
    }
  };
  try {
    return main.call(wait, limit + kControlTimeout);
  } catch (const StoreSilent&) {
    return false;
  }
}

namespace {

/// SignsOfLife knows since when each absent rank has shown no sign of life.
class SignsOfLife {
 public:
  using Beat = std::optional<std::vector<uint8_t>>;

  void note(int rank, const Beat& beat) {
    Last& last = last_.try_emplace(rank, Last{{}, Clock::now()}).first->second;
    if (beat && beat != last.beat) last = {beat, Clock::now()};
  }
  /// Says whether each of them has shown one within `limit`.
  bool all_within(const std::vector<int>& ranks, Milliseconds limit) const {
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      const auto found = last_.find(rank);
      return found != last_.end() && found->second.beat && Clock::now() - found->second.when < limit;
    });
  }

 private:
  struct Last {
    Beat beat;
    Clock::time_point when;
  };
  std::map<int, Last> last_;
};

}  // namespace

/// Waits in slices and looks after each for ranks that cannot come any more. A store that is silent,
/// as it is while rank 0 is stopped, is waited for as ranks are.
void Rendezvous::Impl::await_keys(const Exchange& exchange, const std::vector<std::string>& keys,
                                  const FindAbsent& find_absent, Patience patience) {
  const auto start = Clock::now();
  auto answered = start;
  SignsOfLife signs;
  WaitNotice notice(options.notices, start);
  while (true) {
    const auto left_of_it = std::chrono::ceil<Milliseconds>(start + options.timeout - Clock::now());
    const Milliseconds slice = std::min(kSlice, options.notices.first);
    if (wait_for_keys(keys, left_of_it.count() > 0 ? std::min(left_of_it, slice) : slice)) return;
    if (meeting != nullptr) meeting->require_ours();
    try {
      const auto waited = std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
      const bool look_at_all = patience == Patience::kTimeout && waited >= options.timeout;
      Absence absence = find_absent(look_at_all);
      std::vector<int> gone = gone_of(absence.awaited(exchange.first()));
      if (!gone.empty()) {
        // The ranks' texts are final only now: each may have come, and ended, since it was looked
        // for.
        absence = find_absent(look_at_all);
        const std::vector<int> awaited = absence.awaited(exchange.first());
        std::erase_if(gone, [&](int rank) { return std::ranges::find(awaited, rank) == awaited.end(); });
      }
      answered = Clock::now();
      if (patience == Patience::kWhileAlive)
        for (const int rank : absence.ranks) signs.note(rank, last_heartbeat(rank));
      const auto limit = absence.has_come ? options.timeout + kToPutTogether : options.timeout;
      const bool over = waited >= limit && !signs.all_within(absence.ranks, life_limit());
      if (over || !gone.empty()) did_not_come(exchange, absence, gone, waited);
      if (tells_wait(exchange, absence)) notice.look([&](const std::string& time) { return wait_text(exchange, absence, patience, time); });
    } catch (const StoreSilent&) {
      if (const auto others = exchange.members | std::views::drop(exchange.first() == 0 ? 1 : 0); others.front() == options.rank)
        notice.look([&](const std::string& time) {
          return cat("rank ", options.rank, " has waited ", time, " for the store of rank 0 ", state_of(0) == ProcessState::kStopped ? "(which is stopped)" : "",
                     "to answer");
        });
      if (Clock::now() - answered >= options.timeout || state_of(0) == ProcessState::kGone) throw;
    }
  }
}

namespace {

/// The name of rank 0's machine may come to be known only once that machine runs, and a network may come up, so neither is a failure
/// yet; but a person should not wait for a misspelt name in silence. Over an own interface that is down nobody comes: Error(kEnvironment).
void warn_of_no_way(const RendezvousOptions& options) {
  const auto warn = [&](const std::string& why, const char* remedy) {
    log_warning(cat("rank ", options.rank, ": ", why, "; trying for ", human_seconds(static_cast<double>(options.timeout.count()) * 1e-3),
                    "\n  remedy: ", remedy));
  };
  if (const auto why = unknown_host(options.address)) return warn(*why, kNameRankZero);
  if (is_loopback(options.address)) require_loopback();
  if (const auto why = missing_route(options.address)) warn(*why, "bring this machine's network up, or set MASTER_ADDR to an address that it leads to");
}

std::string place_text(const RendezvousOptions& options, int port) {
  return port > 0 ? cat(options.address, ":", port) : options.address;
}

[[noreturn]] void not_reached(const RendezvousOptions& options, int port, const std::string& last) {
  std::string why = last;
  if (const auto unknown = unknown_host(options.address)) why = *unknown;
  const std::string by_file =
      options.token.empty() && !options.agent_store
          ? cat("check that all ranks see ", options.meeting_file, " and that no earlier start has left it there, or give all the same "
                "FTRUN_TOKEN; ")
          : "";
  throw Error(
      ExitCode::kPeerLost,
      cat("rank ", options.rank, " could not reach the rendezvous of rank 0 at ", place_text(options, port),
          " within ", human_seconds(static_cast<double>(options.timeout.count()) * 1e-3), ": ", why),
      cat(by_file, "check MASTER_ADDR and MASTER_PORT, that rank 0 runs, and that no firewall is between"));
}

/// A client of the store that torchrun's agent serves.
StorePtr agent_store(const RendezvousOptions& options) {
  c10d::TCPStoreOptions settings;
  settings.port = static_cast<uint16_t>(options.port);
  settings.waitWorkers = false;
  settings.timeout = options.timeout;
  std::string why = "something else answers there, or nothing";
  try {
    // Something that listens and never speaks would hold the constructor without end.
    StoreWorker worker;
    const auto store =
        worker.run([address = options.address,
                    settings] { return c10::make_intrusive<c10d::TCPStore>(address, settings); },
                   options.timeout + kControlTimeout);
    if (store) return *store;
  } catch (const std::exception& error) {
    why = first_line(error.what());
  }
  not_reached(options, options.port, why);
}

/// A port that only those can guess who know the token.
int port_of_token(const std::string& token) {
  const Digest digest = hmac_sha256(token, "port");
  return 20000 + (digest[0] << 8 | digest[1]) % 12000;
}

/// Makes the function by which this rank finds the store each time it tries.
JobStore::Find finder(const RendezvousOptions& options) {
  if (!options.token.empty()) {
    const int port = options.port > 0 ? options.port : port_of_token(options.token);
    return [=] { return std::optional(StorePlace{options.address, port, options.token}); };
  }
  return [options]() -> std::optional<StorePlace> {
    const auto place = MeetingFile::read(options.meeting_file);
    if (!place) return std::nullopt;
    if (place->job != options.job)
      throw std::runtime_error(cat(options.meeting_file, " is of another job (\"", place->job, "\", this one is \"",
                                   options.job, "\")"));
    if (options.port > 0 && place->port != options.port)
      throw std::runtime_error(cat(options.meeting_file, " says port ", place->port, ", and MASTER_PORT is ", options.port));
    return StorePlace{options.address, place->port, place->token};
  };
}

/// This rank, as all of its connections show it.
StoreMember member_of(const RendezvousOptions& options, const std::string& instance) {
  return {.rank = static_cast<uint32_t>(options.rank),
          .world = static_cast<uint32_t>(options.world),
          .attempt = static_cast<uint32_t>(options.attempt),
          .instance = instance,
          .job = options.job};
}

/// Why the rendezvous is not open yet, for the thread that logs it.
class OpeningReason {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
  }
  std::string get() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

c10::intrusive_ptr<JobStore> job_store(const RendezvousOptions& options, const StoreMember& member, const JobStore::Find& find,
                                       const std::shared_ptr<StoreServer>& served = nullptr, OpeningReason* reason = nullptr) {
  int port = options.port;
  const auto noting = [&]() {
    const auto place = find();
    if (place) port = place->port;
    return place;
  };
  try {
    const auto note = [reason](const std::string& why) {
      if (reason != nullptr) reason->set(first_line(why));
    };
    return c10::make_intrusive<JobStore>(noting, member, Clock::now() + options.timeout, options.token.empty(), served, note);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    not_reached(options, port, first_line(error.what()));
  }
}

struct Stores {
  StorePtr main, control;
  std::function<StorePtr()> connect_again;
  /// Rank 0's, until all have met.
  std::unique_ptr<MeetingFile> meeting;
  std::optional<AgentLaunch> agent;
  std::shared_ptr<const StoreServer> server;
};

/// A file by which the ranks of another job are meeting at this moment is not ours to replace.
void require_nobody_meets(const RendezvousOptions& options) {
  const auto before = MeetingFile::read(options.meeting_file);
  if (!before || !serves_store({before->address, before->port, before->token}, kControlTimeout)) return;
  throw Error(ExitCode::kEnvironment,
              cat(options.meeting_file, ": the ranks of another job meet by this file now (job \"", before->job, "\", at ",
                  before->address, ":", before->port, ")"),
              "wait until it has begun, end it, or choose another output_dir");
}

/// Rank 0 serves the store, on a socket that it inherited or makes.
Stores serve_store(const RendezvousOptions& options) {
  require_loopback();  // over which rank 0 comes into its own store
  ListenSocket socket;
  if (options.listen_fd >= 0) {
    socket = {OwnedFd(options.listen_fd), bound_port(options.listen_fd)};
  } else {
    const bool by_token = !options.token.empty() && options.port == 0;
    socket = listen_on(options.address, by_token ? port_of_token(options.token) : options.port);
  }
  require_open_files(options.world);
  Stores stores;
  std::string token = options.token;
  if (token.empty()) {
    token = hex_text(random_bytes(32));
    require_nobody_meets(options);
    stores.meeting = std::make_unique<MeetingFile>(options.meeting_file, MeetingPlace{options.job, options.address, socket.port, token});
  }
  const StorePlace place{options.address, socket.port, token};
  const StoreMember member = member_of(options, random_bytes(kInstanceBytes));
  const auto server = std::make_shared<StoreServer>(std::move(socket.fd), token, member);
  const JobStore::Find find = [place] { return std::optional(place); };
  stores.main = job_store(options, member, find, server);
  stores.control = job_store(options, member, find, server);
  stores.connect_again = [=]() -> StorePtr { return job_store(options, member, find, server); };
  stores.server = server;
  return stores;
}

Stores find_store(const RendezvousOptions& options, OpeningReason& reason) {
  warn_of_no_way(options);
  const StoreMember member = member_of(options, random_bytes(kInstanceBytes));
  const auto main = job_store(options, member, finder(options), nullptr, &reason);
  // The file is gone once all have met.
  const JobStore::Find find = [place = main->place()] { return std::optional(place); };
  return {main, job_store(options, member, find), [=]() -> StorePtr { return job_store(options, member, find); }, nullptr, {}, {}};
}

/// Joins the ranks of this start alone, in the store of torchrun's agent.
Stores join_agent_store(const RendezvousOptions& options, OpeningReason& reason) {
  warn_of_no_way(options);
  const StorePtr main = agent_store(options);
  reason.set("not all ranks of this start have come into torchrun's store");
  StoreWorker worker;
  const auto agree = [main, options] {
    try {
      return agree_on_start(*main, options);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // c10d's, of a server that is gone
      not_reached(options, options.port, first_line(error.what()));
    }
  };
  const auto start = worker.run(agree, options.timeout + kControlTimeout);
  if (!start) not_reached(options, options.port, "it does not answer any more");
  const auto prefixed = [prefix = start->prefix](const StorePtr& store) -> StorePtr {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  };
  return {prefixed(main), prefixed(agent_store(options)), [=]() -> StorePtr { return prefixed(agent_store(options)); }, nullptr,
          start->launch, {}};
}

Stores open_stores(const RendezvousOptions& options) {
  OpeningReason reason;
  const ToldWait told(options.notices, [&](const std::string& waited) {
    const std::string why = reason.get();
    return cat("rank ", options.rank, " of ", options.world, " has waited ", waited, " for the rendezvous of rank 0 at ", place_text(options, options.port),
               why.empty() ? "" : cat(" (", why, ")"), "; it gives up after ", human_seconds(static_cast<double>(options.timeout.count()) * 1e-3));
  });
  Stores stores;
  if (options.agent_store) stores = join_agent_store(options, reason);
  if (options.world == 1) {
    stores.main = stores.control = c10::make_intrusive<c10d::HashStore>();
    stores.connect_again = [store = stores.main] { return store; };
  } else if (!options.agent_store) {
    require(!options.token.empty() || !options.meeting_file.empty(), "ranks meet by a token or a file");
    stores = options.rank == 0 ? serve_store(options) : find_store(options, reason);
  }
  return stores;
}

}  // namespace

Rendezvous::Rendezvous(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Rendezvous::~Rendezvous() = default;

std::unique_ptr<Rendezvous> Rendezvous::connect(const RendezvousOptions& options) {
  prepare_c10d();
  Stores stores = open_stores(options);
  auto impl = std::make_unique<Impl>(options, stores.main, stores.control);
  impl->connect_again = stores.connect_again;
  impl->agent = stores.agent;
  impl->server = stores.server;
  std::unique_ptr<Rendezvous> rendezvous(new Rendezvous(std::move(impl)));
  rendezvous->impl_->meeting = stores.meeting.get();
  const std::vector<std::string> texts =
      rendezvous->exchange_text(kMeetingKey, identity_text(own_identity()));
  for (size_t rank = 0; rank < texts.size(); ++rank)
    rendezvous->impl_->identities[rank] = parse_identity(texts[rank]);
  rendezvous->impl_->meeting = nullptr;
  rendezvous->impl_->start_heartbeat();
  return rendezvous;
}

std::vector<std::unique_ptr<Rendezvous>> Rendezvous::in_process(int world, Milliseconds timeout, Milliseconds heartbeat,
                                                                const WaitNoticeOptions& notices) {
  prepare_c10d();
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Rendezvous>> all;
  for (int rank = 0; rank < world; ++rank) {
    const RendezvousOptions options{
        .rank = rank, .world = world, .timeout = timeout, .heartbeat = heartbeat, .notices = notices};
    auto impl = std::make_unique<Impl>(options, store, store);
    for (PeerIdentity& identity : impl->identities) identity = own_identity();
    impl->connect_again = [store] { return store; };
    impl->start_heartbeat();
    all.emplace_back(new Rendezvous(std::move(impl)));
  }
  return all;
}

/// Makes a rendezvous with a connection of its own. It asks who lives over the heartbeat's
/// connection, which nobody holds for long.
std::unique_ptr<Rendezvous> Rendezvous::beside() {
  RendezvousOptions options = impl_->options;
  options.board_fd = -1;
  auto other = std::make_unique<Impl>(options, impl_->connect_again(), impl_->control.store);
  other->identities = impl_->identities;
  other->keys = "beside/";
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(other)));
}

int Rendezvous::rank() const {
  return impl_->options.rank;
}
int Rendezvous::world() const {
  return impl_->options.world;
}
const std::optional<AgentLaunch>& Rendezvous::agent_launch() const {
  return impl_->agent;
}
const StoreServer* Rendezvous::server() const {
  return impl_->server.get();
}
ProgressBoard& Rendezvous::board() {
  return impl_->board;
}
const PeerIdentity& Rendezvous::identity(int rank) const {
  return impl_->identities.at(static_cast<size_t>(rank));
}

namespace {

class ShownExchange {
 public:
  ShownExchange(ProgressBoard& board, const std::string& what) : board_(board) { board_.show_texts(what); }
  ~ShownExchange() { board_.show_texts(""); }
  ShownExchange(const ShownExchange&) = delete;
  ShownExchange& operator=(const ShownExchange&) = delete;

 private:
  ProgressBoard& board_;
};

}  // namespace

/// A rank that fails where others wait for its text, and may live on, reports to them.
template <typename Work>
auto Rendezvous::Impl::or_tell(const Exchange& exchange, const std::string& key, Work work) {
  try {
    return work();
  } catch (const Error& error) {
    tell_failure(exchange, key, error);
    throw;
  } catch (const std::exception& error) {
    const Error lost = lost_store(exchange, error.what());
    tell_failure(exchange, key, lost);
    throw lost;
  }
}

void Rendezvous::Impl::tell_failure(const Exchange& exchange, const std::string& key, const Error& error) noexcept {
  try {
    left[exchange.prefix][key] = exchange.use + 1;
    control.set(key, failure_value(error));
  } catch (const std::exception&) {
    // A store that takes nothing from us: the others find it as we did.
  }
}

/// Makes the one text that each member gets: the texts of all.
std::string Rendezvous::Impl::all_texts(const Exchange& exchange, const std::string& text, Patience patience) {
  const auto put_own = [&] { put(exchange, exchange.of(options.rank), text, exchange.use); };
  const std::string key = exchange.all();
  if (exchange.first() == options.rank) {
    return or_tell(exchange, key, [&] {
      put_own();
      return gather_texts(exchange, patience);
    });
  }
  or_tell(exchange, exchange.of(options.rank), put_own);
  await_keys(exchange, {key}, [&](bool look_at_all) { return absent_for_others(exchange, look_at_all); }, patience);
  return main.call([key](c10d::Store& server) { return read_text(server, key); }, options.timeout);
}

std::string Rendezvous::Impl::gather_texts(const Exchange& exchange, Patience patience) {
  const std::vector<std::string> keys_of_all = exchange.keys(exchange.members);
  await_keys(exchange, keys_of_all, [&](bool) { return absent_for_first(exchange); }, patience);
  const auto texts =
      main.call([keys_of_all](c10d::Store& server) { return read_texts(server, keys_of_all); }, options.timeout);
  std::string all;
  for (const std::string& text : texts) put_field(all, text);
  put(exchange, exchange.all(), all, exchange.use + 1);
  return all;
}

std::vector<std::string> Rendezvous::exchange_text(const std::string& key, const std::string& text,
                                                   Patience patience) {
  std::vector<int> everyone(static_cast<size_t>(world()));
  for (int rank = 0; rank < world(); ++rank) everyone[static_cast<size_t>(rank)] = rank;
  return exchange_text(key, text, everyone, patience);
}

std::vector<std::string> Rendezvous::exchange_text(const std::string& key, const std::string& text,
                                                   const std::vector<int>& members,
                                                   Patience patience) {
  if (members.size() == 1) return {text};
  const int64_t use = ++impl_->uses[key];
  const Impl::Exchange exchange{cat(impl_->keys, key), use, members, cat("\"", key, "\""), key == kMeetingKey};
  const ShownExchange shown(impl_->board, cat("an exchange of \"", key, "\" with the others"));
  try {
    const std::string all = impl_->all_texts(exchange, text, patience);
    impl_->remove_left(exchange);
    const auto texts = fields_of(all);
    require(texts && texts->size() == members.size(), "an exchange has a text of each member");
    return {texts->begin(), texts->end()};
  } catch (const ExchangeError& error) {
    if (error.absent() && *error.absent() != rank()) impl_->board.blame(*error.absent());
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw impl_->lost_store(exchange, error.what());
  }
}

void Rendezvous::post(const std::string& key, const std::string& text) {
  if (impl_->state_of(0) == ProcessState::kStopped) return;  // nobody would find it, and we would wait
  impl_->control.set("post/" + key, bytes_of(text));
}

std::optional<std::string> Rendezvous::find(const std::string& key) {
  if (!impl_->control.has("post/" + key, kSilentTimeout)) return std::nullopt;
  return text_of(impl_->control.get("post/" + key));
}

std::vector<PeerView> Rendezvous::view(const std::vector<int>& members, const std::string& group) {
  const auto settle = impl_->options.heartbeat * 3 / 2;
  std::vector<std::optional<std::vector<uint8_t>>> before(members.size());
  // Known states may be a heartbeat old, and a dying process needs a moment to be gone.
  bool answers = true;  // a store that is silent is not asked again for each of many ranks
  const auto ask = [&](int member) {
    const auto beat = answers ? impl_->last_heartbeat(member) : std::nullopt;
    answers = beat.has_value();
    return beat;
  };
  const bool all_here = std::ranges::all_of(members, [&](int member) { return impl_->shown_here(member).has_value(); });
  if (!all_here) {
    try {
      impl_->show_state();
    } catch (const std::exception&) {
      answers = false;
    }
    for (size_t i = 0; i < members.size(); ++i) before[i] = ask(members[i]);
    if (!impl_->any_gone(members)) std::this_thread::sleep_for(answers ? settle : std::min<Milliseconds>(settle, kMomentToDie));
  } else if (!impl_->any_gone(members)) {
    std::this_thread::sleep_for(std::min<Milliseconds>(settle, kMomentToDie));
  }
  std::vector<PeerView> views;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto now = all_here ? std::nullopt : ask(members[i]);
    PeerView view = impl_->view_of(members[i], now);
    const bool elsewhere = view.process == ProcessState::kUnknown;
    view.silent = elsewhere && (!now || now == before[i]);
    view.heard = !elsewhere || (now && !now->empty());
    impl_->note_silent(members[i], view.silent);
    view.record = ProgressBoard::find(view.state, group);
    views.push_back(std::move(view));
  }
  return views;
}

std::vector<PeerView> Rendezvous::look_at(const std::vector<int>& ranks) { return impl_->look_at(ranks); }

void Rendezvous::give_up(const std::string& group, const std::string& reason) noexcept {
  try {
    post("gave up/" + group, reason);
  } catch (const std::exception&) {
    // The store is gone with rank 0, which the others notice by themselves.
  }
}

bool Rendezvous::any_lost(const std::vector<int>& members, const std::string& group) {
  if (impl_->any_gone(members)) return true;
  try {
    return find("gave up/" + group).has_value();
  } catch (const std::exception&) {
    return false;
  }
}

std::string Rendezvous::local_address() const {
  return local_address_towards(impl_->options.address, impl_->options.port);
}

void Rendezvous::expect_waits(Milliseconds usual) {
  impl_->usual_wait_ms = usual.count();
}

void Rendezvous::shutdown(Milliseconds limit) {
  if (world() == 1) return;
  const Milliseconds before = std::exchange(impl_->options.timeout, limit);
  try {
    exchange_text("shutdown", "");
    leave(limit);
  } catch (const std::exception&) {
    // The work is done; the supervisor will report who is missing.
  }
  impl_->options.timeout = before;
}

namespace {

std::string key_of_leaving(int rank) { return cat("left/", rank); }

}  // namespace

/// Lists the keys of leaving of the ranks that rank 0 waits for. A rank that has ended or is
/// stopped reads nothing, and may have reported so before (`of_ended`); one that gave no sign of
/// life is waited for in vain.
std::vector<std::string> Rendezvous::Impl::keys_of_leaving(bool of_ended) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < options.world; ++rank) {
    const ProcessState state = state_of(rank);
    const bool ended = state == ProcessState::kGone || state == ProcessState::kStopped;
    if ((of_ended || !ended) && !is_silent(rank)) keys.push_back(key_of_leaving(rank));
  }
  return keys;
}

void Rendezvous::leave(Milliseconds limit) noexcept {
  if (world() == 1) return;
  try {
    if (rank() > 0) {
      // A store that has not answered for a while gets to know nothing.
      if (!impl_->control.is_stuck()) impl_->main.set(key_of_leaving(rank()), {}, limit);
      return;
    }
    const auto end = Clock::now() + limit;
    std::vector<std::string> awaited = impl_->keys_of_leaving(true);
    const auto have_left = [&] {
      return impl_->main.call([awaited](c10d::Store& server) { return server.check(awaited); }, limit);
    };
    while (!awaited.empty() && !have_left() && Clock::now() < end) {
      std::this_thread::sleep_for(Milliseconds(1));
      awaited = impl_->keys_of_leaving(false);
    }
  } catch (const std::exception&) {
    // The supervisor will report who is missing.
  }
}

StorePtr prefixed_store(Rendezvous& rendezvous, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, rendezvous.impl().main.store);
}

}  // namespace ftrun
