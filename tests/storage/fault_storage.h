#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "storage/storage_system.h"
#include "storage/swap_file.h"

namespace ftrun::testing {

/// FaultStorage is the machine's storage with faults. A member that is 0 or unset leaves its call
/// to the machine; a negative errno makes the call fail.
class FaultStorage : public StorageSystem {
 public:
  int folder_status = 0, open_status = 0, remove_status = 0, reserve_status = 0, direct_status = 0,
      page_cache_status = 0;
  /// The errno with which the simulated kernel refuses io_uring; 0: it does not.
  int ring_errno = 0;
  /// The bytes that free_bytes() returns; if negative, the machine's free bytes.
  int64_t reported_free_bytes = -1;
  bool claims_memory = false;
  /// Called for each block. A result of 0 performs the block; a negative errno makes it fail; a
  /// positive number reports as many moved bytes, and moves only their whole sectors; kNothing
  /// reports 0 bytes.
  static constexpr int64_t kNothing = INT64_MIN;
  std::function<int64_t(const IoBlock&)> fault;
  /// Seconds for which the disk does not respond.
  double stall_seconds = 0;
  /// The simulated time, which only stalls and sleeps advance.
  double clock_seconds = 1000;

  std::vector<std::string> calls;  // the disk's blocks, as "write 4096@0"
  std::vector<size_t> batches;     // number of blocks per submit
  int removed = 0, sleeps = 0;

  int make_folder(const std::string& path) override;
  int open_new(const std::string& path) override;
  int remove(const std::string& path) override;
  int reserve(int fd, int64_t bytes) override;
  int use_direct(int fd) override;
  int use_page_cache(int fd) override;
  int64_t free_bytes(const std::string& folder) override;
  bool is_in_memory(const std::string&) override { return claims_memory; }
  QueueOrErrno open_ring_queue(int fd, int depth, bool single_submit) override;
  std::unique_ptr<BlockQueue> open_thread_queue(int fd, int depth) override;
  double now_seconds() override { return clock_seconds; }
  void sleep(double seconds) override;
};

/// AlignedBytes is memory that begins at a multiple of 4096, followed by a sector that must not
/// change.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t bytes);
  ~AlignedBytes();
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  char* data() { return data_; }
  int64_t size() const { return bytes_; }
  void fill(uint64_t seed);
  bool equals(const AlignedBytes& other) const;
  /// Returns whether the memory after the bytes is unchanged.
  bool end_is_unchanged() const;

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Returns the lines logged during `body`, each as "level message" with the level as one letter.
std::vector<std::string> capture_log_lines(const std::function<void()>& body);
/// Returns "kernel refuses io_uring: ..." if this machine has none, else "".
std::string ring_refusal();

}  // namespace ftrun::testing
