#include "ops/attention/gpu_workspace.h"

#include "base/dtype.h"
#include "base/error.h"
#include "ops/attention/attention.h"
#include "ops/attention/workspace.h"
#include "ops/offsets.h"

namespace ftrun {

std::vector<GpuDocumentGroup> gpu_document_groups(int64_t tokens, int64_t row_tokens) {
  // Below kShort one group is cheaper than several launches; lengths are multiples of kStep, as
  // tiles are.
  constexpr int64_t kShort = 256, kStep = 64, kShare = 4;
  const int64_t rows = tokens / row_tokens;
  std::vector<GpuDocumentGroup> groups;
  int64_t most = row_tokens;
  while (most > kShort && groups.size() + 1 < kMostGpuDocumentGroups) {
    const int64_t next = round_up((most + 1) / 2, kStep);
    groups.push_back({.most_tokens = most, .slots = rows * (row_tokens / (next + 1))});
    most = next;
  }
  groups.push_back(
      {.most_tokens = most, .slots = rows * kShare * ((row_tokens + most - 1) / most)});
  return groups;
}

GpuAttentionWorkspace gpu_attention_workspace(int64_t tokens, const AttentionAttrs& attrs,
                                              bool backward) {
  require(attrs.row_tokens > 0 && tokens % attrs.row_tokens == 0, "attention rows of tokens");
  const int64_t blocks = (attrs.row_tokens + kAttentionBlock - 1) / kAttentionBlock;
  GpuAttentionWorkspace w;
  w.lowest = 0;
  w.first_block = after(w.lowest, tokens * dtype_bytes(DType::kI32));
  w.bytes = after(w.first_block, tokens / attrs.row_tokens * blocks * dtype_bytes(DType::kI32));
  const auto list = [&w](int64_t count) {
    const int64_t offset = w.bytes;
    w.bytes = after(offset, count * dtype_bytes(DType::kI32));
    return offset;
  };
  w.uncovered = list(1);
  w.groups = gpu_document_groups(tokens, attrs.row_tokens);
  for (GpuDocumentGroup& group : w.groups) {
    group.lengths = list(group.slots);
    for (int64_t* offsets : {&group.qkv_offsets, &group.out_offsets, &group.token_offsets})
      *offsets = list(group.slots + 1);
  }
  if (!backward) return w;
  w.delta = w.bytes;
  w.bytes = after(w.delta, attrs.query_heads * tokens * dtype_bytes(DType::kF32));
  return w;
}

}  // namespace ftrun
