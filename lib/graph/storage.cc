#include "graph/storage.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ftrun {
namespace {

/// Orders of placement that are tried; the first is nearly always the best or one away from it.
constexpr int kMostTries = 24;

int64_t round_up(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// The most bytes that live at one time: no layout is smaller.
int64_t fullest_moment(std::span<const StorageRequest> requests, const std::vector<size_t>& order,
                       int64_t alignment) {
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (const size_t at : order) {
    const int64_t bytes = round_up(requests[at].bytes, alignment);
    changes.emplace_back(requests[at].first, bytes);
    changes.emplace_back(requests[at].last + 1, -bytes);
  }
  std::sort(changes.begin(), changes.end());
  int64_t live = 0;
  int64_t most = 0;
  for (const auto& [time, bytes] : changes) most = std::max(most, live += bytes);
  return most;
}

/// Gives each request, in turn, the lowest place that is free all its life.
StorageLayout place(std::span<const StorageRequest> requests, const std::vector<size_t>& order,
                    int64_t alignment) {
  StorageLayout layout;
  layout.offset.assign(requests.size(), -1);
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (size_t i = 0; i < order.size(); ++i) {
    const StorageRequest& request = requests[order[i]];
    taken.clear();
    for (size_t k = 0; k < i; ++k) {
      const StorageRequest& other = requests[order[k]];
      if (other.first <= request.last && request.first <= other.last)
        taken.emplace_back(layout.offset[order[k]], layout.offset[order[k]] + other.bytes);
    }
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (offset + request.bytes <= begin) break;
      offset = std::max(offset, round_up(end, alignment));
    }
    layout.offset[order[i]] = offset;
    layout.bytes = std::max(layout.bytes, offset + request.bytes);
  }
  layout.bytes = round_up(layout.bytes, alignment);
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

}  // namespace

StorageLayout pack_storage(std::span<const StorageRequest> requests, int64_t alignment) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t at) {
    return requests[at].bytes == 0 || requests[at].first > requests[at].last;
  });
  // Largest first, then earliest, is the usual good greedy for interval packing.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return requests[a].bytes != requests[b].bytes ? requests[a].bytes > requests[b].bytes
                                                  : requests[a].first < requests[b].first;
  });
  StorageLayout best = place(requests, order, alignment);
  const int64_t bound = fullest_moment(requests, order, alignment);
  StorageLayout layout = best;
  for (int tries = 1; tries < kMostTries && best.bytes > bound; ++tries) {
    promote_highest(requests, layout, order);
    layout = place(requests, order, alignment);
    if (layout.bytes < best.bytes) best = layout;
  }
  return best;
}

}  // namespace ftrun
