#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/bounded_queue.h"

namespace ftrun {

/// StoreWorker runs the operations of one store connection in its own thread, each with a deadline:
/// c10d's client waits forever for a server that was stopped. While an operation that missed its
/// deadline still waits, later ones wait for it first, up to their own deadlines; once the server
/// continues, so do they. A thread that still waits at the end is abandoned until the process ends.
class StoreWorker {
 public:
  StoreWorker()
      : queue_(std::make_shared<Queue>(64)), overdue_(std::make_shared<OverdueOperations>()) {
    thread_ = std::thread([queue = queue_] {
      while (const auto task = queue->pop()) (*task)();
    });
  }
  ~StoreWorker() {
    queue_->close();
    if (overdue_->wait_until_none(std::chrono::milliseconds(0))) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
  StoreWorker(const StoreWorker&) = delete;
  StoreWorker& operator=(const StoreWorker&) = delete;

  /// Returns whether an operation that missed its deadline still waits, even after another `limit`.
  bool is_stuck(std::chrono::milliseconds limit) { return !overdue_->wait_until_none(limit); }

  /// Returns the result of `operation` or throws its exception; returns nothing if it does not end
  /// within `limit`. It may then run on after the call, or never start, so it must own what it
  /// uses.
  template <typename Operation>
  auto run(Operation operation, std::chrono::milliseconds limit)
      -> std::optional<std::invoke_result_t<Operation>> {
    using Result = std::invoke_result_t<Operation>;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    if (!overdue_->wait_until_none(limit)) return std::nullopt;
    auto task = std::make_shared<std::packaged_task<Result()>>(std::move(operation));
    std::future<Result> result = task->get_future();
    const auto given_up = std::make_shared<bool>(false);
    queue_->push([task, given_up, overdue = overdue_] {
      if (!overdue->is_given_up(*given_up)) (*task)();
      overdue->mark_ended(*given_up);
    });
    result.wait_until(deadline);
    if (overdue_->give_up_unless_ready(*given_up, result)) return std::nullopt;
    return result.get();
  }

 private:
  using Queue = BoundedQueue<std::function<void()>>;

  /// OverdueOperations counts the operations that their callers have abandoned and the thread has
  /// not finished.
  class OverdueOperations {
   public:
    bool wait_until_none(std::chrono::milliseconds limit) {
      std::unique_lock lock(mutex_);
      return ended_.wait_for(lock, limit, [&] { return count_ == 0; });
    }
    bool is_given_up(const bool& given_up) {
      const std::lock_guard lock(mutex_);
      return given_up;
    }
    /// Abandons the operation unless its result has arrived; returns whether it did.
    template <typename Result>
    bool give_up_unless_ready(bool& given_up, const std::future<Result>& result) {
      const std::lock_guard lock(mutex_);
      if (result.wait_for(std::chrono::seconds(0)) == std::future_status::ready) return false;
      ++count_;
      return given_up = true;
    }
    void mark_ended(const bool& given_up) {
      const std::lock_guard lock(mutex_);
      if (!given_up) return;
      --count_;
      ended_.notify_all();
    }

   private:
    std::mutex mutex_;
    std::condition_variable ended_;
    int64_t count_ = 0;
  };

  std::shared_ptr<Queue> queue_;
  std::shared_ptr<OverdueOperations> overdue_;
  std::thread thread_;
};

}  // namespace ftrun
