#include "base/detachable_thread.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace ftrun {
namespace {

/// The milliseconds in which threads of this process were waited for that were then left behind.
std::atomic<int64_t> abandoned_wait_ms{0};

}  // namespace

DetachableThread::DetachableThread(std::function<void()> work,
                                   std::chrono::milliseconds stop_timeout)
    : stop_timeout_(stop_timeout) {
  std::packaged_task<void()> task(std::move(work));
  finished_ = task.get_future();
  thread_ = std::thread(std::move(task));
}

void DetachableThread::join() {
  if (thread_.joinable()) thread_.join();
}

bool DetachableThread::join_or_detach() {
  if (!thread_.joinable()) return true;
  const std::chrono::milliseconds remaining =
      std::max(stop_timeout_ - std::chrono::milliseconds(abandoned_wait_ms.load()),
               std::chrono::milliseconds(0));
  if (finished_.wait_for(remaining) == std::future_status::ready) {
    thread_.join();
    return true;
  }
  abandoned_wait_ms += remaining.count();
  thread_.detach();
  return false;
}

}  // namespace ftrun
