#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/heads.h"

namespace ftrun::cpu {

/// The smallest number of tokens in one task of an operation on the heads of qkv rows.
inline constexpr int64_t kQkvRowGrain = 16;

/// QkvRow describes the layout of a qkv row: H query heads, K key heads and K value heads of d
/// elements each.
struct QkvRow {
  explicit QkvRow(const HeadAttrs& attrs)
      : query_heads(attrs.query_heads),
        key_heads(attrs.kv_heads),
        normed_heads(query_heads + key_heads),
        head_size(attrs.head_size),
        keys(query_heads * head_size),
        values(normed_heads * head_size),
        width(values + key_heads * head_size) {}
  /// The numbers of heads. The normed heads, which norms of queries and keys normalize, are the
  /// first ones of a row.
  int64_t query_heads, key_heads, normed_heads, head_size;
  /// The offsets of the first key and value in a row, and the number of elements of a row.
  int64_t keys, values, width;

  /// Copies the values of a row, unless the row is written in place.
  template <class S>
  void copy_values(const S* from, S* to) const {
    if (from != to) std::copy(from + values, from + width, to + values);
  }
};

}  // namespace ftrun::cpu
