#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "storage/aio_options.h"
#include "storage/block_queue.h"
#include "storage/storage_system.h"

namespace ftrun {

struct SwapOptions {
  /// The folder `nvme_path`, which is made if it is missing.
  std::string folder;
  /// A name that is unique among the runs and ranks that share the folder ("run7-rank3").
  std::string name;
  /// The number of bytes reserved on disk when the file is opened.
  int64_t bytes = 0;
  AioOptions aio;
  /// The seconds after which a slow wait is reported, once, with the transfer rate.
  double slow_seconds = 30;
};

/// SwapCounters counts the operations of a swap file since it was opened.
struct SwapCounters {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  /// The number of requests, and the number of requests that were started while an earlier one was
  /// not waited for yet.
  int64_t requests = 0;
  int64_t overlapped_requests = 0;
  /// Seconds spent inside wait().
  double wait_seconds = 0;
};

/// SwapFile is a file on a local disk that holds a part of one rank's state during a run, read and
/// written with direct I/O through io_uring (or, with a notice, through the page cache and
/// threads). The file has no name, so nothing is left behind however the process ends. Requests
/// are fastest in memory on huge pages, where a block is contiguous.
///
/// Threads: only one thread at a time (the disk lane) may use it. Requests advance only within
/// read(), write() and wait(); between these calls the disk works on at most
/// `aio.blocks_in_flight()` blocks.
///
/// Order: requests run at the same time and in any order. Wait for a write before its range is read
/// or written again, and before its memory is changed.
class SwapFile {
 public:
  /// Ticket identifies a request that was started; wait() must be called once for each.
  struct Ticket {
    uint32_t index = 0;
    uint32_t generation = 0;
  };

  /// Opens the file. Error(kUsage) for options out of range; Error(kEnvironment) when the folder
  /// cannot be made or written to, or (with bytes wanted, bytes free and remedies) when the disk is
  /// too full.
  explicit SwapFile(const SwapOptions& options, StorageSystem& system = machine_storage());
  /// Waits for the blocks that were passed to the queue, because they use the caller's memory.
  /// Drops the blocks of requests that still wait for a place in the queue, and with threads (no
  /// io_uring) those that no thread has begun.
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  /// Starts to move `bytes` (any number; 0 is done at once) between memory at `data` and the file
  /// at `offset`. `data` and `offset` are multiples of 4096. A write fills the rest of its last
  /// sector with zeros, so the range, rounded up to 4096 bytes, must hold no other data. A read
  /// touches exactly `bytes` bytes of memory; bytes never written read as zeros.
  Ticket read(void* data, int64_t bytes, int64_t offset);
  Ticket write(const void* data, int64_t bytes, int64_t offset);

  /// Blocks until the request is done. If the disk failed, throws Error(kEnvironment) with file,
  /// bytes, offset and reason; all other blocks of the request have then ended as well.
  void wait(Ticket ticket);

  /// Reads synchronously while requests may be in flight. Any thread may call it. No write of the
  /// range may be in progress. `data`, `bytes` and `offset` are multiples of 4096.
  /// Error(kEnvironment).
  void read_synchronously(void* data, int64_t bytes, int64_t offset) const;

  const SwapCounters& counters() const { return counters_; }
  /// Returns the reserved bytes: whole sectors.
  int64_t bytes() const { return bytes_; }
  /// Returns the bytes of disk that the file system has reserved for the file, its metadata
  /// included.
  int64_t reserved_on_disk() const;
  /// Returns the path that the file had before its name was removed, for messages.
  const std::string& path() const { return path_; }
  /// Returns whether I/O is direct; false when the file system refused it.
  bool is_direct() const { return is_direct_; }
  /// Returns whether io_uring is used; false when the kernel refused it.
  bool uses_ring() const { return uses_ring_; }

 private:
  struct SwapRequest {
    char* data = nullptr;
    int64_t bytes = 0;
    int64_t offset = 0;
    bool is_write = false;
    bool is_open = false;  // started and not yet waited for
    int64_t issued = 0;    // bytes in flight or done
    int in_flight = 0;     // blocks
    uint32_t generation = 0;
    uint32_t next = 0;       // the next request with bytes to issue
    bool disk_full = false;  // it failed because the disk was full
    std::string failure;     // "" if there was no failure

    bool is_finished() const { return issued == bytes && in_flight == 0; }
  };
  struct BlockInFlight {
    IoBlock block;
    int64_t payload = 0;  // bytes of the request in this block; less than block.bytes at the end
    uint32_t request = 0;
    int tries = 0;  // tries without progress
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  Ticket start_request(char* data, int64_t bytes, int64_t offset, bool is_write);
  uint32_t acquire_request();
  SwapRequest& request_of(Ticket ticket);
  void issue_blocks();
  IoBlock next_block(SwapRequest& request, uint32_t index);
  char* bounce_sector(uint32_t slot) const {
    return bounce_.get() + int64_t{slot} * kSwapAlignment;
  }
  void collect_and_issue(double seconds);
  void handle_result(const BlockResult& result);
  void continue_block(BlockInFlight& in_flight, int64_t moved);
  void retry_block(BlockInFlight& in_flight, int error_number);
  void finish_block(BlockInFlight& in_flight);
  void fail_block(BlockInFlight& in_flight, const std::string& reason, bool disk_full);
  void block_until_finished(const SwapRequest& request);
  void release_request(SwapRequest& request, uint32_t index);
  void report_slow(double waited, int64_t moved);

  struct FreeAligned {
    void operator()(char* memory) const;
  };

  StorageSystem& system_;
  const AioOptions aio_;
  const double slow_seconds_;
  std::string folder_, path_;
  int64_t bytes_ = 0;
  bool is_direct_ = false, uses_ring_ = false, reported_slow_ = false;
  SwapCounters counters_;
  std::vector<SwapRequest> requests_;
  std::vector<uint32_t> free_requests_;
  uint32_t first_waiting_ = kNone, last_waiting_ = kNone;  // requests with bytes to issue
  std::vector<BlockInFlight> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<IoBlock> batch_;
  std::vector<BlockResult> results_;
  // The bounce sectors and the file are declared before the queue, so that they are destroyed after
  // it: until then the kernel may use them.
  std::unique_ptr<char, FreeAligned> bounce_;
  OwnedFd fd_;
  std::unique_ptr<BlockQueue> queue_;
};

}  // namespace ftrun
