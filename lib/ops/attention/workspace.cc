#include "ops/attention/workspace.h"

#include "base/error.h"
#include "base/round_up.h"
#include "graph/offset_allocator.h"
#include "ops/attention/attention.h"

namespace ftrun {
namespace {

/// Returns the number of classes: enough for tasks of equal length on a few cores. Each class
/// beyond the first costs one more sum of dq.
int64_t key_block_classes(int64_t independent, int64_t blocks) {
  constexpr int64_t kTasks = 8;
  int64_t classes = 1;
  while (independent * classes < kTasks && classes * 2 <= blocks) classes *= 2;
  return classes;
}

}  // namespace

AttentionWorkspace attention_workspace(int64_t tokens, const AttentionAttrs& attrs,
                                       int64_t element_bytes, bool backward) {
  require(attrs.sequence_length > 0 && tokens % attrs.sequence_length == 0,
          "the tokens of attention fill whole sequences");
  constexpr int64_t kVector = 16;
  AttentionWorkspace w;
  w.padded_head = round_up(attrs.head_size, kVector);
  w.batch_rows = tokens / attrs.sequence_length;
  w.blocks = divide_up(attrs.sequence_length, kAttentionBlock);
  const int64_t tile_bytes = kAttentionBlock * w.padded_head * wide_bytes(element_bytes);
  const int64_t query_tiles = w.batch_rows * attrs.query_heads * w.blocks;
  const int64_t key_tiles = w.batch_rows * attrs.kv_heads * w.blocks;
  OffsetAllocator offsets;
  w.lowest = offsets.reserve(tokens * dtype_bytes(DType::kI32));
  w.first_block = offsets.reserve(w.batch_rows * w.blocks * dtype_bytes(DType::kI32));
  if (backward) {
    w.classes = key_block_classes(w.batch_rows * attrs.kv_heads, w.blocks);
    w.delta = offsets.reserve(attrs.query_heads * tokens * wide_bytes(element_bytes));
    w.dq = offsets.reserve(w.classes * query_tiles * tile_bytes);
  } else {
    w.keys = offsets.reserve(key_tiles * tile_bytes);
    w.values = offsets.reserve(key_tiles * tile_bytes);
  }
  w.bytes = offsets.bytes();
  return w;
}

}  // namespace ftrun
