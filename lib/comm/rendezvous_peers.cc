#include <algorithm>
#include <cstring>
#include <ranges>

#include "base/text.h"
#include "comm/rendezvous_impl.h"
#include "comm/store_text.h"
#include "comm/store_value.h"

namespace ftrun {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kMomentToDie{200};

std::string alive_key(int rank) {
  return cat("alive/", rank);
}

}  // namespace

void Rendezvous::Impl::send_heartbeat() {
  const int64_t beat = ++heartbeats_sent;
  std::vector<uint8_t> bytes(sizeof beat);
  std::memcpy(bytes.data(), &beat, sizeof beat);
  const std::vector<uint8_t> image = board.encoded_state();
  bytes.insert(bytes.end(), image.begin(), image.end());
  control.set(alive_key(options.rank), bytes);
}

void Rendezvous::Impl::send_heartbeats(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    try {
      send_heartbeat();
    } catch (const std::exception&) {
      // The store ended with rank 0; this rank's own waits report that.
    }
    std::unique_lock lock(heartbeat_mutex);
    heartbeat_wake.wait_for(lock, stop, options.heartbeat, [] { return false; });
  }
}

/// Logs the long waits of this rank in collectives. Runs in its own thread, because a blocked log
/// must not delay heartbeats.
void Rendezvous::Impl::watch_collectives(const std::stop_token& stop) {
  struct ReportedWait {
    CollectiveRecord record;
    WaitNotice notice;
  };
  std::map<std::string, ReportedWait> waits;  // by group
  const auto interval = std::min<Milliseconds>(Milliseconds(1000), options.notices.first_delay / 2);
  while (!stop.stop_requested()) {
    const RankState own_state = board.state();
    for (const RankState::GroupState& group : own_state.groups) {
      const CollectiveRecord& record = group.record;
      const auto reported = waits.find(group.name);
      if (record.state != CollectiveState::kEntered) {
        if (reported != waits.end()) waits.erase(reported);
        continue;
      }
      if (reported == waits.end() || reported->second.record.unix_ns != record.unix_ns) {
        WaitNoticeOptions times = options.notices;
        times.first_delay = std::max(times.first_delay, Milliseconds(usual_wait_ms.load()));
        waits.insert_or_assign(group.name, ReportedWait{record, WaitNotice(times)});
        continue;
      }
      reported->second.notice.poll_if(
          [&](const std::string& waited) { return collective_wait_text(group, waited); });
    }
    std::unique_lock lock(watch_mutex);
    watch_wake.wait_for(lock, stop, interval, [] { return false; });
  }
}

/// Returns the notice of a wait in a collective; nothing if another rank logs it. Of a group, only
/// the lowest waiting rank logs; of a message, only the receiver.
std::optional<std::string> Rendezvous::Impl::collective_wait_text(
    const RankState::GroupState& group, const std::string& waited) {
  const auto own = std::ranges::find(group.members, options.rank);
  if (own == group.members.end()) return std::nullopt;
  const auto self = static_cast<int>(own - group.members.begin());
  const auto view_in_group = [&](const std::vector<int>& ranks) {
    std::vector<PeerView> views = view_ranks(ranks);
    for (PeerView& view : views) view.record = ProgressBoard::find_record(view.state, group.name);
    return views;
  };
  const std::vector<PeerView> views = view_in_group(group.members);
  const auto waits_there = [&](const PeerView& view) {
    return is_in_collective(view.record, group.record.sequence);
  };
  if (!is_point_to_point(group.record.kind) &&
      std::any_of(views.begin(), views.begin() + self, waits_there))
    return std::nullopt;
  const WaitExplanation why = explain_peers(
      views, group.record, self, view_ranks(ranks_without_views(views, group.record, self, {})));
  constexpr size_t kLongest = 600;
  return cat("rank ", options.rank, " has waited ", waited, " in ", describe(group.record),
             " of group ", group.name, ": ",
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

void Rendezvous::Impl::record_silence(int rank, bool is_silent) {
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

/// Returns what a rank of the same supervisor shows on its board at this moment.
std::optional<RankState> Rendezvous::Impl::state_on_local_board(int rank) const {
  const PeerIdentity& peer = identities[static_cast<size_t>(rank)];
  if (peer.machine != identities[static_cast<size_t>(options.rank)].machine) return std::nullopt;
  const BoardTable* table = local_boards.find_table(rank, peer.pid);
  if (table == nullptr) return std::nullopt;
  return read_state(*table);
}

PeerView Rendezvous::Impl::view_rank(int rank,
                                     const std::optional<std::vector<uint8_t>>& beat) const {
  PeerView view{.global_rank = rank, .identity = identities[static_cast<size_t>(rank)]};
  view.process = state_of(rank);
  if (auto here = state_on_local_board(rank))
    view.state = std::move(*here);
  else if (beat && beat->size() > sizeof(int64_t))
    view.state = decode_state(std::span(*beat).subspan(sizeof(int64_t)), options.world_size);
  return view;
}

std::vector<PeerView> Rendezvous::Impl::view_ranks(const std::vector<int>& ranks) {
  std::vector<PeerView> views;
  bool answers = true;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= options.world_size) continue;
    const bool asks = answers && !state_on_local_board(rank);
    const auto beat = asks ? last_heartbeat(rank) : std::nullopt;
    answers = answers && (!asks || beat);
    views.push_back(view_rank(rank, beat));
  }
  return views;
}

std::vector<int> Rendezvous::Impl::ranks_that_ended(std::vector<int> ranks) const {
  std::erase_if(ranks, [&](int rank) { return state_of(rank) != ProcessState::kGone; });
  return ranks;
}

void Rendezvous::post_text(const std::string& key, const std::string& text) {
  if (impl_->state_of(0) == ProcessState::kStopped)
    return;  // nobody could find the text, and this rank would wait
  impl_->control.set("post/" + key, bytes_of(text));
}

std::optional<std::string> Rendezvous::find_text(const std::string& key) {
  if (!impl_->control.has("post/" + key, kSilentTimeout)) return std::nullopt;
  return text_of(impl_->control.get("post/" + key));
}

std::vector<PeerView> Rendezvous::view_members(const std::vector<int>& members,
                                               const std::string& group) {
  const auto settle = impl_->options.heartbeat * 3 / 2;
  std::vector<std::optional<std::vector<uint8_t>>> earlier_beats(members.size());
  // Heartbeats are read twice, `settle` apart: the first may show a state that is one heartbeat
  // old, and a dying process takes a moment to end.
  bool answers = true;  // a store that does not answer is not asked again for each of many ranks
  const auto read_heartbeat = [&](int member) {
    const auto beat = answers ? impl_->last_heartbeat(member) : std::nullopt;
    answers = beat.has_value();
    return beat;
  };
  const bool all_on_local_boards = std::ranges::all_of(
      members, [&](int member) { return impl_->state_on_local_board(member).has_value(); });
  if (!all_on_local_boards) {
    try {
      impl_->send_heartbeat();
    } catch (const std::exception&) {
      answers = false;
    }
    for (size_t i = 0; i < members.size(); ++i) earlier_beats[i] = read_heartbeat(members[i]);
    if (!impl_->any_ended(members))
      std::this_thread::sleep_for(answers ? settle : std::min<Milliseconds>(settle, kMomentToDie));
  } else if (!impl_->any_ended(members)) {
    std::this_thread::sleep_for(std::min<Milliseconds>(settle, kMomentToDie));
  }
  std::vector<PeerView> views;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto beat = all_on_local_boards ? std::nullopt : read_heartbeat(members[i]);
    PeerView view = impl_->view_rank(members[i], beat);
    const bool is_remote = view.process == ProcessState::kUnknown;
    view.is_silent = is_remote && (!beat || beat == earlier_beats[i]);
    view.has_heartbeat = !is_remote || (beat && !beat->empty());
    impl_->record_silence(members[i], view.is_silent);
    view.record = ProgressBoard::find_record(view.state, group);
    views.push_back(std::move(view));
  }
  return views;
}

std::vector<PeerView> Rendezvous::view_ranks(const std::vector<int>& ranks) {
  return impl_->view_ranks(ranks);
}

void Rendezvous::post_abort(const std::string& group, const std::string& reason) noexcept {
  try {
    post_text("gave up/" + group, reason);
  } catch (const std::exception&) {
    // The store ended with rank 0, which the other ranks notice by themselves.
  }
}

bool Rendezvous::is_any_lost(const std::vector<int>& members, const std::string& group) {
  if (impl_->any_ended(members)) return true;
  try {
    return find_text("gave up/" + group).has_value();
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace ftrun
