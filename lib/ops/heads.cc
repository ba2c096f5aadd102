#include "ops/heads.h"

namespace ftrun {

void add_head_dimensions(int64_t query_heads, int64_t kv_heads, int64_t head_size,
                         std::map<std::string, int64_t>& letters) {
  letters["(H+2K)d"] = (query_heads + 2 * kv_heads) * head_size;
  letters["H+K"] = query_heads + kv_heads;
  letters["Hd"] = query_heads * head_size;
  letters["Kd"] = kv_heads * head_size;
  letters["H"] = query_heads;
  letters["d"] = head_size;
}

void add_letters_of_heads(const Op& op, std::map<std::string, int64_t>& letters) {
  const auto& heads = op.attrs.get<HeadAttrs>();
  add_head_dimensions(heads.query_heads, heads.kv_heads, heads.head_size, letters);
}

}  // namespace ftrun
