#include "engine/touched_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/round_up.h"

namespace ftrun {
namespace {

/// The number of pages that one call checks. They make up a huge page (2 MiB with 4-KiB pages), so
/// that a chunk usually becomes full at once.
constexpr int64_t kChunkPages = 512;

int64_t page_bytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace

int64_t round_up_to_pages(int64_t bytes) {
  return round_up(bytes, page_bytes());
}

TouchedPages::TouchedPages(const std::byte* data, int64_t bytes)
    : data_(data),
      pages_(round_up_to_pages(bytes) / page_bytes()),
      page_counts_(static_cast<size_t>(divide_up(pages_, kChunkPages))) {}

int64_t TouchedPages::count_pages(size_t chunk) const {
  std::array<unsigned char, kChunkPages> present{};
  const int64_t first = static_cast<int64_t>(chunk) * kChunkPages;
  const int64_t pages = std::min(kChunkPages, pages_ - first);
  void* const from = const_cast<std::byte*>(data_ + first * page_bytes());
  if (::mincore(from, static_cast<size_t>(pages * page_bytes()), present.data()) != 0) return 0;
  return std::count_if(present.begin(), present.begin() + pages,
                       [](unsigned char page) { return (page & 1) != 0; });
}

int64_t TouchedPages::count_bytes() {
  for (size_t chunk = 0; chunk < page_counts_.size(); ++chunk)
    if (page_counts_[chunk] < kChunkPages)
      page_counts_[chunk] = std::max(page_counts_[chunk], static_cast<int32_t>(count_pages(chunk)));
  return std::accumulate(page_counts_.begin(), page_counts_.end(), int64_t{0}) * page_bytes();
}

}  // namespace ftrun
