#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/heads.h"

namespace ftrun::cpu {

/// Tokens that a thread takes at least of an operation that goes head by head through qkv rows.
inline constexpr int64_t kQkvRowGrain = 16;

/// QkvRow has the places in a qkv row: H query heads, K key heads, K value heads of d elements.
struct QkvRow {
  explicit QkvRow(const HeadAttrs& attrs)
      : query_heads(attrs.query_heads),
        key_heads(attrs.kv_heads),
        normed_heads(query_heads + key_heads),
        head_size(attrs.head_size),
        keys(query_heads * head_size),
        values(normed_heads * head_size),
        width(values + key_heads * head_size) {}
  /// Heads that norms of queries and keys normalise are the first ones of a row.
  int64_t query_heads, key_heads, normed_heads, head_size;
  /// Offsets of the first key and value in a row; elements of a row.
  int64_t keys, values, width;

  /// Copies the values of a row that is not written in place.
  template <class S>
  void copy_values(const S* from, S* to) const {
    if (from != to) std::copy(from + values, from + width, to + values);
  }
};

}  // namespace ftrun::cpu
