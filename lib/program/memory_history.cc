#include "program/memory_history.h"

#include <numeric>

#include "program/lifetime.h"

namespace ftrun {

int64_t sum_categories(const CategoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

std::vector<CategoryBytes> arena_history(const Program& program, Tier tier) {
  return arena_history(program, compute_buffer_lifetimes(program), tier);
}

std::vector<CategoryBytes> arena_history(const Program& program,
                                         const std::vector<StorageRequest>& lifetimes, Tier tier) {
  std::vector<CategoryBytes> history(program.instrs.size() + 2);
  for (size_t b = 0; b < lifetimes.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent_kind || buffer.tier != tier || lifetimes[b].first > lifetimes[b].last)
      continue;
    const auto category = static_cast<size_t>(buffer.category);
    history[static_cast<size_t>(lifetimes[b].first)][category] += buffer.bytes;
    history[static_cast<size_t>(lifetimes[b].last) + 1][category] -= buffer.bytes;
  }
  for (size_t at = 1; at < history.size(); ++at)
    for (size_t c = 0; c < kCategoryCount; ++c) history[at][c] += history[at - 1][c];
  return history;
}

}  // namespace ftrun
