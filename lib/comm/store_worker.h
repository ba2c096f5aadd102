#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/bounded_queue.h"

namespace ftrun {

/// Runs operations of one store connection in a thread of its own, each with a deadline: c10d's
/// client waits without end for a server that was stopped. After one that did not return, none is
/// tried any more, and the thread is left to the end of the process.
class StoreWorker {
 public:
  StoreWorker() : queue_(std::make_shared<Queue>(64)) {
    thread_ = std::thread([queue = queue_] {
      while (const auto task = queue->pop()) (*task)();
    });
  }
  ~StoreWorker() {
    queue_->close();
    if (stuck_) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }
  StoreWorker(const StoreWorker&) = delete;
  StoreWorker& operator=(const StoreWorker&) = delete;

  /// What `operation` returns, or what it throws; nothing when it does not end within `limit`. It
  /// may outlive the call then: it must own what it uses.
  template <typename Operation>
  auto run(Operation operation, std::chrono::milliseconds limit)
      -> std::optional<std::invoke_result_t<Operation>> {
    using Result = std::invoke_result_t<Operation>;
    if (stuck_) return std::nullopt;
    auto task = std::make_shared<std::packaged_task<Result()>>(std::move(operation));
    std::future<Result> result = task->get_future();
    queue_->push([task] { (*task)(); });
    if (result.wait_for(limit) != std::future_status::ready) {
      stuck_ = true;
      return std::nullopt;
    }
    return result.get();
  }

 private:
  using Queue = BoundedQueue<std::function<void()>>;
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
  std::atomic<bool> stuck_ = false;
};

}  // namespace ftrun
