#include "comm/rendezvous.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/listen_socket.h"
#include "comm/store_access.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
constexpr Milliseconds kSlice{1000};  // how long to wait before looking for dead peers
constexpr Milliseconds kControlTimeout{2000};

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}
std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

/// The server did not answer in time. It may be back later.
struct StoreSilent : std::runtime_error {
  StoreSilent() : std::runtime_error("the store does not answer") {}
};

/// Before c10d's first use. It reports what we report, but in its own way and with stack traces;
/// and its flight recorder, which the progress board makes superfluous, breaks when two threads of
/// a process use communicators.
void prepare_c10d() {
  static const bool done = [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
    std::signal(SIGPIPE, SIG_IGN);  // a connection that a peer closed is an error, not our end
    return true;
  }();
  static_cast<void>(done);
}

std::string alive_key(int rank) {
  return cat("alive/", rank);
}

}  // namespace

struct Rendezvous::Impl {
  Impl(const RendezvousOptions& from, StorePtr main_store, StorePtr control_store)
      : options(from),
        main{std::move(main_store), {}},
        control{std::move(control_store), {}},
        board(from.rank),
        identities(static_cast<size_t>(from.world)) {}

  /// One client of the store. What `operation` makes of it; throws when the server is silent.
  struct Connection {
    StorePtr store;
    StoreWorker worker;

    template <typename Operation>
    auto call(Operation operation, Milliseconds limit = kControlTimeout) {
      auto result = worker.run([store = store, operation] { return operation(*store); }, limit);
      if (!result) throw StoreSilent();
      return std::move(*result);
    }
    void set(const std::string& key, std::vector<uint8_t> value, Milliseconds limit = kControlTimeout) {
      call([key, value](c10d::Store& server) { return server.set(key, value), true; }, limit);
    }
    bool has(const std::string& key) {
      return call([key](c10d::Store& server) { return server.check({key}); });
    }
    std::vector<uint8_t> get(const std::string& key) {
      return call([key](c10d::Store& server) { return server.get(key); });
    }
  };

  void start_heartbeat() {
    if (options.world > 1) heart = std::jthread([this](std::stop_token stop) { beat(stop); });
  }
  void beat(const std::stop_token& stop);
  void show_state();
  std::optional<std::vector<uint8_t>> last_heartbeat(int rank);
  void await_keys(const std::vector<std::string>& keys, const std::vector<int>& ranks,
                  const std::string& what, Patience patience);
  bool wait_for_keys(const std::vector<std::string>& keys, Milliseconds limit);
  std::vector<int> missing(const std::vector<std::string>& keys, const std::vector<int>& ranks);
  bool any_gone(const std::vector<int>& ranks) const;
  /// After so long without a sign of life a rank is lost; a few may be late on a busy machine.
  Milliseconds life_limit() const { return std::max(options.timeout, 30 * options.heartbeat); }
  [[noreturn]] void did_not_come(const std::vector<int>& absent, double waited,
                                 const std::string& what) const;
  [[noreturn]] void lost_store(const std::string& key, const std::string& why) const;
  ProcessState state_of(int rank) const {
    return process_state(identities[static_cast<size_t>(rank)],
                         identities[static_cast<size_t>(options.rank)]);
  }

  RendezvousOptions options;
  Connection main;     // for the rank's own thread
  Connection control;  // a second one, so that a wait does not silence us
  ProgressBoard board;
  std::vector<PeerIdentity> identities;
  std::map<std::string, int64_t> uses;  // how often each exchange key was used
  std::function<StorePtr()> connect_again;
  std::string keys = "x/";  // where the keys of exchanges begin
  std::mutex heart_mutex;
  std::condition_variable_any heart_wake;
  int64_t beats = 0;
  std::jthread heart;  // last: stops before what it uses goes
};

void Rendezvous::Impl::show_state() {
  const std::lock_guard lock(heart_mutex);
  std::vector<uint8_t> bytes(sizeof beats);
  ++beats;
  std::memcpy(bytes.data(), &beats, sizeof beats);
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

std::optional<std::vector<uint8_t>> Rendezvous::Impl::last_heartbeat(int rank) {
  try {
    if (!control.has(alive_key(rank))) return std::vector<uint8_t>();
    return control.get(alive_key(rank));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool Rendezvous::Impl::any_gone(const std::vector<int>& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return state_of(rank) == ProcessState::kGone; });
}

std::vector<int> Rendezvous::Impl::missing(const std::vector<std::string>& keys,
                                           const std::vector<int>& ranks) {
  std::vector<int> absent;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!control.has(keys[i])) absent.push_back(ranks[i]);
  }
  return absent;
}

void Rendezvous::Impl::did_not_come(const std::vector<int>& absent, double waited,
                                    const std::string& what) const {
  std::vector<std::string> names;
  for (const int rank : absent) names.push_back(std::to_string(rank));
  throw Error(ExitCode::kPeerLost,
              cat("rank ", options.rank, " waited ", human_seconds(waited), " for ", what,
                  ": rank ", join(names, ", "), any_gone(absent) ? " is gone" : " did not come"),
              "look at that rank's own log first");
}

void Rendezvous::Impl::lost_store(const std::string& key, const std::string& why) const {
  const ProcessState state = state_of(0);
  const char* known = state == ProcessState::kGone      ? "rank 0, which serves it, is gone"
                      : state == ProcessState::kStopped ? "rank 0, which serves it, is stopped"
                                                        : "it is served by rank 0";
  throw Error(ExitCode::kPeerLost,
              cat("rank ", options.rank, " lost the rendezvous in \"", key, "\": ", known, " [",
                  first_line(why), "]"),
              "look at rank 0's own log first");
}

/// False when some are not there within the limit, or the store is silent.
bool Rendezvous::Impl::wait_for_keys(const std::vector<std::string>& keys, Milliseconds limit) {
  const auto wait = [keys, limit](c10d::Store& server) {
    try {
      server.wait(keys, limit);
      return true;
    } catch (const std::exception&) {
      return false;  // late or broken: the control connection tells
    }
  };
  try {
    return main.call(wait, limit + kControlTimeout);
  } catch (const StoreSilent&) {
    return false;
  }
}

namespace {

/// Since when each absent rank has shown no sign of life.
class SignsOfLife {
 public:
  using Beat = std::optional<std::vector<uint8_t>>;

  void note(int rank, const Beat& beat) {
    Last& last = last_.try_emplace(rank, Last{{}, Clock::now()}).first->second;
    if (beat && beat != last.beat) last = {beat, Clock::now()};
  }
  /// True when each of them has shown one within `limit`.
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
void Rendezvous::Impl::await_keys(const std::vector<std::string>& keys,
                                  const std::vector<int>& ranks, const std::string& what,
                                  Patience patience) {
  const auto start = Clock::now();
  auto answered = start;
  SignsOfLife signs;
  while (true) {
    const auto left = std::chrono::ceil<Milliseconds>(start + options.timeout - Clock::now());
    if (wait_for_keys(keys, left.count() > 0 ? std::min(left, kSlice) : kSlice)) return;
    try {
      const std::vector<int> absent = missing(keys, ranks);
      answered = Clock::now();
      if (patience == Patience::kWhileAlive)
        for (const int rank : absent) signs.note(rank, last_heartbeat(rank));
      const bool over = answered - start >= options.timeout && !signs.all_within(absent, life_limit());
      const std::chrono::duration<double> elapsed = answered - start;
      if (over || any_gone(absent)) did_not_come(absent, elapsed.count(), what);
    } catch (const StoreSilent&) {
      if (Clock::now() - answered >= options.timeout || state_of(0) == ProcessState::kGone) throw;
    }
  }
}

namespace {

/// The name of rank 0's machine may come to be known only once that machine runs, so a name that is
/// unknown is no failure yet; but a person should not wait for a misspelt one in silence.
void warn_of_unknown_host(const RendezvousOptions& options) {
  if (const auto why = unknown_host(options.address))
    log_warning(cat("rank ", options.rank, ": ", *why, "; trying for ",
                    human_seconds(static_cast<double>(options.timeout.count()) * 1e-3)));
}

/// Client connection, or the server when `listen` is given.
StorePtr tcp_store(const RendezvousOptions& options, int port, std::optional<int> listen) {
  c10d::TCPStoreOptions settings;
  settings.port = static_cast<uint16_t>(port);
  settings.isServer = listen.has_value();
  settings.masterListenFd = listen;
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
  if (const auto unknown = unknown_host(options.address)) why = *unknown;
  throw Error(
      ExitCode::kPeerLost,
      cat("rank ", options.rank, " could not reach the rendezvous of rank 0 at ", options.address,
          ":", port, " within ", human_seconds(static_cast<double>(options.timeout.count()) * 1e-3),
          ": ", why),
      "check MASTER_ADDR and MASTER_PORT, that rank 0 runs, and that no firewall is between");
}

struct Stores {
  StorePtr main, control;
  std::function<StorePtr()> connect_again;
};

Stores open_stores(const RendezvousOptions& options) {
  StorePtr main, control;
  int port = options.port;
  if (options.world == 1) {
    main = c10::make_intrusive<c10d::HashStore>();
    control = main;
  } else if (options.rank == 0 && !options.agent_store) {
    ListenSocket socket;
    if (options.listen_fd >= 0) {
      socket = {OwnedFd(options.listen_fd), bound_port(options.listen_fd)};
    } else {
      socket = listen_on(options.address, options.port);
    }
    port = socket.port;
    main = tcp_store(options, port, socket.fd.get());
    socket.fd.release();  // the store's server owns it now
    control = tcp_store(options, port, std::nullopt);
  } else {
    warn_of_unknown_host(options);
    main = tcp_store(options, port, std::nullopt);
    control = tcp_store(options, port, std::nullopt);
  }
  const std::string prefix = cat("ftrun/", options.attempt);
  const auto prefixed = [prefix](const StorePtr& store) -> StorePtr {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  };
  const auto connect_again = [=] {
    return prefixed(options.world == 1 ? main : tcp_store(options, port, std::nullopt));
  };
  return {prefixed(main), prefixed(control), connect_again};
}

}  // namespace

Rendezvous::Rendezvous(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Rendezvous::~Rendezvous() = default;

std::unique_ptr<Rendezvous> Rendezvous::connect(const RendezvousOptions& options) {
  prepare_c10d();
  Stores stores = open_stores(options);
  auto impl = std::make_unique<Impl>(options, stores.main, stores.control);
  impl->connect_again = stores.connect_again;
  std::unique_ptr<Rendezvous> rendezvous(new Rendezvous(std::move(impl)));
  const std::vector<std::string> texts =
      rendezvous->exchange_text("identity", identity_text(own_identity()));
  for (size_t rank = 0; rank < texts.size(); ++rank)
    rendezvous->impl_->identities[rank] = parse_identity(texts[rank]);
  rendezvous->impl_->start_heartbeat();
  return rendezvous;
}

std::vector<std::unique_ptr<Rendezvous>> Rendezvous::in_process(int world, Milliseconds timeout,
                                                                Milliseconds heartbeat) {
  prepare_c10d();
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Rendezvous>> all;
  for (int rank = 0; rank < world; ++rank) {
    const RendezvousOptions options{
        .rank = rank, .world = world, .timeout = timeout, .heartbeat = heartbeat};
    auto impl = std::make_unique<Impl>(options, store, store);
    for (PeerIdentity& identity : impl->identities) identity = own_identity();
    impl->connect_again = [store] { return store; };
    impl->start_heartbeat();
    all.emplace_back(new Rendezvous(std::move(impl)));
  }
  return all;
}

/// Who lives is asked over the connection of the heartbeat, which nobody holds for long.
std::unique_ptr<Rendezvous> Rendezvous::beside() {
  auto other = std::make_unique<Impl>(impl_->options, impl_->connect_again(), impl_->control.store);
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
ProgressBoard& Rendezvous::board() {
  return impl_->board;
}
const PeerIdentity& Rendezvous::identity(int rank) const {
  return impl_->identities.at(static_cast<size_t>(rank));
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
  const auto key_of = [&](int rank, int64_t which) {
    return cat(impl_->keys, key, "/", which, "/", rank);
  };
  std::vector<std::string> keys;
  for (const int member : members) keys.push_back(key_of(member, use));
  try {
    const Milliseconds limit = impl_->options.timeout;
    impl_->main.set(key_of(rank(), use), bytes_of(text), limit);
    impl_->await_keys(keys, members, cat("\"", key, "\""), patience);
    const auto values =
        impl_->main.call([keys](c10d::Store& server) { return server.multiGet(keys); }, limit);
    std::vector<std::string> texts;
    for (const auto& value : values) texts.push_back(text_of(value));
    // Every member has entered this use, so all have read the one before the last.
    if (use > 2)
      impl_->main.call(
          [old = key_of(rank(), use - 2)](c10d::Store& s) { return s.deleteKey(old); }, limit);
    return texts;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    impl_->lost_store(key, error.what());
  }
}

void Rendezvous::post(const std::string& key, const std::string& text) {
  impl_->control.set("post/" + key, bytes_of(text));
}

std::optional<std::string> Rendezvous::find(const std::string& key) {
  if (!impl_->control.has("post/" + key)) return std::nullopt;
  return text_of(impl_->control.get("post/" + key));
}

std::vector<PeerView> Rendezvous::view(const std::vector<int>& members, const std::string& group) {
  const auto settle = impl_->options.heartbeat * 3 / 2;
  std::vector<std::optional<std::vector<uint8_t>>> before;
  try {
    impl_->show_state();
  } catch (const std::exception&) {
  }
  // Known states may be a heartbeat old, and a dying process needs a moment to be gone.
  bool answers = true;  // a store that is silent is not asked again for each of many ranks
  const auto ask = [&](int member) {
    const auto beat = answers ? impl_->last_heartbeat(member) : std::nullopt;
    answers = beat.has_value();
    return beat;
  };
  for (const int member : members) before.push_back(ask(member));
  if (!impl_->any_gone(members)) std::this_thread::sleep_for(settle);
  std::vector<PeerView> views;
  for (size_t i = 0; i < members.size(); ++i) {
    PeerView view{.global_rank = members[i], .identity = identity(members[i])};
    view.process = impl_->state_of(members[i]);
    const auto now = ask(members[i]);
    const bool elsewhere = view.process == ProcessState::kUnknown;
    view.silent = elsewhere && (!now || now == before[i]);
    if (now && now->size() > sizeof(int64_t))
      view.record = ProgressBoard::find({now->begin() + sizeof(int64_t), now->end()}, group);
    views.push_back(std::move(view));
  }
  return views;
}

bool Rendezvous::any_ended(const std::vector<int>& members) const { return impl_->any_gone(members); }

std::string Rendezvous::local_address() const {
  return local_address_towards(impl_->options.address, impl_->options.port);
}

void Rendezvous::shutdown(Milliseconds limit) {
  if (world() == 1) return;
  const Milliseconds before = std::exchange(impl_->options.timeout, limit);
  try {
    exchange_text("shutdown", "");
    leave(limit);
  } catch (const std::exception&) {
    // The work is done; who is missing will be told by the supervisor.
  }
  impl_->options.timeout = before;
}

void Rendezvous::leave(Milliseconds limit) noexcept {
  if (world() == 1) return;
  try {
    if (rank() > 0) {
      impl_->main.call([](c10d::Store& server) { return server.add("left", 1); }, limit);
      return;
    }
    const auto end = Clock::now() + limit;
    const auto count = [](c10d::Store& server) { return server.add("left", 0); };
    while (impl_->main.call(count, limit) < world() - 1 && Clock::now() < end)
      std::this_thread::sleep_for(Milliseconds(1));
  } catch (const std::exception&) {
    // Who is missing will be told by the supervisor.
  }
}

StorePtr prefixed_store(Rendezvous& rendezvous, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, rendezvous.impl().main.store);
}

StoreWorker& store_worker(Rendezvous& rendezvous) {
  return rendezvous.impl().main.worker;
}

}  // namespace ftrun
