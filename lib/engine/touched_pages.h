#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ftrun {

/// `bytes` in whole pages: what the kernel maps for them.
int64_t whole_pages(int64_t bytes);

/// The pages of a block of memory that were ever seen in use, as the kernel says (mincore). A page
/// that was touched and then swapped out or given back still counts, so this is a high-water mark
/// of what look() saw.
class TouchedPages {
 public:
  TouchedPages() = default;
  /// A block that begins on a page. It must stay mapped for as long as look() is called.
  TouchedPages(const std::byte* data, int64_t bytes);

  /// Bytes of all pages found so far; looks again at those parts that were not full.
  int64_t look();

 private:
  int64_t count(size_t chunk) const;

  const std::byte* data_ = nullptr;
  int64_t pages_ = 0;
  /// The most pages found in each part of the block.
  std::vector<int32_t> found_;
};

}  // namespace ftrun
