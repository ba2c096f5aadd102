#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ftrun {

/// Rounds `bytes` up to whole pages, which is what the kernel maps.
int64_t round_up_to_pages(int64_t bytes);

/// TouchedPages counts the pages of a block of memory that count_bytes() ever found in use, as the
/// kernel reports them (mincore). A page that was touched and later swapped out or freed still
/// counts, so this is a high-water mark.
class TouchedPages {
 public:
  TouchedPages() = default;
  /// Tracks a block that begins on a page. The block must stay mapped as long as count_bytes() is
  /// called.
  TouchedPages(const std::byte* data, int64_t bytes);

  /// Returns the bytes of all pages found so far; it checks the parts again that were not full.
  int64_t count_bytes();

 private:
  int64_t count_pages(size_t chunk) const;

  const std::byte* data_ = nullptr;
  int64_t pages_ = 0;
  /// The maximum number of pages found in each part of the block.
  std::vector<int32_t> page_counts_;
};

}  // namespace ftrun
