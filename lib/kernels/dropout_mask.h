#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/mix_bits.h"
#include "ops/dropout/dropout.h"

namespace ftrun {

// The functions of this header choose the elements that dropout sets to 0. Nothing is drawn in
// sequence and nothing is stored: an element's bits are a function of the step's key (dropout_key),
// the layer, the dropout's number in the layer, the token's position in the step's global batch and
// the column of the whole row. So backward computes the same mask again, a repeated step has the
// same one, and it is the same for every distribution of tokens, columns and layers over ranks and
// micro-batches.
//
// The first four of these inputs give each row a 64-bit key by splitmix64, which takes a handful of
// instructions per row. Each block of 4,096 columns has its own key, which selects a bijection of
// 32 bits that maps a column to its random bits. The bijection has only two multiplications; for
// columns that differ in higher bits than a block has, its results would not be independent.
// Philox would cost more: ten rounds of two 64-bit products for four elements, while this takes two
// 32-bit products for one element, which every vector unit and every GPU has.

/// DropoutKeys selects the bijection of a block.
struct DropoutKeys {
  uint32_t low = 0;
  uint32_t high = 0;
};

/// The number of columns with one bijection.
inline constexpr int64_t kColumnsPerDropoutKey = 4096;

/// Returns the key of token `token` of the step's global batch.
FTRUN_HOST_DEVICE inline uint64_t dropout_row_key(uint64_t dropout_key, int64_t layer, int64_t site,
                                                  int64_t token) {
  constexpr uint64_t kMaxSites = 16;
  const uint64_t place = static_cast<uint64_t>(layer) * kMaxSites + static_cast<uint64_t>(site);
  return splitmix64(splitmix64(dropout_key ^ splitmix64(place)) ^ static_cast<uint64_t>(token));
}

/// Returns the keys of the block that contains a column of the row.
FTRUN_HOST_DEVICE inline DropoutKeys dropout_keys(uint64_t row_key, int64_t column) {
  const auto block = static_cast<uint64_t>(column / kColumnsPerDropoutKey);
  const uint64_t key = block == 0 ? row_key : splitmix64(row_key + block);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

/// Returns the index of the n-th token of a micro-batch among the tokens that are not padding of
/// sequences. Padding tokens get the indices of later tokens, because their results are never read.
FTRUN_HOST_DEVICE inline int64_t dropout_token_index(int64_t n, int64_t sequence_length,
                                                     int64_t sequence_padding) {
  return n - n / sequence_length * sequence_padding;
}

/// Returns the 32 bits of a column of that block, uniformly distributed over rows. The vector
/// kernels have the same function (`scramble_bits`, kernels/cpu/simd.inc).
FTRUN_HOST_DEVICE inline uint32_t dropout_bits(const DropoutKeys& keys, uint32_t column) {
  uint32_t x = column ^ keys.low;
  x = ((x ^ (x >> 16)) * 0x21f0aaadU) ^ keys.high;
  x = (x ^ (x >> 15)) * 0x735a2d97U;
  return x ^ (x >> 15);
}

/// Returns the smallest value of an element's bits with which the element is kept.
inline uint32_t least_kept_bits(const DropoutAttrs& attrs) {
  return static_cast<uint32_t>(std::min(std::round(attrs.probability * 0x1p32), 0x1p32 - 1));
}

/// Returns the factor by which kept elements are multiplied.
inline double dropout_scale(const DropoutAttrs& attrs) {
  return 1 / (1 - attrs.probability);
}

}  // namespace ftrun
