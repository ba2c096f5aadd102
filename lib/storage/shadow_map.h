#pragma once

#include <cstdint>
#include <vector>

namespace ftrun {

/// Two places on disk for the same bytes, of which one is read from while the other is written to:
/// what a checkpoint is written from stays as it was, without a copy (shadow paging; Lorie 1977).
/// Kept for each sector of 4096 bytes; ranges are whole sectors.
///
/// Threads: saved_place() may be called from any thread between begin() and end(); the rest from
/// one at a time.
class ShadowMap {
 public:
  /// Maps `bytes` bytes that lie at `home`, or, when that place is kept, at `shadow`; -1: there is
  /// none.
  ShadowMap(int64_t bytes, int64_t home, int64_t shadow);
  ShadowMap() = default;

  /// Keeps what is there from now on: writes go to the other place.
  void begin();
  /// Nobody needs it any more: writes go to where the newest bytes lie.
  void end();
  bool keeps() const { return keeps_; }

  /// Returns where the newest bytes of [offset, offset + bytes) lie. Bytes that are read at once
  /// must have been written at once, or never: a bug otherwise.
  int64_t read_place(int64_t offset, int64_t bytes) const;
  /// Returns where bytes are to be written; the newest then lie there.
  int64_t write_place(int64_t offset, int64_t bytes);
  /// Returns where the bytes lie that were the newest when begin() was called.
  int64_t saved_place(int64_t offset, int64_t bytes) const;

 private:
  /// Sectors says of each sector which place has its newest bytes, and whether there ever were any.
  struct Sectors {
    std::vector<bool> in_shadow;
    std::vector<bool> written;
  };
  bool is_in_shadow(const Sectors& sectors, int64_t offset, int64_t bytes) const;
  int64_t place(bool in_shadow, int64_t offset) const {
    return (in_shadow ? shadow_ : home_) + offset;
  }

  int64_t home_ = 0;
  int64_t shadow_ = -1;
  bool keeps_ = false;
  Sectors now_;
  Sectors saved_;
};

}  // namespace ftrun
