#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "storage/block_queue.h"

namespace ftrun {

/// ThreadQueue is a queue whose threads call pread and pwrite, for kernels that refuse io_uring.
/// Each block is one system call, so results are like those of io_uring.
class ThreadQueue : public BlockQueue {
 public:
  /// Starts the threads. Throws Error(kEnvironment) if the system does not start all of them.
  ThreadQueue(int fd, int depth);
  ~ThreadQueue() override;
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  void submit(std::span<const IoBlock> blocks) override;
  size_t reap(std::span<BlockResult> results, double seconds) override;

  /// Returns the number of threads for a depth: one for each block in flight, up to a limit.
  static int threads_for(int depth);

 private:
  void stop();
  void process_blocks();

  const int fd_;
  std::mutex mutex_;
  std::condition_variable work_ready_, block_done_;
  std::vector<IoBlock> pending_;  // a ring buffer of `depth` entries
  size_t first_pending_ = 0, pending_count_ = 0;
  std::vector<BlockResult> results_;  // never grows beyond its initial capacity
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ftrun
