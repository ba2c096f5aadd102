#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/heads.h"

namespace ftrun::cpu {

/// The smallest number of tokens in one task of an operation on the heads of qkv rows.
inline constexpr int64_t kQkvRowGrain = 16;

/// QkvRow describes the layout of a qkv row: the query heads, then the key heads and as many value
/// heads, each of `head_size` elements.
struct QkvRow {
  explicit QkvRow(const HeadAttrs& attrs)
      : query_heads(attrs.query_heads),
        kv_heads(attrs.kv_heads),
        normed_heads(query_heads + kv_heads),
        head_size(attrs.head_size),
        key_offset(query_heads * head_size),
        value_offset(normed_heads * head_size),
        row_size(value_offset + kv_heads * head_size) {}
  /// The numbers of heads. The normed heads, which norms of queries and keys normalize, are the
  /// first ones of a row.
  int64_t query_heads, kv_heads, normed_heads, head_size;
  /// The offsets of the first key and value in a row, and the number of elements of a row.
  int64_t key_offset, value_offset, row_size;

  /// Copies the values of a row, unless the row is written in place.
  template <class S>
  void copy_values(const S* from, S* to) const {
    if (from != to) std::copy(from + value_offset, from + row_size, to + value_offset);
  }
};

}  // namespace ftrun::cpu
