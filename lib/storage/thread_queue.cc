#include "storage/thread_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/error.h"
#include "base/start_threads.h"

namespace ftrun {
namespace {

int64_t transfer_block(int fd, const IoBlock& block) {
  const auto bytes = static_cast<size_t>(block.bytes);
  const ssize_t moved = block.is_write ? ::pwrite(fd, block.data, bytes, block.offset)
                                       : ::pread(fd, block.data, bytes, block.offset);
  return moved < 0 ? -errno : moved;
}

}  // namespace

int ThreadQueue::threads_for(int depth) {
  return std::clamp(depth, 1, 32);
}

ThreadQueue::ThreadQueue(int fd, int depth) : fd_(fd), pending_(static_cast<size_t>(depth)) {
  results_.reserve(static_cast<size_t>(depth));
  threads_ = start_threads(
      static_cast<size_t>(threads_for(depth)), [this](size_t) { process_blocks(); },
      [this] { stop(); });
}

ThreadQueue::~ThreadQueue() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
}

void ThreadQueue::submit(std::span<const IoBlock> blocks) {
  {
    const std::lock_guard lock(mutex_);
    require(pending_count_ + blocks.size() <= pending_.size(),
            "no more blocks are in flight than the queue is deep");
    for (const IoBlock& block : blocks)
      pending_[(first_pending_ + pending_count_++) % pending_.size()] = block;
  }
  blocks.size() == 1 ? work_ready_.notify_one() : work_ready_.notify_all();
}

size_t ThreadQueue::reap(std::span<BlockResult> results, double seconds) {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> limit(std::min(seconds, 1e6));
  block_done_.wait_for(lock, limit, [this] { return !results_.empty(); });
  const size_t count = std::min(results.size(), results_.size());
  std::copy_n(results_.end() - static_cast<ptrdiff_t>(count), count, results.begin());
  results_.resize(results_.size() - count);
  return count;
}

void ThreadQueue::process_blocks() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_ready_.wait(lock, [this] { return stopping_ || pending_count_ > 0; });
    if (stopping_) return;
    const IoBlock block = pending_[first_pending_];
    first_pending_ = (first_pending_ + 1) % pending_.size();
    --pending_count_;
    lock.unlock();
    const BlockResult result{block.slot, transfer_block(fd_, block)};
    lock.lock();
    results_.push_back(result);
    block_done_.notify_one();
  }
}

}  // namespace ftrun
