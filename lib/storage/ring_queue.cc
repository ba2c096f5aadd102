#include "storage/ring_queue.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/error.h"

namespace ftrun {
namespace {

bool is_transient(int error_number) {
  return error_number == EAGAIN || error_number == EBUSY || error_number == EINTR;
}

[[noreturn]] void throw_ring_error(int error_number) {
  throw Error(ExitCode::kEnvironment,
              cat("io_uring failed in the middle of the run: ", errno_text(error_number)),
              "look for the cause in the kernel's log (dmesg)");
}

class RingQueue : public BlockQueue {
 public:
  RingQueue(const io_uring& ring, int fd, bool single_submit)
      : ring_(ring), fd_(fd), single_submit_(single_submit) {
    fixed_file_ = io_uring_register_files(&ring_, &fd_, 1) == 0;
  }
  RingQueue(const RingQueue&) = delete;
  RingQueue& operator=(const RingQueue&) = delete;

  ~RingQueue() override {
    BlockResult result;
    try {
      while (in_flight_ > 0) reap({&result, 1}, 1.0);
    } catch (const Error&) {
      // The ring is broken. Closing it below cancels the remaining operations.
    }
    io_uring_queue_exit(&ring_);
  }

  void submit(std::span<const IoBlock> blocks) override {
    for (const IoBlock& block : blocks) {
      prepare_entry(block);
      if (single_submit_) submit_prepared();
    }
    submit_prepared();
  }

  size_t reap(std::span<BlockResult> results, double seconds) override {
    submit_prepared();
    size_t count = collect_results(results);
    if (count == 0 && in_flight_ > 0 && seconds > 0) {
      wait_for_result(seconds);
      count = collect_results(results);
    }
    return count;
  }


 private:
  void prepare_entry(const IoBlock& block) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    require(entry != nullptr, "no more blocks are in flight than the ring is deep");
    const auto bytes = static_cast<unsigned>(block.bytes);
    const auto offset = static_cast<uint64_t>(block.offset);
    const int file = fixed_file_ ? 0 : fd_;
    if (block.is_write)
      io_uring_prep_write(entry, file, block.data, bytes, offset);
    else
      io_uring_prep_read(entry, file, block.data, bytes, offset);
    if (fixed_file_) entry->flags |= IOSQE_FIXED_FILE;
    entry->user_data = block.slot;
    ++in_flight_;
  }

  /// Submits prepared entries to the kernel. Entries that the kernel cannot take now are submitted
  /// by a later call.
  void submit_prepared() {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int result = io_uring_submit(&ring_);
      if (result < 0 && !is_transient(-result)) throw_ring_error(-result);
      if (result <= 0 && result != -EINTR) return;
    }
  }

  void wait_for_result(double seconds) {
    const double whole_seconds = std::floor(std::min(seconds, 1e9));
    __kernel_timespec limit{};
    limit.tv_sec = static_cast<int64_t>(whole_seconds);
    limit.tv_nsec = static_cast<int64_t>((std::min(seconds, 1e9) - whole_seconds) * 1e9);
    io_uring_cqe* entry = nullptr;
    const int result = io_uring_submit_and_wait_timeout(&ring_, &entry, 1, &limit, nullptr);
    if (result < 0 && result != -ETIME && !is_transient(-result)) throw_ring_error(-result);
  }

  size_t collect_results(std::span<BlockResult> results) {
    size_t count = 0;
    io_uring_cqe* entry = nullptr;
    while (count < results.size() && io_uring_peek_cqe(&ring_, &entry) == 0) {
      results[count++] = {static_cast<uint32_t>(entry->user_data), entry->res};
      io_uring_cqe_seen(&ring_, entry);
      --in_flight_;
    }
    return count;
  }

  io_uring ring_;
  int fd_;
  bool single_submit_;
  bool fixed_file_ = false;
  int in_flight_ = 0;
};

}  // namespace

QueueOrErrno open_ring_queue(int fd, int depth, bool single_submit) {
  io_uring ring{};
  io_uring_params params{};
  const int result = io_uring_queue_init_params(static_cast<unsigned>(depth), &ring, &params);
  if (result < 0) return {nullptr, -result};
  if ((params.features & IORING_FEAT_EXT_ARG) == 0) {
    io_uring_queue_exit(&ring);
    return {nullptr, ENOSYS};
  }
  return {std::make_unique<RingQueue>(ring, fd, single_submit), 0};
}

}  // namespace ftrun
