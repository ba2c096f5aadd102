#include "storage/thread_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/error.h"

namespace ftrun {
namespace {

int64_t transfer(int fd, const IoBlock& block) {
  const auto bytes = static_cast<size_t>(block.bytes);
  const ssize_t moved = block.write ? ::pwrite(fd, block.data, bytes, block.offset)
                                    : ::pread(fd, block.data, bytes, block.offset);
  return moved < 0 ? -errno : moved;
}

}  // namespace

int ThreadQueue::threads_for(int depth) {
  return std::clamp(depth, 1, 32);
}

ThreadQueue::ThreadQueue(int fd, int depth) : fd_(fd), todo_(static_cast<size_t>(depth)) {
  done_.reserve(static_cast<size_t>(depth));
  for (int i = 0; i < threads_for(depth); ++i) threads_.emplace_back([this] { serve(); });
}

ThreadQueue::~ThreadQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadQueue::submit(std::span<const IoBlock> blocks) {
  {
    const std::lock_guard lock(mutex_);
    require(count_ + blocks.size() <= todo_.size(),
            "no more blocks are in flight than the queue is deep");
    for (const IoBlock& block : blocks) todo_[(first_ + count_++) % todo_.size()] = block;
  }
  blocks.size() == 1 ? work_.notify_one() : work_.notify_all();
}

size_t ThreadQueue::reap(std::span<BlockResult> results, double seconds) {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> limit(std::min(seconds, 1e6));
  finished_.wait_for(lock, limit, [this] { return !done_.empty(); });
  const size_t count = std::min(results.size(), done_.size());
  std::copy_n(done_.end() - static_cast<ptrdiff_t>(count), count, results.begin());
  done_.resize(done_.size() - count);
  return count;
}

void ThreadQueue::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || count_ > 0; });
    if (stopping_) return;
    const IoBlock block = todo_[first_];
    first_ = (first_ + 1) % todo_.size();
    --count_;
    lock.unlock();
    const BlockResult result{block.slot, transfer(fd_, block)};
    lock.lock();
    done_.push_back(result);
    finished_.notify_one();
  }
}

}  // namespace ftrun
