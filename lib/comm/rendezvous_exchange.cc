#include <algorithm>
#include <ranges>

#include "base/as_error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/job_store.h"
#include "comm/out_of_memory.h"
#include "comm/rendezvous_impl.h"
#include "comm/store_protocol.h"
#include "comm/store_text.h"
#include "comm/store_value.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kSlice{1000};  // the longest wait between two checks for dead peers
/// The time after the limit that the first rank has to collect the texts of a group that has
/// arrived.
constexpr Milliseconds kCollectTime{2000};
/// The maximum number of ranks that a log message about a wait lists, with what they are doing.
constexpr std::ptrdiff_t kMaxListed = 8;

/// Returns the text "rank 1", "ranks 1, 2", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 24 more".
std::string short_rank_list(const std::vector<int>& ranks) {
  const auto shown = std::min(kMaxListed, std::ssize(ranks));
  const std::string list = rank_list(std::vector<int>(ranks.begin(), ranks.begin() + shown));
  return shown == std::ssize(ranks) ? list : cat(list, " and ", std::ssize(ranks) - shown, " more");
}

/// LivenessTracker records when each absent rank last showed a sign of life.
class LivenessTracker {
 public:
  using Beat = std::optional<std::vector<uint8_t>>;

  void record_heartbeat(int rank, const Beat& beat) {
    LastHeartbeat& last = last_.try_emplace(rank, LastHeartbeat{{}, Clock::now()}).first->second;
    if (beat && beat != last.beat) last = {beat, Clock::now()};
  }
  /// Returns whether each of `ranks` has shown a sign of life within `limit`.
  bool are_all_alive(const std::vector<int>& ranks, Milliseconds limit) const {
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      const auto found = last_.find(rank);
      return found != last_.end() && found->second.beat &&
             Clock::now() - found->second.when < limit;
    });
  }

 private:
  struct LastHeartbeat {
    Beat beat;
    Clock::time_point when;
  };
  std::map<int, LastHeartbeat> last_;
};

class TextExchangeScope {
 public:
  TextExchangeScope(ProgressBoard& board, const std::string& what) : board_(board) {
    board_.show_text_exchange(what);
  }
  ~TextExchangeScope() { board_.show_text_exchange(""); }
  TextExchangeScope(const TextExchangeScope&) = delete;
  TextExchangeScope& operator=(const TextExchangeScope&) = delete;

 private:
  ProgressBoard& board_;
};

}  // namespace

/// Finds which of `ranks` have not come, by bisection: a few absent ranks are found with few
/// requests.
std::vector<int> Rendezvous::Impl::find_missing(const TextExchange& exchange,
                                                std::span<const int> ranks) {
  if (ranks.empty() || control.has_all(exchange.text_keys(ranks))) return {};
  if (ranks.size() == 1) return {ranks.front()};
  std::vector<int> absent = find_missing(exchange, ranks.first(ranks.size() / 2));
  const std::vector<int> others = find_missing(exchange, ranks.subspan(ranks.size() / 2));
  absent.insert(absent.end(), others.begin(), others.end());
  return absent;
}

/// Writes a text to the store and records its keys for remove_used_keys(), which may remove them as
/// soon as every member has entered the exchange `last_use`.
void Rendezvous::Impl::store_text(const TextExchange& exchange, const std::string& key,
                                  const std::string& text, int64_t last_use) {
  for (const std::string& each : text_keys(key, text.size()))
    own_keys[exchange.prefix][each] = last_use;
  main.run_operation(
      [key, text](c10d::Store& server) { return write_text(server, key, text), true; },
      options.timeout);
}

/// Removes the keys of earlier uses, and those of this use that are no longer needed: every member
/// has entered this use, and the first one has read the texts of all.
void Rendezvous::Impl::remove_used_keys(const TextExchange& exchange) {
  auto& own_keys_of_exchange = own_keys[exchange.prefix];
  for (auto each = own_keys_of_exchange.begin(); each != own_keys_of_exchange.end();) {
    const auto& [key, last_use] = *each;
    if (last_use > exchange.use_number) {
      ++each;
      continue;
    }
    main.run_operation([key = key](c10d::Store& server) { return server.deleteKey(key); },
                       options.timeout);
    each = own_keys_of_exchange.erase(each);
  }
}

Rendezvous::Impl::MissingRanks Rendezvous::Impl::missing_ranks_for_first(
    const TextExchange& exchange) {
  const std::vector<int> absent = find_missing(exchange, exchange.members);
  if (exchange.members.size() <= TextExchange::kFew) return {absent};
  std::string list;
  for (const int rank : absent) append_field(list, std::to_string(rank));
  own_keys[exchange.prefix][exchange.absent_ranks_key()] = exchange.use_number + 1;
  control.set(exchange.absent_ranks_key(), bytes_of(list));
  return {absent};
}

/// Lists the ranks whose keys this rank checks, if it is not the first. In a large group only the
/// first rank checks all keys: if every rank did so once a second, the store would have no time for
/// other work. If the first rank reports nobody as absent, each rank checks once, at the end.
std::vector<int> Rendezvous::Impl::ranks_to_check(const TextExchange& exchange, bool check_all) {
  if (exchange.members.size() <= TextExchange::kFew) return exchange.members;
  if (!control.has(exchange.text_key(exchange.first_member()))) return {exchange.first_member()};
  if (!control.has(exchange.absent_ranks_key()))
    return check_all ? exchange.members : std::vector<int>();
  const std::string list = text_of(control.get(exchange.absent_ranks_key()));
  std::vector<int> ranks;
  for (const std::string_view rank : parse_fields(list).value_or(std::vector<std::string_view>()))
    ranks.push_back(std::stoi(std::string(rank)));
  return ranks;
}

Rendezvous::Impl::MissingRanks Rendezvous::Impl::missing_ranks_for_others(
    const TextExchange& exchange, bool check_all) {
  const std::vector<int> candidates = ranks_to_check(exchange, check_all);
  // The first member may have stopped since it reported which ranks are absent, so its list is
  // checked again. For a long list, one request checks whether any of these ranks is still absent.
  const bool each = check_all || candidates.size() <= TextExchange::kFew;
  MissingRanks missing;
  if (each)
    missing.ranks = find_missing(exchange, candidates);
  else if (!control.has_all(exchange.text_keys(candidates)))
    missing.ranks = candidates;
  if (missing.ranks.empty()) missing = {{exchange.first_member()}, true};
  // The members' own texts are deleted once all have been read, so their absence means nothing
  // then.
  if (control.has(exchange.joined_texts_key())) return {};
  return missing;
}

/// Returns whether this rank logs the wait: of the ranks that wait, the lowest does.
bool Rendezvous::Impl::reports_wait(const TextExchange& exchange,
                                    const MissingRanks& missing) const {
  if (missing.ranks.empty()) return false;
  return std::ranges::all_of(exchange.members, [&](int member) {
    return member >= options.rank ||
           std::ranges::find(missing.ranks, member) != missing.ranks.end();
  });
}

std::string Rendezvous::Impl::wait_text(const TextExchange& exchange, const MissingRanks& missing,
                                        WaitPolicy policy, const std::string& waited) {
  std::string text = cat("rank ", options.rank, " of ", options.world_size, " has waited ", waited,
                         " for ", short_rank_list(missing.ranks),
                         exchange.begins_run ? " to connect" : cat(" in ", exchange.label));
  const auto shown = std::min(kMaxListed, std::ssize(missing.ranks));
  for (const PeerView& view : view_ranks({missing.ranks.begin(), missing.ranks.begin() + shown}))
    if (const std::string doing = activity_text(view.state); !doing.empty())
      text += cat("; rank ", view.global_rank, " is in ", doing);
  return policy == WaitPolicy::kWhileAlive
             ? text
             : cat(text, "; it gives up after ",
                   human_seconds(static_cast<double>(options.timeout.count()) * 1e-3));
}

void Rendezvous::Impl::throw_missing_ranks(const TextExchange& exchange,
                                           const MissingRanks& missing,
                                           const std::vector<int>& gone, Milliseconds waited) {
  const std::vector<int>& named = gone.empty() ? missing.ranks : gone;
  std::vector<std::string> names, doing;
  for (const PeerView& view : view_ranks(named)) {
    names.push_back(std::to_string(view.global_rank));
    const std::string text = activity_text(view.state);
    if (!text.empty()) doing.push_back(cat("; rank ", view.global_rank, " is in ", text));
  }
  const bool is_single = names.size() == 1;
  const char* reason = !gone.empty() ? (is_single ? " is gone" : " are gone")
                       : missing.first_is_collecting
                           ? (is_single ? " has not finished collecting the replies"
                                        : " have not finished collecting the replies")
                           : " did not arrive in time";
  const Error error(ExitCode::kPeerLost,
                    cat("rank ", options.rank, " waited ",
                        human_seconds(static_cast<double>(waited.count()) * 1e-3), " for ",
                        exchange.label, ": ", rank_list(names), reason, join(doing, "")),
                    "look at that rank's own log first");
  throw AbsentRankError(error, named.size() == 1 ? std::optional(named.front()) : std::nullopt);
}

/// Makes the error of a rank whose exchange failed because of `why`. If the store does not answer
/// any more, rank 0 is blamed, because it serves the store (unless torchrun does): it may be about
/// to report its own failure.
AbsentRankError Rendezvous::Impl::lost_store_error(const TextExchange& exchange,
                                                   const std::exception& why) const {
  const ProcessState state = state_of(0);
  const char* state_text = options.has_torchrun_store        ? "torchrun serves it"
                           : state == ProcessState::kGone    ? "rank 0, which serves it, is gone"
                           : state == ProcessState::kStopped ? "rank 0, which serves it, is stopped"
                                                             : "it is served by rank 0";
  const bool is_lost = dynamic_cast<const StoreLostError*>(&why) != nullptr ||
                       dynamic_cast<const StoreTimeoutError*>(&why) != nullptr;
  const bool is_blamed = is_lost && options.rank != 0 && !options.has_torchrun_store;
  return {{ExitCode::kPeerLost,
           cat("rank ", options.rank, " lost the rendezvous in ", exchange.label, ": ", state_text,
               " [", first_line(why.what()), "]"),
           options.has_torchrun_store ? "look at torchrun's output first"
                                      : "look at rank 0's own log first"},
          is_blamed ? std::optional(0) : std::nullopt};
}

/// Waits for keys; returns false if some are missing at the limit, or the store does not answer.
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
    return main.run_operation(wait, limit + kControlTimeout);
  } catch (const StoreTimeoutError&) {
    return false;
  }
}

/// Waits in slices, and after each slice looks for ranks that can no longer come. A store that does
/// not answer, as while rank 0 is stopped, is waited for as an absent rank is.
void Rendezvous::Impl::await_keys(const TextExchange& exchange,
                                  const std::vector<std::string>& keys,
                                  const FindMissingRanks& find_missing_ranks, WaitPolicy policy) {
  const auto start = Clock::now();
  auto answered = start;
  LivenessTracker liveness;
  WaitNotice notice(options.notices, start);
  while (true) {
    const auto remaining = std::chrono::ceil<Milliseconds>(start + options.timeout - Clock::now());
    const Milliseconds slice = std::min(kSlice, options.notices.first_delay);
    if (wait_for_keys(keys, remaining.count() > 0 ? std::min(remaining, slice) : slice)) return;
    if (rendezvous_file != nullptr) rendezvous_file->check_not_replaced();
    try {
      const auto waited = std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
      const bool check_all = policy == WaitPolicy::kTimeout && waited >= options.timeout;
      MissingRanks missing = find_missing_ranks(check_all);
      std::vector<int> gone = ranks_that_ended(missing.awaited_ranks(exchange.first_member()));
      if (!gone.empty()) {
        // The absent ranks are searched again: a rank that has ended may have left its text after
        // the first search.
        missing = find_missing_ranks(check_all);
        const std::vector<int> awaited = missing.awaited_ranks(exchange.first_member());
        std::erase_if(gone,
                      [&](int rank) { return std::ranges::find(awaited, rank) == awaited.end(); });
      }
      answered = Clock::now();
      if (policy == WaitPolicy::kWhileAlive)
        for (const int rank : missing.ranks) liveness.record_heartbeat(rank, last_heartbeat(rank));
      const auto limit =
          missing.first_is_collecting ? options.timeout + kCollectTime : options.timeout;
      const bool over = waited >= limit && !liveness.are_all_alive(missing.ranks, silence_limit());
      if (over || !gone.empty()) throw_missing_ranks(exchange, missing, gone, waited);
      if (reports_wait(exchange, missing))
        notice.poll(
            [&](const std::string& time) { return wait_text(exchange, missing, policy, time); });
    } catch (const StoreTimeoutError&) {
      if (const auto others =
              exchange.members | std::views::drop(exchange.first_member() == 0 ? 1 : 0);
          others.front() == options.rank)
        notice.poll([&](const std::string& time) {
          return cat("rank ", options.rank, " has waited ", time, " for the store of rank 0 ",
                     state_of(0) == ProcessState::kStopped ? "(which is stopped) " : "",
                     "to answer");
        });
      if (Clock::now() - answered >= options.timeout || state_of(0) == ProcessState::kGone) throw;
    }
  }
}

/// Runs `work`. If it fails, reports the failure to the ranks that wait for this rank's text: this
/// process may live on, so they would not notice.
template <typename Work>
auto Rendezvous::Impl::run_or_publish_failure(const TextExchange& exchange, const std::string& key,
                                              Work work) {
  try {
    return work();
  } catch (const Error& error) {
    publish_failure(exchange, key, error);
    throw;
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) {
      publish_failure(exchange, key, as_error(error));
      throw;
    }
    const AbsentRankError lost = lost_store_error(exchange, error);
    // A rank that can read this failure reaches the store, so to that rank rank 0 is not absent.
    publish_failure(exchange, key, Error(lost));
    throw lost;
  }
}

void Rendezvous::Impl::publish_failure(const TextExchange& exchange, const std::string& key,
                                       const Error& error) noexcept {
  try {
    own_keys[exchange.prefix][key] = exchange.use_number + 1;
    control.set(key, failure_value(error));
  } catch (const std::exception&) {
    // The store does not accept the failure; the other members notice that by themselves, as this
    // rank did.
  }
}

/// Returns the texts of all members, joined into the one text that each member receives.
std::string Rendezvous::Impl::exchange_texts(const TextExchange& exchange, const std::string& text,
                                             WaitPolicy policy) {
  const auto store_own = [&] {
    store_text(exchange, exchange.text_key(options.rank), text, exchange.use_number);
  };
  const std::string key = exchange.joined_texts_key();
  if (exchange.first_member() == options.rank) {
    return run_or_publish_failure(exchange, key, [&] {
      store_own();
      return gather_texts(exchange, policy);
    });
  }
  run_or_publish_failure(exchange, exchange.text_key(options.rank), store_own);
  await_keys(
      exchange, {key},
      [&](bool check_all) { return missing_ranks_for_others(exchange, check_all); }, policy);
  return main.run_operation([key](c10d::Store& server) { return read_text(server, key); },
                            options.timeout);
}

std::string Rendezvous::Impl::gather_texts(const TextExchange& exchange, WaitPolicy policy) {
  const std::vector<std::string> keys_of_all = exchange.text_keys(exchange.members);
  await_keys(
      exchange, keys_of_all, [&](bool) { return missing_ranks_for_first(exchange); }, policy);
  const auto texts = main.run_operation(
      [keys_of_all](c10d::Store& server) { return read_texts(server, keys_of_all); },
      options.timeout);
  std::string all;
  for (const std::string& text : texts) append_field(all, text);
  store_text(exchange, exchange.joined_texts_key(), all, exchange.use_number + 1);
  return all;
}

std::vector<std::string> Rendezvous::all_gather_text(const std::string& key,
                                                     const std::string& text, WaitPolicy policy) {
  std::vector<int> everyone(static_cast<size_t>(world_size()));
  for (int rank = 0; rank < world_size(); ++rank) everyone[static_cast<size_t>(rank)] = rank;
  return all_gather_text(key, text, everyone, policy);
}

std::vector<std::string> Rendezvous::all_gather_text(const std::string& key,
                                                     const std::string& text,
                                                     const std::vector<int>& members,
                                                     WaitPolicy policy) {
  if (members.size() == 1) return {text};
  const int64_t use_number = ++impl_->uses[key];
  const Impl::TextExchange exchange{cat(impl_->key_prefix, key), use_number, members,
                                    cat("\"", key, "\""), key == kMeetingKey};
  const TextExchangeScope shown(impl_->board, cat("an exchange of \"", key, "\" with the others"));
  try {
    const std::string all = impl_->exchange_texts(exchange, text, policy);
    impl_->remove_used_keys(exchange);
    const auto texts = parse_fields(all);
    require(texts && texts->size() == members.size(), "an exchange has a text of each member");
    return {texts->begin(), texts->end()};
  } catch (const AbsentRankError& error) {
    impl_->blame_absent_rank(error);
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    rethrow_out_of_memory(error);
    const AbsentRankError lost = impl_->lost_store_error(exchange, error);
    impl_->blame_absent_rank(lost);
    throw lost;
  }
}

}  // namespace ftrun
