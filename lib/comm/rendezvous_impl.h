#pragma once

// Only the sources of Rendezvous include this header, because it includes c10d's headers.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rank_error.h"
#include "cluster/local_boards.h"
#include "comm/rendezvous.h"
#include "comm/rendezvous_file.h"
#include "comm/store_connection.h"
#include "comm/store_server.h"

namespace ftrun {

/// The key of the first exchange, in which the ranks meet.
inline constexpr const char* kMeetingKey = "identity";

/// Rendezvous::Impl is the state that the sources of Rendezvous share: opening (rendezvous.cc,
/// store_opening.h), signs of life (rendezvous_peers.cc) and exchanges (rendezvous_exchange.cc).
struct Rendezvous::Impl {
  using Milliseconds = std::chrono::milliseconds;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  Impl(const RendezvousOptions& from, StorePtr main_store, StorePtr control_store)
      : options(from),
        main{std::move(main_store), {}, false},
        control{std::move(control_store), {}, true},
        local_boards(LocalBoards::open(OwnedFd(from.board_fd))),
        board(from.rank, from.local_rank < local_boards.count()
                             ? &local_boards.table(from.local_rank)
                             : nullptr),
        identities(static_cast<size_t>(from.world_size)) {}

  void start_heartbeat() {
    if (options.world_size == 1) return;
    heartbeat_thread = std::jthread([this](std::stop_token stop) { send_heartbeats(stop); });
    watch_thread = std::jthread([this](std::stop_token stop) { watch_collectives(stop); });
  }
  void send_heartbeats(const std::stop_token& stop);
  void watch_collectives(const std::stop_token& stop);
  std::optional<std::string> collective_wait_text(const RankState::GroupState& group,
                                                  const std::string& waited);
  void send_heartbeat();
  std::optional<std::vector<uint8_t>> last_heartbeat(int rank);
  /// Records whether a rank gave no sign of life at the last check.
  void record_silence(int rank, bool is_silent);
  bool is_silent(int rank);
  std::vector<std::string> leave_keys(bool include_ended);
  std::optional<RankState> state_on_local_board(int rank) const;
  PeerView view_rank(int rank, const std::optional<std::vector<uint8_t>>& beat) const;
  std::vector<PeerView> view_ranks(const std::vector<int>& ranks);

  /// TextExchange is one use of a key. Each member puts its text into the store; the first member
  /// joins all texts under one key, for which the others wait. If each member waited for the keys
  /// of all and read them, the store would hold as many requests and answers as there are pairs of
  /// ranks.
  struct TextExchange {
    /// The largest number of members for which every rank checks by itself who is absent; in larger
    /// exchanges the first member reports it to the others.
    static constexpr size_t kFew = 32;

    /// The prefix of the keys of this exchange.
    std::string prefix;
    int64_t use_number;
    std::vector<int> members;
    /// The name of the exchange in messages.
    std::string label;
    /// Says whether this is the first exchange, in which the ranks meet.
    bool begins_run = false;

    int first_member() const { return members.front(); }
    std::string text_key(int rank) const { return cat(prefix, "/", use_number, "/", rank); }
    std::string joined_texts_key() const {
      return cat(prefix, "/", use_number, "/all/", first_member());
    }
    std::string absent_ranks_key() const {
      return cat(prefix, "/", use_number, "/absent/", first_member());
    }
    std::vector<std::string> text_keys(std::span<const int> ranks) const {
      std::vector<std::string> keys;
      for (const int rank : ranks) keys.push_back(text_key(rank));
      return keys;
    }
  };

  /// MissingRanks lists the ranks that an exchange waits for.
  struct MissingRanks {
    std::vector<int> ranks;
    /// Says whether the wait is for the first rank, which has arrived but has not collected all
    /// texts yet.
    bool first_is_collecting = false;

    /// Returns the ranks whose death ends the wait: the absent ones, and always the first rank,
    /// without which the exchange cannot end in any other way.
    std::vector<int> awaited_ranks(int first) const {
      std::vector<int> all = ranks;
      if (!all.empty() && all.front() != first) all.insert(all.begin(), first);
      return all;
    }
  };

  using FindMissingRanks = std::function<MissingRanks(bool check_all)>;
  std::string exchange_texts(const TextExchange& exchange, const std::string& text,
                             WaitPolicy policy);
  std::string gather_texts(const TextExchange& exchange, WaitPolicy policy);
  template <typename Work>
  auto run_or_publish_failure(const TextExchange& exchange, const std::string& key, Work work);
  void publish_failure(const TextExchange& exchange, const std::string& key,
                       const Error& error) noexcept;
  MissingRanks missing_ranks_for_first(const TextExchange& exchange);
  MissingRanks missing_ranks_for_others(const TextExchange& exchange, bool check_all);
  std::vector<int> ranks_to_check(const TextExchange& exchange, bool check_all);
  void await_keys(const TextExchange& exchange, const std::vector<std::string>& keys,
                  const FindMissingRanks& find_missing_ranks, WaitPolicy policy);
  bool wait_for_keys(const std::vector<std::string>& keys, Milliseconds limit);
  std::vector<int> find_missing(const TextExchange& exchange, std::span<const int> ranks);
  void store_text(const TextExchange& exchange, const std::string& key, const std::string& text,
                  int64_t last_use);
  void remove_used_keys(const TextExchange& exchange);
  std::vector<int> ranks_that_ended(std::vector<int> ranks) const;
  bool any_ended(const std::vector<int>& ranks) const { return !ranks_that_ended(ranks).empty(); }
  /// Returns how long a rank may give no sign of life before it is lost; a few heartbeats may be
  /// late on a busy machine.
  Milliseconds silence_limit() const { return std::max(options.timeout, 30 * options.heartbeat); }
  bool reports_wait(const TextExchange& exchange, const MissingRanks& missing) const;
  std::string wait_text(const TextExchange& exchange, const MissingRanks& missing,
                        WaitPolicy policy, const std::string& waited);
  [[noreturn]] void throw_missing_ranks(const TextExchange& exchange, const MissingRanks& missing,
                                        const std::vector<int>& gone, Milliseconds waited);
  AbsentRankError lost_store_error(const TextExchange& exchange, const std::exception& why) const;
  void blame_absent_rank(const AbsentRankError& error) {
    if (error.absent() && *error.absent() != options.rank) board.blame(*error.absent());
  }
  ProcessState state_of(int rank) const {
    return read_process_state(identities[static_cast<size_t>(rank)],
                              identities[static_cast<size_t>(options.rank)]);
  }

  RendezvousOptions options;
  StoreConnection main;     // for the rank's own thread
  StoreConnection control;  // separate, so that a wait does not stop heartbeats
  LocalBoards local_boards;
  ProgressBoard board;
  std::vector<PeerIdentity> identities;
  std::map<std::string, int64_t> uses;  // how often each exchange key was used
  /// The keys that this rank has put into the store, by the prefix of their exchange; each with the
  /// number of the use in which it may be removed.
  std::map<std::string, std::map<std::string, int64_t>> own_keys;
  std::function<StorePtr()> connect_again;
  std::string key_prefix = "x/";  // of the keys of exchanges
  std::optional<TorchrunLaunch> torchrun_launch;
  std::shared_ptr<const StoreServer> server;        // rank 0's
  const RendezvousFile* rendezvous_file = nullptr;  // set while ranks may still join by it
  std::mutex heartbeat_mutex;
  std::condition_variable_any heartbeat_wake;
  std::atomic<int64_t> heartbeats_sent = 0;
  std::mutex silent_mutex;
  std::set<int> silent_ranks;
  /// The usual length of waits in collectives.
  std::atomic<int64_t> usual_wait_ms = 0;
  std::mutex watch_mutex;
  std::condition_variable_any watch_wake;
  /// The threads are declared last, so that they stop before the members they use are destroyed.
  std::jthread heartbeat_thread, watch_thread;
};

}  // namespace ftrun
