#include "graph/workspace.h"

#include <algorithm>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "graph/storage.h"

namespace ftrun {

namespace {

/// Hands out consecutive aligned ranges.
class Ranges {
 public:
  int64_t take(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += (bytes + kStorageAlignment - 1) / kStorageAlignment * kStorageAlignment;
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

int64_t blocks_of(int64_t count, int64_t block) {
  return (count + block - 1) / block;
}

/// Enough tasks of equal length for a few cores; each class beyond the first costs one more sum of
/// dq.
int64_t key_block_classes(int64_t independent, int64_t blocks) {
  constexpr int64_t kTasks = 8;
  int64_t classes = 1;
  while (independent * classes < kTasks && classes * 2 <= blocks) classes *= 2;
  return classes;
}

int64_t attention_bytes(const LayerGraph& graph, const Op& op, bool backward) {
  const Value& qkv = graph.at(op.in[backward ? 1 : 0]);
  return attention_workspace(qkv.dims[0], std::get<AttentionAttrs>(op.attrs),
                             dtype_bytes(qkv.dtype), backward)
      .bytes;
}

int64_t cross_entropy_bytes(const LayerGraph& graph, const Op& op) {
  const Value& x = graph.at(op.in[0]);
  return cross_entropy_workspace(x.dims[0], x.dims[1], graph.at(op.in[1]).dims[0],
                                 std::get<CrossEntropyAttrs>(op.attrs), dtype_bytes(x.dtype))
      .bytes;
}

/// One partial gradient for every kWgradRows tokens of dy, never in 16 bits.
int64_t partial_gradient_bytes(const LayerGraph& graph, const Op& op) {
  int64_t width = 0;
  for (const ValueId gradient : op.out) width += element_count(graph.at(gradient).dims);
  const Value& dy = graph.at(op.in[0]);
  return blocks_of(dy.dims[0], kWgradRows) * width *
         std::max(dtype_bytes(dy.dtype), dtype_bytes(DType::kF32));
}

}  // namespace

AttentionWorkspace attention_workspace(int64_t tokens, const AttentionAttrs& attrs,
                                       int64_t element_bytes, bool backward) {
  require(attrs.row_tokens > 0 && tokens % attrs.row_tokens == 0, "attention rows of tokens");
  constexpr int64_t kVector = 16;
  AttentionWorkspace w;
  w.padded_head = blocks_of(attrs.head_size, kVector) * kVector;
  w.batch_rows = tokens / attrs.row_tokens;
  w.blocks = blocks_of(attrs.row_tokens, kAttentionBlock);
  const int64_t tile_bytes = kAttentionBlock * w.padded_head * element_bytes;
  const int64_t query_tiles = w.batch_rows * attrs.query_heads * w.blocks;
  const int64_t key_tiles = w.batch_rows * attrs.kv_heads * w.blocks;
  Ranges ranges;
  w.lowest = ranges.take(tokens * dtype_bytes(DType::kI32));
  w.first_block = ranges.take(w.batch_rows * w.blocks * dtype_bytes(DType::kI32));
  if (backward) {
    w.classes = key_block_classes(w.batch_rows * attrs.kv_heads, w.blocks);
    w.delta =
        ranges.take(attrs.query_heads * tokens * std::max(element_bytes, dtype_bytes(DType::kF32)));
    w.dq = ranges.take(w.classes * query_tiles * tile_bytes);
  } else {
    w.keys = ranges.take(key_tiles * tile_bytes);
    w.values = ranges.take(key_tiles * tile_bytes);
  }
  w.bytes = ranges.bytes();
  return w;
}

CrossEntropyWorkspace cross_entropy_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                              const CrossEntropyAttrs& attrs,
                                              int64_t element_bytes) {
  require(attrs.chunk_tokens > 0, "cross-entropy chunk");
  CrossEntropyWorkspace w;
  w.chunk = std::min(attrs.chunk_tokens, tokens);
  Ranges ranges;
  w.counted = ranges.take(tokens * dtype_bytes(DType::kI32));
  w.losses = ranges.take(w.chunk * dtype_bytes(DType::kF64));
  w.rows = ranges.take(w.chunk * hidden * element_bytes);
  w.logits = ranges.take(w.chunk * vocabulary * element_bytes);
  w.bytes = ranges.bytes();
  return w;
}

int64_t workspace_bytes(const LayerGraph& graph, const Op& op) {
  switch (op.kind) {
    case OpKind::kAttention:
      return attention_bytes(graph, op, false);
    case OpKind::kAttentionDgrad:
      return attention_bytes(graph, op, true);
    case OpKind::kLinearCrossEntropy:
      return cross_entropy_bytes(graph, op);
    case OpKind::kRmsNormWgrad:
    case OpKind::kQkNormWgrad:
    case OpKind::kBiasWgrad:
      return partial_gradient_bytes(graph, op);
    default:
      return 0;
  }
}

}  // namespace ftrun
