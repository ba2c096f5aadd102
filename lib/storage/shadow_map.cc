#include "storage/shadow_map.h"

#include "base/error.h"
#include "storage/aio_options.h"

namespace ftrun {
namespace {

size_t first_sector(int64_t offset) {
  return static_cast<size_t>(offset / kSwapAlignment);
}
size_t end_sector(int64_t offset, int64_t bytes) {
  return static_cast<size_t>(round_up_to_sector(offset + bytes) / kSwapAlignment);
}

}  // namespace

ShadowMap::ShadowMap(int64_t bytes, int64_t home, int64_t shadow) : home_(home), shadow_(shadow) {
  if (shadow < 0) return;
  current_.in_shadow.resize(end_sector(0, bytes));
  current_.written.resize(end_sector(0, bytes));
}

void ShadowMap::begin_snapshot() {
  require(!has_snapshot_, "one checkpoint at a time is written from the disk tier");
  snapshot_ = current_;
  has_snapshot_ = true;
}

void ShadowMap::end_snapshot() {
  has_snapshot_ = false;
}

/// Returns whether the newest bytes lie in the shadow. Sectors that were never written may be read
/// from either location: both contain zeros.
bool ShadowMap::is_in_shadow(const SectorFlags& sectors, int64_t offset, int64_t bytes) const {
  if (shadow_ < 0 || bytes == 0) return false;
  const bool first = sectors.in_shadow[first_sector(offset)];
  for (size_t s = first_sector(offset); s < end_sector(offset, bytes); ++s)
    require(sectors.in_shadow[s] == first || !sectors.written[s],
            "all sectors of one request have their newest bytes in the same copy");
  return first;
}

int64_t ShadowMap::read_offset(int64_t offset, int64_t bytes) const {
  return file_offset(is_in_shadow(current_, offset, bytes), offset);
}

int64_t ShadowMap::snapshot_offset(int64_t offset, int64_t bytes) const {
  require(has_snapshot_,
          "snapshot_offset() is called only between begin_snapshot() and end_snapshot()");
  return file_offset(is_in_shadow(snapshot_, offset, bytes), offset);
}

int64_t ShadowMap::write_offset(int64_t offset, int64_t bytes) {
  if (shadow_ < 0 || bytes == 0) return file_offset(false, offset);
  const bool to_shadow = has_snapshot_ ? !is_in_shadow(snapshot_, offset, bytes)
                                       : is_in_shadow(current_, offset, bytes);
  for (size_t s = first_sector(offset); s < end_sector(offset, bytes); ++s) {
    current_.in_shadow[s] = to_shadow;
    current_.written[s] = true;
  }
  return file_offset(to_shadow, offset);
}

}  // namespace ftrun
