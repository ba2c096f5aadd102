#pragma once

#include <cstdint>

// Sources that are compiled for different instruction sets call these functions, so they are always
// inlined: the linker must not choose one copy for all.
#ifdef __CUDACC__
#define FTRUN_BLOCK_FUNCTION __host__ __device__ __forceinline__
#else
#define FTRUN_BLOCK_FUNCTION inline __attribute__((always_inline))
#endif

namespace ftrun {

/// BlockMap maps the elements of a range to the blocks of a tensor, where a rank has a part of each
/// row of the tensor, or where the range begins within a block. By default the range is the tensor.
/// Elements of a block are neighbors in the range.
struct BlockMap {
  static constexpr int64_t kEndless = int64_t{1} << 62;
  /// The index of the range's first element among the rank's elements of the tensor.
  int64_t offset = 0;
  /// The number of elements of a row of the tensor, and how many of them the rank has.
  int64_t row_elements = kEndless;
  int64_t rank_row_elements = kEndless;
  /// The first element of the tensor that the rank has.
  int64_t first_element = 0;

  bool operator==(const BlockMap&) const = default;
};

/// Returns the element of the tensor that is element `i` of the range.
FTRUN_BLOCK_FUNCTION int64_t tensor_element(const BlockMap& map, int64_t i) {
  const int64_t rank_element = map.offset + i;
  return map.first_element + rank_element / map.rank_row_elements * map.row_elements +
         rank_element % map.rank_row_elements;
}

/// Returns the index in the range of the tensor's element `element`, or of the first later element
/// that the range has; `count`, the number of elements of the range, if it has neither.
FTRUN_BLOCK_FUNCTION int64_t range_element(const BlockMap& map, int64_t element, int64_t count) {
  const int64_t distance = element > map.first_element ? element - map.first_element : 0;
  const int64_t column = distance % map.row_elements;
  const int64_t rank_element = distance / map.row_elements * map.rank_row_elements +
                               (column < map.rank_row_elements ? column : map.rank_row_elements);
  const int64_t i = rank_element > map.offset ? rank_element - map.offset : 0;
  return i < count ? i : count;
}

}  // namespace ftrun
