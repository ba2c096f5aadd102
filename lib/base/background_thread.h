#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace ftrun {

/// BackgroundThread is a thread that runs pieces of work one after another, in the order in which
/// they were queued, while its owner prepares others. The destructor waits for the piece that is
/// running and drops the rest. A BackgroundThread has one owner.
class BackgroundThread {
 public:
  BackgroundThread();
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  /// Queues a piece of work, whose data must stay valid until it is done. After one piece has
  /// failed, no other is run.
  void enqueue(std::function<void()> work);
  /// Waits until the first `count` pieces of work are done, counted from the beginning; rethrows
  /// the exception of a piece that failed.
  void wait(int64_t count);
  /// Waits until all pieces are done.
  void wait() { wait(enqueued_); }

 private:
  void run_queued_work();

  int64_t enqueued_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  int64_t completed_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::jthread thread_;  // last: it uses the members above
};

}  // namespace ftrun
