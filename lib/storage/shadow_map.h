#pragma once

#include <cstdint>
#include <vector>

namespace ftrun {

/// ShadowMap keeps two locations on disk for the same bytes, and reads one while the other is
/// written: the data of a checkpoint in progress stays unchanged without a copy (shadow paging;
/// Lorie 1977). It works by sectors of 4096 bytes; ranges are whole sectors.
///
/// Threads: snapshot_offset() may be called from any thread between begin_snapshot() and
/// end_snapshot(). All other functions may be called from one thread at a time.
class ShadowMap {
 public:
  /// Maps `bytes` bytes with two locations in the file: at offset `home` and at offset `shadow`.
  /// `shadow` -1 means that there is no second location.
  ShadowMap(int64_t bytes, int64_t home, int64_t shadow);
  ShadowMap() = default;

  /// Starts a snapshot: the current bytes stay unchanged, and later writes use the other location.
  void begin_snapshot();
  /// Ends the snapshot: later writes overwrite the newest bytes in place.
  void end_snapshot();

  /// Returns the file offset of the newest bytes of [offset, offset + bytes). Bytes that are read
  /// together must have been written together, or never; anything else is a bug.
  int64_t read_offset(int64_t offset, int64_t bytes) const;
  /// Returns the file offset to which the bytes must be written. It becomes the offset of the
  /// newest bytes.
  int64_t write_offset(int64_t offset, int64_t bytes);
  /// Returns the file offset of the bytes that were the newest when begin_snapshot() was called.
  int64_t snapshot_offset(int64_t offset, int64_t bytes) const;

 private:
  /// SectorFlags holds, for each sector, which location has its newest bytes, and whether it was
  /// ever written.
  struct SectorFlags {
    std::vector<bool> in_shadow;
    std::vector<bool> written;
  };
  bool is_in_shadow(const SectorFlags& sectors, int64_t offset, int64_t bytes) const;
  int64_t file_offset(bool in_shadow, int64_t offset) const {
    return (in_shadow ? shadow_ : home_) + offset;
  }

  int64_t home_ = 0;
  int64_t shadow_ = -1;
  bool has_snapshot_ = false;
  SectorFlags current_;
  SectorFlags snapshot_;
};

}  // namespace ftrun
