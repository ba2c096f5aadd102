#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "base/rank_error.h"
#include "cluster/collective.h"
#include "comm/collective_failure.h"

namespace ftrun {

/// Collectives that a device runs by itself, as the watch sees them. Called from its thread.
class WatchedCollectives {
 public:
  virtual ~WatchedCollectives() = default;
  // has_begun() says whether all that stood before the collective in its stream is over: from then
  // on only the peers can hold it up. It and the next one throw RankError where this rank's device
  // fails, and any other exception where the transport does.
  virtual bool has_begun(int64_t handle) = 0;
  virtual bool has_ended(int64_t handle) = 0;
  /// Releases the handle of a collective that has ended: nothing asks for it any more.
  virtual void release(int64_t handle) = 0;
  /// The device stands in it; and it is over.
  virtual void begun(const CollectiveRecord& record) = 0;
  virtual void ended() = 0;
  /// A member is known to have given up, or its process to have ended. May take a moment.
  virtual bool peer_lost() = 0;
  // Reports the end of the rank's wait by a failure: lost() or device_failed() is called, once at
  // most.
  virtual void lost(const CollectiveRecord& record, const CollectiveFailure& failure) = 0;
  /// This rank's own device has failed: no peer is to blame.
  virtual void device_failed(const CollectiveRecord& record, const RankError& error) = 0;
};

/// The host of a device puts collectives into a stream and goes on, so its own calls say nothing of
/// where the device is. This follows marks in the stream from a thread: it says which collective
/// the device is in, for the progress board, and which one has begun and not ended within the
/// limit, so that whoever waits for the device learns which peer is missing.
class CollectiveWatch {
 public:
  /// `watched` is borrowed.
  CollectiveWatch(WatchedCollectives& watched, std::chrono::milliseconds limit);
  ~CollectiveWatch() { stop(); }
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  /// Around what puts a collective into the stream, in the order of the stream: NCCL may hold up
  /// the host there. `handle` is the back end's.
  void announce(const CollectiveRecord& record, int64_t handle);
  void issued();
  /// Instead of issued(): it did not get into the stream.
  void withdraw();
  void set_limit(std::chrono::milliseconds limit);
  /// Ends the thread; what is under way is followed no longer. Before the back end's part goes.
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
  /// Says whether there is nothing to do before the next look.
  bool look(const WatchedCollective& entry);
  void give_up(const WatchedCollective& entry, const CollectiveFailure& failure);
  void note_given_up();

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
  /// The next look at the members.
  Clock::time_point members_at_;
  std::thread thread_;
};

}  // namespace ftrun
