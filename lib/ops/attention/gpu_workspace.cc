#include "ops/attention/gpu_workspace.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/round_up.h"
#include "graph/offset_allocator.h"
#include "ops/attention/attention.h"
#include "ops/attention/workspace.h"

namespace ftrun {

std::vector<GpuDocumentGroup> gpu_document_groups(int64_t tokens, int64_t sequence_length) {
  // The limits of groups. For documents of up to kShort tokens, one group is cheaper than several
  // launches. Lengths are multiples of kStep, the number of tokens of a tile.
  constexpr int64_t kShort = 256, kStep = 64, kShare = 4;
  const int64_t rows = tokens / sequence_length;
  std::vector<GpuDocumentGroup> groups;
  int64_t longest = sequence_length;
  while (longest > kShort && groups.size() + 1 < kMaxGpuDocumentGroups) {
    const int64_t next = round_up((longest + 1) / 2, kStep);
    groups.push_back({.max_tokens = longest, .slots = rows * (sequence_length / (next + 1))});
    longest = next;
  }
  groups.push_back(
      {.max_tokens = longest, .slots = rows * kShare * divide_up(sequence_length, longest)});
  return groups;
}

GpuAttentionWorkspace gpu_attention_workspace(int64_t tokens, const AttentionAttrs& attrs,
                                              bool backward) {
  require(attrs.sequence_length > 0 && tokens % attrs.sequence_length == 0,
          "the tokens of attention fill whole sequences");
  const int64_t blocks = divide_up(attrs.sequence_length, kAttentionBlock);
  GpuAttentionWorkspace w;
  OffsetAllocator allocator;
  const auto list = [&allocator](int64_t count) {
    return allocator.reserve(count * dtype_bytes(DType::kI32));
  };
  w.lowest = list(tokens);
  w.first_block = list(tokens / attrs.sequence_length * blocks);
  w.uncovered = list(1);
  w.groups = gpu_document_groups(tokens, attrs.sequence_length);
  for (GpuDocumentGroup& group : w.groups) {
    group.lengths = list(group.slots);
    for (int64_t* offsets : {&group.qkv_offsets, &group.out_offsets, &group.token_offsets})
      *offsets = list(group.slots + 1);
  }
  if (backward) w.delta = allocator.reserve(attrs.query_heads * tokens * dtype_bytes(DType::kF32));
  w.bytes = allocator.bytes();
  return w;
}

}  // namespace ftrun
