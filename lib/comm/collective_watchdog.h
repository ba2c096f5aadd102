#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "base/rank_error.h"
#include "cluster/collective_record.h"
#include "comm/collective_failure.h"

namespace ftrun {

/// WatchedCommunicator is a communicator whose collectives a device runs by itself, as the watchdog
/// sees it. The watchdog's thread calls these functions.
class WatchedCommunicator {
 public:
  virtual ~WatchedCommunicator() = default;
  /// Returns whether all earlier work in the collective's stream has ended: from then on only the
  /// peers can delay the collective. This function and has_ended() throw RankError if this rank's
  /// device fails, and any other exception if the transport fails.
  virtual bool has_begun(int64_t handle) = 0;
  virtual bool has_ended(int64_t handle) = 0;
  /// Releases the handle of a collective that has ended; it is not used again.
  virtual void release(int64_t handle) = 0;
  /// Records that the device has begun the collective; on_end() records that it has ended.
  virtual void on_begin(const CollectiveRecord& record) = 0;
  virtual void on_end() = 0;
  /// Returns whether a member is known to have aborted the group, or its process to have ended. May
  /// block for a moment.
  virtual bool is_peer_lost() = 0;
  /// Reports that the rank's wait ends because a peer is lost or late. Either this function or
  /// on_device_failed() is called, at most once.
  virtual void on_peer_lost(const CollectiveRecord& record, const CollectiveFailure& failure) = 0;
  /// Reports that this rank's own device has failed: no peer is the cause.
  virtual void on_device_failed(const CollectiveRecord& record, const RankError& error) = 0;
};

/// CollectiveWatchdog follows the collectives of a device. The host enqueues them in a stream and
/// continues, so the host's calls do not show which collective the device has reached. A thread
/// follows events in the stream. It records on the progress board which collective the device is
/// in. If a collective has begun and does not end within the limit, it reports which peer is
/// missing to the threads that wait for the device.
class CollectiveWatchdog {
 public:
  /// Borrows `watched`.
  CollectiveWatchdog(WatchedCommunicator& watched, std::chrono::milliseconds limit);
  ~CollectiveWatchdog() { stop(); }
  CollectiveWatchdog(const CollectiveWatchdog&) = delete;
  CollectiveWatchdog& operator=(const CollectiveWatchdog&) = delete;

  /// Announces a collective before it is put into the stream, in the order of the stream; the call
  /// of NCCL that enqueues it may block the host. confirm_issued() follows. `handle` is the
  /// backend's.
  void announce(const CollectiveRecord& record, int64_t handle);
  void confirm_issued();
  /// Replaces confirm_issued() for a collective that did not get into the stream.
  void withdraw();
  void set_limit(std::chrono::milliseconds limit);
  /// Ends the thread; collectives in progress are no longer followed. Call it before the
  /// backend's members are destroyed.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct WatchedCollective {
    CollectiveRecord record;
    int64_t handle;
    Clock::time_point announced;
    bool is_issued = false;
  };

  void watch_collectives();
  bool has_issued_collective() const { return !entries_.empty() && entries_.front().is_issued; }
  bool is_late(Clock::duration waited);
  bool is_member_check_due();
  /// Returns whether the thread should wait for the next interval before it polls again.
  bool poll(const WatchedCollective& entry);
  void give_up(const WatchedCollective& entry, const CollectiveFailure& failure);
  void record_abort();

  WatchedCommunicator& watched_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WatchedCollective> entries_;
  std::chrono::milliseconds limit_;
  bool is_stopping_ = false;
  /// Says whether the first entry has begun; only the thread uses it.
  bool first_has_begun_ = false;
  bool has_given_up_ = false;
  Clock::time_point waits_since_;
  /// The time of the next check of the members.
  Clock::time_point next_member_check_;
  std::thread thread_;
};

}  // namespace ftrun
