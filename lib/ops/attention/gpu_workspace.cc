#include "ops/attention/gpu_workspace.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/round_up.h"
#include "graph/offsets.h"
#include "ops/attention/attention.h"
#include "ops/attention/workspace.h"

namespace ftrun {

std::vector<GpuDocumentGroup> gpu_document_groups(int64_t tokens, int64_t row_tokens) {
  // The limits of groups. For documents of up to kShort tokens, one group is cheaper than several
  // launches. Lengths are multiples of kStep, the number of tokens of a tile.
  constexpr int64_t kShort = 256, kStep = 64, kShare = 4;
  const int64_t rows = tokens / row_tokens;
  std::vector<GpuDocumentGroup> groups;
  int64_t longest = row_tokens;
  while (longest > kShort && groups.size() + 1 < kMaxGpuDocumentGroups) {
    const int64_t next = round_up((longest + 1) / 2, kStep);
    groups.push_back({.max_tokens = longest, .slots = rows * (row_tokens / (next + 1))});
    longest = next;
  }
  groups.push_back(
      {.max_tokens = longest, .slots = rows * kShare * divide_up(row_tokens, longest)});
  return groups;
}

GpuAttentionWorkspace gpu_attention_workspace(int64_t tokens, const AttentionAttrs& attrs,
                                              bool backward) {
  require(attrs.row_tokens > 0 && tokens % attrs.row_tokens == 0,
          "the tokens of attention fill whole rows");
  const int64_t blocks = divide_up(attrs.row_tokens, kAttentionBlock);
  GpuAttentionWorkspace w;
  Offsets places;
  const auto list = [&places](int64_t count) {
    return places.reserve(count * dtype_bytes(DType::kI32));
  };
  w.lowest = list(tokens);
  w.first_block = list(tokens / attrs.row_tokens * blocks);
  w.uncovered = list(1);
  w.groups = gpu_document_groups(tokens, attrs.row_tokens);
  for (GpuDocumentGroup& group : w.groups) {
    group.lengths = list(group.slots);
    for (int64_t* offsets : {&group.qkv_offsets, &group.out_offsets, &group.token_offsets})
      *offsets = list(group.slots + 1);
  }
  if (backward) w.delta = places.reserve(attrs.query_heads * tokens * dtype_bytes(DType::kF32));
  w.bytes = places.bytes();
  return w;
}

}  // namespace ftrun
