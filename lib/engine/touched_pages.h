#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ftrun {

/// Rounds `bytes` up to whole pages: what the kernel maps for them.
int64_t whole_pages(int64_t bytes);

/// TouchedPages counts the pages of a block of memory that were ever seen in use, by the kernel's
/// report (mincore). A page that was touched and then swapped out or given back still counts, so
/// this is a high-water mark of what count_bytes() saw.
class TouchedPages {
 public:
  TouchedPages() = default;
  /// Watches a block that begins on a page. It must stay mapped for as long as count_bytes() is
  /// called.
  TouchedPages(const std::byte* data, int64_t bytes);

  /// Returns the bytes of all pages found so far; looks again at the parts that were not full.
  int64_t count_bytes();

 private:
  int64_t count(size_t chunk) const;

  const std::byte* data_ = nullptr;
  int64_t pages_ = 0;
  /// The most pages found in each part of the block.
  std::vector<int32_t> found_;
};

}  // namespace ftrun
