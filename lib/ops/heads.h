#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ftrun {

/// Layout of qkv rows: H query heads, then K key heads, then K value heads, each of d elements.
struct HeadAttrs {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  /// Of qk_norm alone.
  double epsilon = 1e-6;
  bool operator==(const HeadAttrs&) const = default;
};

/// Adds what the letters Q, R, A, H and d of OpSpec::shapes stand for.
void add_head_letters(int64_t query_heads, int64_t kv_heads, int64_t head_size,
                      std::map<std::string, int64_t>& letters);

}  // namespace ftrun
