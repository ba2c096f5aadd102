#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "graph/op.h"

namespace ftrun {

/// HeadAttrs is the layout of qkv rows: H query heads, then K key heads, then K value heads, each
/// of d elements.
struct HeadAttrs {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  /// The attributes of the norms qk_norm and head_norm (NormAttrs); other operations ignore them.
  double epsilon = 1e-6;
  double weight_offset = 0;
  bool operator==(const HeadAttrs&) const = default;
};

/// Adds the sizes of H, d, (H+2K)d, H+K, Hd and Kd, as OpSpec::shapes writes them.
void add_head_dimensions(int64_t query_heads, int64_t kv_heads, int64_t head_size,
                         std::map<std::string, int64_t>& letters);

/// Adds the letters of an operation with HeadAttrs (OpSpec::add_letter_sizes).
void add_letters_of_heads(const Op& op, std::map<std::string, int64_t>& letters);

}  // namespace ftrun
