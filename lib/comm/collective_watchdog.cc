#include "comm/collective_watchdog.h"

#include <algorithm>
#include <exception>
#include <string>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The interval at which a collective is polled: short enough that the board is up to date at each
/// of the peers' heartbeats. Querying an event costs microseconds.
constexpr std::chrono::milliseconds kInterval{20};
/// The time that a collective may take before its members are checked, and the time between two
/// such checks.
constexpr std::chrono::seconds kMemberCheckInterval{1};

}  // namespace

CollectiveWatchdog::CollectiveWatchdog(WatchedCommunicator& watched,
                                       std::chrono::milliseconds limit)
    : watched_(watched), limit_(limit), thread_([this] { watch_collectives(); }) {}

void CollectiveWatchdog::announce(const CollectiveRecord& record, int64_t handle) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({record, handle, Clock::now()});
}

void CollectiveWatchdog::confirm_issued() {
  {
    const std::lock_guard lock(mutex_);
    entries_.back().is_issued = true;
  }
  changed_.notify_all();
}

void CollectiveWatchdog::withdraw() {
  const std::lock_guard lock(mutex_);
  entries_.pop_back();
}

void CollectiveWatchdog::set_limit(std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

void CollectiveWatchdog::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CollectiveWatchdog::watch_collectives() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // The thread wakes every kMemberCheckInterval, to notice a collective that was announced but
    // never issued to the stream.
    changed_.wait_for(lock, kMemberCheckInterval,
                      [&] { return is_stopping_ || (has_issued_collective() && !has_given_up_); });
    if (is_stopping_) return;
    if (entries_.empty() || has_given_up_) continue;
    const WatchedCollective entry = entries_.front();
    lock.unlock();
    const bool should_pause = poll(entry);
    lock.lock();
    if (should_pause) changed_.wait_for(lock, kInterval, [&] { return is_stopping_; });
  }
}

bool CollectiveWatchdog::poll(const WatchedCollective& entry) {
  try {
    if (!entry.is_issued) {
      waits_since_ = entry.announced;
    } else if (!first_has_begun_) {
      first_has_begun_ = watched_.has_begun(entry.handle);
      waits_since_ = Clock::now();
      if (!first_has_begun_) return true;
      watched_.on_begin(entry.record);
    }
    if (entry.is_issued && watched_.has_ended(entry.handle)) {
      watched_.on_end();
      watched_.release(entry.handle);
      const std::lock_guard lock(mutex_);
      entries_.pop_front();
      first_has_begun_ = false;
      return false;
    }
    const auto waited = Clock::now() - waits_since_;
    if (is_late(waited))
      give_up(entry,
              {cat("waited ", human_seconds(std::chrono::duration<double>(waited).count()), " in"),
               "", true});
    else if (waited > kMemberCheckInterval && is_member_check_due() && watched_.is_peer_lost())
      give_up(entry, {"lost a peer in", ""});
  } catch (const RankError& error) {
    watched_.on_device_failed(entry.record, error);
    record_abort();
  } catch (const std::exception& error) {
    give_up(entry, {"lost a connection in", first_line(error.what())});
  }
  return true;
}

bool CollectiveWatchdog::is_member_check_due() {
  const auto now = Clock::now();
  if (now < next_member_check_) return false;
  next_member_check_ = now + kMemberCheckInterval;
  return true;
}

bool CollectiveWatchdog::is_late(Clock::duration waited) {
  const std::lock_guard lock(mutex_);
  return waited > limit_;
}

void CollectiveWatchdog::give_up(const WatchedCollective& entry, const CollectiveFailure& failure) {
  watched_.on_peer_lost(entry.record, failure);
  record_abort();
}

void CollectiveWatchdog::record_abort() {
  const std::lock_guard lock(mutex_);
  has_given_up_ = true;
}

}  // namespace ftrun
