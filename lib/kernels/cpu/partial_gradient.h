#pragma once

#include <algorithm>
#include <cstdint>

#include "graph/op_workspace.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"

// The functions of this header compute gradients that are sums over tokens: one partial sum for
// each kWgradRows tokens, added in order, so that the result does not depend on the number of
// threads.
namespace ftrun::cpu {

inline int64_t partial_count(int64_t tokens) {
  return (tokens + kWgradRows - 1) / kWgradRows;
}

/// Calls add(first_token, tokens, sums) for each block of tokens, which adds to the block's zeroed
/// `sums[width]`. T is the type of the arithmetic.
template <class T, class Add>
void sum_row_blocks(int64_t tokens, int64_t width, T* partials, Add add) {
  parallel_ranges(partial_count(tokens), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kWgradRows;
      T* const sums = partials + block * width;
      std::fill_n(sums, width, T{0});
      add(first, std::min(kWgradRows, tokens - first), sums);
    }
  });
}

/// Adds up gradient[width] (+)= the partial sums, which lie `stride` elements apart.
template <class G>
void add_partials(const Compute<G>* partials, int64_t tokens, int64_t width, int64_t stride,
                  G* gradient, bool accumulate) {
  vector_kernels<G>().add_partials(partials, partial_count(tokens), stride, gradient, width,
                                   accumulate);
}

}  // namespace ftrun::cpu
