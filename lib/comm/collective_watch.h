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

/// WatchedCollectives are collectives that a device runs by itself, as the watch sees them. Called
/// from the watch's thread.
class WatchedCollectives {
 public:
  virtual ~WatchedCollectives() = default;
  /// Returns whether all work before the collective in its stream is over: from then on only the
  /// peers can hold it up. It and has_ended() throw RankError where this rank's device fails, and
  /// any other exception where the transport does.
  virtual bool has_begun(int64_t handle) = 0;
  virtual bool has_ended(int64_t handle) = 0;
  /// Releases the handle of a collective that has ended: it is not used any more.
  virtual void release(int64_t handle) = 0;
  /// Records that the device has begun the collective; on_end() notes that it is over.
  virtual void on_begin(const CollectiveRecord& record) = 0;
  virtual void on_end() = 0;
  /// Returns whether a member is known to have given up, or its process to have ended. May take a
  /// moment.
  virtual bool peer_lost() = 0;
  /// Reports that the rank's wait ends by a failure: this or on_device_failed() is called, at most
  /// once.
  virtual void on_peer_lost(const CollectiveRecord& record, const CollectiveFailure& failure) = 0;
  /// Reports that this rank's own device has failed: no peer is the cause.
  virtual void on_device_failed(const CollectiveRecord& record, const RankError& error) = 0;
};

/// CollectiveWatch follows the collectives of a device. The host enqueues them in a stream and
/// continues, so the host's calls do not show where the device is. A thread follows marks in the
/// stream: it says which collective the device is in, for the progress board, and which one has
/// begun and not ended within the limit, so that whoever waits for the device learns which peer
/// is missing.
class CollectiveWatch {
 public:
  /// Borrows `watched`.
  CollectiveWatch(WatchedCollectives& watched, std::chrono::milliseconds limit);
  ~CollectiveWatch() { stop(); }
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  /// Announces a collective before it is put into the stream, in the order of the stream, as NCCL
  /// may hold up the host there; issued() follows. `handle` is the back end's.
  void announce(const CollectiveRecord& record, int64_t handle);
  void issued();
  /// Replaces issued() for a collective that did not get into the stream.
  void withdraw();
  void set_limit(std::chrono::milliseconds limit);
  /// Ends the thread; collectives in progress are followed no longer. Call it before the back end's
  /// part is destroyed.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct WatchedCollective {
    CollectiveRecord record;
    int64_t handle;
    Clock::time_point announced;
    bool issued = false;
  };

  void serve();
  bool has_issued() const { return !entries_.empty() && entries_.front().issued; }
  bool is_late(Clock::duration waited);
  bool is_time_for_members();
  /// Returns whether there is nothing to do before the next look.
  bool poll(const WatchedCollective& entry);
  void give_up(const WatchedCollective& entry, const CollectiveFailure& failure);
  void record_abort();

  WatchedCollectives& watched_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WatchedCollective> entries_;
  std::chrono::milliseconds limit_;
  bool stopping_ = false;
  /// The first entry has begun; only the thread uses it.
  bool begun_ = false;
  bool gave_up_ = false;
  Clock::time_point since_;
  /// The time of the next look at the members.
  Clock::time_point members_at_;
  std::thread thread_;
};

}  // namespace ftrun
