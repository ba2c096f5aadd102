#include "base/detachable_thread.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace ftrun {
namespace {

/// The milliseconds in which threads of this process were waited for that were then left behind.
std::atomic<int64_t> waited_in_vain{0};

}  // namespace

DetachableThread::DetachableThread(std::function<void()> work, std::chrono::milliseconds patience)
    : patience_(patience) {
  std::packaged_task<void()> task(std::move(work));
  end_ = task.get_future();
  thread_ = std::thread(std::move(task));
}

void DetachableThread::join() {
  if (thread_.joinable()) thread_.join();
}

bool DetachableThread::end() {
  if (!thread_.joinable()) return true;
  const std::chrono::milliseconds left = std::max(
      patience_ - std::chrono::milliseconds(waited_in_vain.load()), std::chrono::milliseconds(0));
  if (end_.wait_for(left) == std::future_status::ready) {
    thread_.join();
    return true;
  }
  waited_in_vain += left.count();
  thread_.detach();
  return false;
}

}  // namespace ftrun
