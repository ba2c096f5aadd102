#include "base/background_thread.h"

#include <utility>

namespace ftrun {

BackgroundThread::BackgroundThread() : thread_([this] { run_queued_work(); }) {}

BackgroundThread::~BackgroundThread() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void BackgroundThread::enqueue(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  ++enqueued_;
  changed_.notify_all();
}

void BackgroundThread::wait(int64_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || completed_ >= count; });
  if (failure_) std::rethrow_exception(failure_);
}

void BackgroundThread::run_queued_work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (!failure_ && !queue_.empty()); });
    if (stopping_) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    ++completed_;
    changed_.notify_all();
  }
}

}  // namespace ftrun
