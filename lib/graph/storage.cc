#include "graph/storage.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/round_up.h"

namespace ftrun {
namespace {

/// The largest number of placement orders that are tried. The first is nearly always the best, or
/// close to it. After kMaxExamined examined requests (about 50 ms of work) no further order is
/// tried.
constexpr int kMaxTries = 24;
constexpr int64_t kMaxExamined = 5'000'000;
/// The largest number of requests that are examined to find the gaps of an arena: about 100 ms of
/// work.
constexpr int64_t kMaxExaminedGaps = 20'000'000;
/// A request smaller than 1 / kMinPart of the live bytes is not worth moving.
constexpr int64_t kMinPart = 1000;

bool needs_storage(const StorageRequest& request) {
  return request.bytes > 0 && request.first <= request.last;
}

bool lifetimes_overlap(const StorageRequest& a, const StorageRequest& b) {
  return a.first <= b.last && b.first <= a.last;
}

/// LiveBytes holds the total bytes of live requests at each time.
class LiveBytes {
 public:
  LiveBytes(std::span<const StorageRequest> requests, int64_t alignment) : alignment_(alignment) {
    int64_t begin = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::min();
    for (const StorageRequest& request : requests) {
      if (!needs_storage(request)) continue;
      begin = std::min(begin, request.first);
      end = std::max(end, request.last + 1);
    }
    if (begin >= end) return;
    begin_ = begin;
    live_.resize(static_cast<size_t>(end - begin) + 1);
    for (const StorageRequest& request : requests) {
      if (!needs_storage(request)) continue;
      live_[index(request.first)] += round_up(request.bytes, alignment);
      live_[index(request.last + 1)] -= round_up(request.bytes, alignment);
    }
    std::partial_sum(live_.begin(), live_.end(), live_.begin());
  }

  void remove(const StorageRequest& request) {
    for (int64_t at = request.first; at <= request.last; ++at)
      live_[index(at)] -= round_up(request.bytes, alignment_);
  }

  /// Returns the first time with the maximum number of live bytes, and that number; zeros without
  /// requests.
  std::pair<int64_t, int64_t> peak() const {
    const auto peak = std::max_element(live_.begin(), live_.end());
    return peak == live_.end() ? std::pair<int64_t, int64_t>{}
                               : std::pair{begin_ + (peak - live_.begin()), *peak};
  }

 private:
  size_t index(int64_t at) const { return static_cast<size_t>(at - begin_); }

  int64_t alignment_;
  int64_t begin_ = 0;
  std::vector<int64_t> live_;
};

/// IntervalTree finds the requests of a set that are alive at some time in an interval. Its leaves
/// are the requests in the order of their first times; each node holds the latest last time below
/// it.
class IntervalTree {
 public:
  IntervalTree(std::span<const StorageRequest> requests, std::vector<size_t> members)
      : requests_(requests), by_first_(std::move(members)), leaf_(requests.size()) {
    std::stable_sort(by_first_.begin(), by_first_.end(),
                     [&](size_t a, size_t b) { return requests[a].first < requests[b].first; });
    for (size_t i = 0; i < by_first_.size(); ++i) leaf_[by_first_[i]] = i;
    leaves_ = std::bit_ceil(std::max<size_t>(by_first_.size(), 1));
    latest_.assign(2 * leaves_, kNoRequest);
  }

  void clear() { std::fill(latest_.begin(), latest_.end(), kNoRequest); }

  void add(size_t request) {
    const int64_t last = requests_[request].last;
    for (size_t node = leaves_ + leaf_[request]; node > 0 && latest_[node] < last; node /= 2)
      latest_[node] = last;
  }

  /// Calls `found` with each added request that is alive at the same time as `request`.
  template <typename Found>
  void for_each_overlapping(const StorageRequest& request, const Found& found) {
    const auto begun = std::partition_point(by_first_.begin(), by_first_.end(), [&](size_t other) {
      return requests_[other].first <= request.last;
    });
    const auto limit = static_cast<size_t>(begun - by_first_.begin());
    ++examined_;
    if (may_hold(1, 0, limit, request.first)) visit(1, 0, leaves_, limit, request.first, found);
  }

  /// Counts the nodes of the tree that were examined.
  int64_t examined() const { return examined_; }

 private:
  static constexpr int64_t kNoRequest = std::numeric_limits<int64_t>::min();

  /// Returns whether a request of the node may overlap the interval: it is alive at `first` or
  /// later, and the node's first leaf, `begin`, is below `limit`, so that it begins early enough.
  bool may_hold(size_t node, size_t begin, size_t limit, int64_t first) const {
    return begin < limit && latest_[node] >= first && latest_[node] != kNoRequest;
  }

  /// Visits the node of leaves [begin, begin + width), which may hold a match. It tests the
  /// children before it visits them: most hold none and then cost no call.
  template <typename Found>
  void visit(size_t node, size_t begin, size_t width, size_t limit, int64_t first,
             const Found& found) {
    if (width == 1) return found(by_first_[begin]);
    examined_ += 2;
    const size_t half = width / 2;
    if (may_hold(2 * node, begin, limit, first)) visit(2 * node, begin, half, limit, first, found);
    if (may_hold(2 * node + 1, begin + half, limit, first))
      visit(2 * node + 1, begin + half, half, limit, first, found);
  }

  std::span<const StorageRequest> requests_;
  std::vector<size_t> by_first_;
  std::vector<size_t> leaf_;  // the leaf of each request
  size_t leaves_ = 1;
  std::vector<int64_t> latest_;
  int64_t examined_ = 0;
};

/// Extent is the bytes [begin, end) of an arena; both are aligned.
struct Extent {
  int64_t begin = 0;
  int64_t end = 0;
};

/// ExtentSorter sorts extents by their beginning: first into buckets by the leading bits, then each
/// bucket. A comparison sort of all extents mispredicts about half of its branches and took most of
/// the time of large plans.
class ExtentSorter {
 public:
  void sort(std::vector<Extent>& extents) {
    if (extents.size() < kFewExtents) return sort_few(extents.begin(), extents.end());
    const auto [lowest, highest] = std::minmax_element(extents.begin(), extents.end(), is_lower);
    const int64_t begin = lowest->begin;
    const int width = std::bit_width(static_cast<uint64_t>(highest->begin - begin));
    const int shift = std::max(width - kBucketBits, 0);
    const auto bucket_of = [&](const Extent& extent) {
      return static_cast<size_t>((extent.begin - begin) >> shift);
    };
    ends_.fill(0);
    for (const Extent& extent : extents) ++ends_[bucket_of(extent)];
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    sorted_.resize(extents.size());
    for (const Extent& extent : extents) sorted_[--ends_[bucket_of(extent)]] = extent;
    extents.swap(sorted_);
    // ends_ now holds where each bucket begins.
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      const size_t end = bucket + 1 < kBuckets ? ends_[bucket + 1] : extents.size();
      if (end - ends_[bucket] > 1)
        sort_few(extents.begin() + static_cast<std::ptrdiff_t>(ends_[bucket]),
                 extents.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }

 private:
  static constexpr int kBucketBits = 8;
  static constexpr size_t kBuckets = size_t{1} << kBucketBits;
  static constexpr size_t kFewExtents = 32;

  static bool is_lower(const Extent& a, const Extent& b) { return a.begin < b.begin; }
  static void sort_few(std::vector<Extent>::iterator begin, std::vector<Extent>::iterator end) {
    std::sort(begin, end, is_lower);
  }

  std::array<size_t, kBuckets> ends_{};
  std::vector<Extent> sorted_;
};

/// Calls `found` with the beginning and the end of each gap that `occupied` leaves in an arena of
/// `bytes` bytes, from the lowest on, until `found` returns true. Sorts `occupied`.
template <typename Found>
void find_gap(std::vector<Extent>& occupied, ExtentSorter& sorter, int64_t bytes,
              const Found& found) {
  sorter.sort(occupied);
  int64_t offset = 0;
  for (const Extent& extent : occupied) {
    if (offset < extent.begin && found(offset, extent.begin)) return;
    offset = std::max(offset, extent.end);
  }
  if (offset < bytes) found(offset, bytes);
}

/// Returns the lowest offset at which `needed_bytes` bytes are free in an arena of `bytes` bytes;
/// -1: there is none.
int64_t lowest_offset(std::vector<Extent>& occupied, ExtentSorter& sorter, int64_t bytes,
                      int64_t needed_bytes) {
  int64_t offset = -1;
  find_gap(occupied, sorter, bytes, [&](int64_t begin, int64_t end) {
    if (end - begin < needed_bytes) return false;
    offset = begin;
    return true;
  });
  return offset;
}

/// Returns the bytes of each request, rounded up to the alignment.
std::vector<int64_t> aligned_bytes(std::span<const StorageRequest> requests, int64_t alignment) {
  std::vector<int64_t> bytes;
  bytes.reserve(requests.size());
  for (const StorageRequest& request : requests)
    bytes.push_back(round_up(request.bytes, alignment));
  return bytes;
}

/// Assigns to each request, in the given order, the lowest offset that is free during its whole
/// lifetime. `aligned` has the rounded-up bytes of each request, because a division for each pair
/// of requests would take longer than everything else.
StorageLayout place_in_order(std::span<const StorageRequest> requests,
                             const std::vector<size_t>& order, std::span<const int64_t> aligned,
                             IntervalTree& live) {
  StorageLayout layout;
  layout.offset.assign(requests.size(), -1);
  live.clear();
  std::vector<Extent> occupied;
  ExtentSorter sorter;
  for (const size_t at : order) {
    const StorageRequest& request = requests[at];
    occupied.clear();
    live.for_each_overlapping(request, [&](size_t other) {
      occupied.push_back({layout.offset[other], layout.offset[other] + aligned[other]});
    });
    const int64_t offset =
        lowest_offset(occupied, sorter, std::numeric_limits<int64_t>::max(), request.bytes);
    layout.offset[at] = offset;
    layout.bytes = std::max(layout.bytes, offset + aligned[at]);
    live.add(at);
  }
  return layout;
}

/// Moves the request that reaches the end of the arena to the front of the order.
void promote_highest(std::span<const StorageRequest> requests, const StorageLayout& layout,
                     std::vector<size_t>& order) {
  const auto end = [&](size_t at) { return layout.offset[at] + requests[at].bytes; };
  const auto highest = std::max_element(order.begin(), order.end(),
                                        [&](size_t a, size_t b) { return end(a) < end(b); });
  std::rotate(order.begin(), highest, highest + 1);
}

/// Gaps finds gaps in a packed arena, and records the requests that are moved into them.
class Gaps {
 public:
  Gaps(const PackedArena& arena, int64_t alignment) : bytes_(arena.bytes), alignment_(alignment) {
    for (size_t i = 0; i < arena.requests.size(); ++i)
      if (arena.offset[i] >= 0) add(arena.requests[i], arena.offset[i]);
  }

  /// Returns the lowest offset that is free during the whole lifetime of `request`; -1: there is
  /// none.
  int64_t find_lowest_gap(const StorageRequest& request) const {
    std::vector<Extent> occupied = occupied_beside(request);
    return lowest_offset(occupied, sorter_, bytes_, request.bytes);
  }

  /// Returns the bytes of the largest gap at `time`: no larger request that is alive then can fit.
  int64_t largest_gap(int64_t time) const {
    std::vector<Extent> occupied = occupied_beside({1, time, time});
    int64_t largest = 0;
    find_gap(occupied, sorter_, bytes_, [&](int64_t begin, int64_t end) {
      largest = std::max(largest, end - begin);
      return false;
    });
    return largest;
  }

  void add(const StorageRequest& request, int64_t offset) {
    placed_.push_back({request, {offset, offset + round_up(request.bytes, alignment_)}});
  }

  /// Counts the placed requests that were examined.
  int64_t examined() const { return examined_; }

 private:
  struct PlacedRequest {
    StorageRequest request;
    Extent extent;
  };

  std::vector<Extent> occupied_beside(const StorageRequest& request) const {
    examined_ += static_cast<int64_t>(placed_.size());
    std::vector<Extent> occupied;
    for (const PlacedRequest& other : placed_)
      if (lifetimes_overlap(other.request, request)) occupied.push_back(other.extent);
    return occupied;
  }

  int64_t bytes_;
  int64_t alignment_;
  std::vector<PlacedRequest> placed_;
  mutable int64_t examined_ = 0;
  /// Sorts the occupied extents; kept because it holds buffers.
  mutable ExtentSorter sorter_;
};

/// Finds the largest request that is alive at `time`, has no offset yet and fits into a gap.
/// Returns its index and its offset there; offset -1: none fits.
std::pair<size_t, int64_t> find_largest_fitting(std::span<const StorageRequest> requests,
                                                std::span<const int64_t> offset, int64_t time,
                                                const Gaps& gaps) {
  size_t largest = 0;
  int64_t gap_offset = -1;
  const int64_t largest_gap = gaps.largest_gap(time);
  for (size_t i = 0; i < requests.size(); ++i) {
    const StorageRequest& request = requests[i];
    if (!needs_storage(request) || request.first > time || request.last < time || offset[i] >= 0)
      continue;
    if (request.bytes > largest_gap ||
        (gap_offset >= 0 && request.bytes <= requests[largest].bytes))
      continue;
    const int64_t gap = gaps.find_lowest_gap(request);
    if (gap < 0) continue;
    largest = i;
    gap_offset = gap;
  }
  return {largest, gap_offset};
}

}  // namespace

std::vector<int64_t> fill_gaps(std::span<const StorageRequest> requests, const PackedArena& arena,
                               int64_t alignment, int64_t target_bytes) {
  std::vector<int64_t> offset(requests.size(), -1);
  Gaps gaps(arena, alignment);
  LiveBytes remaining(requests, alignment);
  auto [time, peak] = remaining.peak();
  int64_t lowest_peak = peak;
  std::vector<size_t> moved;
  size_t useful = 0;  // the number of moves that led to the smallest peak of the rest so far
  while (peak > target_bytes && gaps.examined() < kMaxExaminedGaps) {
    const auto [request, gap_offset] = find_largest_fitting(requests, offset, time, gaps);
    if (gap_offset < 0 || requests[request].bytes < peak / kMinPart) break;
    gaps.add(requests[request], gap_offset);
    remaining.remove(requests[request]);
    offset[request] = gap_offset;
    moved.push_back(request);
    std::tie(time, peak) = remaining.peak();
    if (peak >= lowest_peak) continue;
    lowest_peak = peak;
    useful = moved.size();
  }
  for (size_t i = useful; i < moved.size(); ++i) offset[moved[i]] = -1;
  return offset;
}

StorageLayout pack_storage(std::span<const StorageRequest> requests, int64_t alignment) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t at) { return !needs_storage(requests[at]); });
  // Largest first, then earliest, is the usual greedy order for packing intervals.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return requests[a].bytes != requests[b].bytes ? requests[a].bytes > requests[b].bytes
                                                  : requests[a].first < requests[b].first;
  });
  IntervalTree live(requests, order);
  const std::vector<int64_t> aligned = aligned_bytes(requests, alignment);
  StorageLayout best = place_in_order(requests, order, aligned, live);
  const int64_t bound = LiveBytes(requests, alignment).peak().second;  // no layout is smaller
  StorageLayout layout = best;
  for (int tries = 1; tries < kMaxTries && live.examined() < kMaxExamined && best.bytes > bound;
       ++tries) {
    promote_highest(requests, layout, order);
    layout = place_in_order(requests, order, aligned, live);
    if (layout.bytes < best.bytes) best = layout;
  }
  best.examined = live.examined();
  return best;
}

}  // namespace ftrun
