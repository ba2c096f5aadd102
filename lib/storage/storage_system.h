#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "storage/block_queue.h"
#include "storage/ring_queue.h"

namespace ftrun {

/// StorageSystem is the interface through which swap files use the machine. Tests replace it to
/// refuse, fail and delay calls. Functions that return an int return a negative errno if they fail.
class StorageSystem {
 public:
  virtual ~StorageSystem() = default;
  /// Makes a folder and its parents. Returns 1 when it was made, 0 when it existed.
  virtual int make_folder(const std::string& path) = 0;
  /// Opens a new, empty file for reading and writing, accessible to this user only, and returns the
  /// descriptor. Fails with EEXIST if the name exists, even as a link.
  virtual int open_new(const std::string& path) = 0;
  virtual int remove(const std::string& path) = 0;
  /// Reserves `bytes` on disk, so that a full disk is found before any data is written. If the file
  /// system cannot reserve space, the file only gets that length, and the call succeeds.
  virtual int reserve(int fd, int64_t bytes) = 0;
  /// Turns direct I/O (O_DIRECT) on, and tests it by writing one sector at offset 0.
  virtual int use_direct(int fd) = 0;
  /// Turns direct I/O off: reads and writes go through the page cache.
  virtual int use_page_cache(int fd) = 0;
  virtual int64_t free_bytes(const std::string& folder) = 0;
  /// Returns whether the folder lies in memory (tmpfs, ramfs).
  virtual bool is_in_memory(const std::string& folder) = 0;
  virtual QueueOrErrno open_ring_queue(int fd, int depth, bool single_submit) = 0;
  virtual std::unique_ptr<BlockQueue> open_thread_queue(int fd, int depth) = 0;
  /// Returns the seconds since some fixed moment.
  virtual double now_seconds() = 0;
  virtual void sleep(double seconds) = 0;
};

/// Returns the storage system of this machine.
StorageSystem& machine_storage();

}  // namespace ftrun
