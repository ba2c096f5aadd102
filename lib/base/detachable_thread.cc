#include "base/detachable_thread.h"

#include <utility>

namespace ftrun {

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
  if (end_.wait_for(patience_) == std::future_status::ready) {
    thread_.join();
    return true;
  }
  thread_.detach();
  return false;
}

}  // namespace ftrun
