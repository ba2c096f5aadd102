#include "graph/workspace.h"

#include <algorithm>

#include "base/error.h"
#include "base/round_up.h"
#include "graph/gpu_workspace.h"
#include "graph/layer_graph.h"
#include "graph/lora_parts.h"
#include "graph/op_spec.h"
#include "graph/storage.h"

namespace ftrun {

namespace {

/// Hands out consecutive aligned places.
class Offsets {
 public:
  int64_t take(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += round_up(bytes, kStorageAlignment);
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

bool is_narrow(int64_t element_bytes) {
  return element_bytes < dtype_bytes(DType::kF32);
}

/// Of what elements are computed with.
int64_t wide_bytes(int64_t element_bytes) {
  return std::max(element_bytes, dtype_bytes(DType::kF32));
}

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

int64_t attention_bytes(const Value& qkv, const Op& op, bool backward) {
  return attention_workspace(qkv.dims[0], std::get<AttentionAttrs>(op.attrs),
                             dtype_bytes(qkv.dtype), backward)
      .bytes;
}

/// Of the elements of x and w, and of dw where result 2 is it.
struct HeadBytes {
  int64_t element;
  int64_t gradient;
};

HeadBytes head_bytes(const LayerGraph& graph, const Op& op) {
  const int64_t element = dtype_bytes(graph.at(op.in[0]).dtype);
  return {element, op.out.size() > 2 ? dtype_bytes(graph.at(op.out[2]).dtype) : element};
}

void take_panel(CrossEntropyWorkspace& w, Offsets& offsets, int64_t hidden, int64_t vocabulary,
                const HeadBytes& bytes) {
  constexpr int64_t kPanelElements = 1 << 20, kLeastRows = 64;
  if (!is_narrow(bytes.element) && !is_narrow(bytes.gradient)) return;
  w.panel_rows = std::min(vocabulary, std::max(kPanelElements / hidden, kLeastRows));
  w.panel = offsets.take(w.panel_rows * hidden * wide_bytes(bytes.element));
}

/// Panels of a product by in 1 whose result is out 0; `m`, `n`, `k` as in product_workspace.
int64_t product_bytes(const LayerGraph& graph, const Op& op, int64_t m, int64_t n, int64_t k) {
  return product_workspace(m, n, k, dtype_bytes(graph.at(op.in[0]).dtype), dtype_bytes(graph.at(op.out[0]).dtype),
                           static_cast<bool>(graph.at(op.in[1]).packed))
      .bytes;
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
  const int64_t tile_bytes = kAttentionBlock * w.padded_head * wide_bytes(element_bytes);
  const int64_t query_tiles = w.batch_rows * attrs.query_heads * w.blocks;
  const int64_t key_tiles = w.batch_rows * attrs.kv_heads * w.blocks;
  Offsets offsets;
  w.lowest = offsets.take(tokens * dtype_bytes(DType::kI32));
  w.first_block = offsets.take(w.batch_rows * w.blocks * dtype_bytes(DType::kI32));
  if (backward) {
    w.classes = key_block_classes(w.batch_rows * attrs.kv_heads, w.blocks);
    w.delta = offsets.take(attrs.query_heads * tokens * wide_bytes(element_bytes));
    w.dq = offsets.take(w.classes * query_tiles * tile_bytes);
  } else {
    w.keys = offsets.take(key_tiles * tile_bytes);
    w.values = offsets.take(key_tiles * tile_bytes);
  }
  w.bytes = offsets.bytes();
  return w;
}

CrossEntropyWorkspace cross_entropy_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                              const CrossEntropyAttrs& attrs, int64_t element_bytes,
                                              int64_t gradient_bytes) {
  require(attrs.chunk_tokens > 0, "cross-entropy chunk");
  CrossEntropyWorkspace w;
  w.chunk = std::min(attrs.chunk_tokens, tokens);
  const int64_t wide = wide_bytes(element_bytes);
  w.wide_chunk = std::max<int64_t>(w.chunk * element_bytes / wide, 1);
  const int64_t row_bytes = std::max(w.chunk * element_bytes, w.wide_chunk * wide);
  Offsets offsets;
  w.counted = offsets.take(tokens * dtype_bytes(DType::kI32));
  w.losses = offsets.take(w.chunk * dtype_bytes(DType::kF64));
  w.rows = offsets.take(row_bytes * hidden);
  w.logits = offsets.take(row_bytes * vocabulary);
  take_panel(w, offsets, hidden, vocabulary, {element_bytes, gradient_bytes});
  w.bytes = offsets.bytes();
  return w;
}

CrossEntropyWorkspace vocabulary_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                           int64_t element_bytes, int64_t gradient_bytes) {
  CrossEntropyWorkspace w;
  w.chunk = w.wide_chunk = tokens;
  Offsets offsets;
  w.counted = offsets.take(tokens * dtype_bytes(DType::kI32));
  w.losses = offsets.take(tokens * dtype_bytes(DType::kF64));
  w.rows = offsets.take(tokens * hidden * wide_bytes(element_bytes));
  take_panel(w, offsets, hidden, vocabulary, {element_bytes, gradient_bytes});
  w.bytes = offsets.bytes();
  return w;
}

ProductWorkspace product_workspace(int64_t m, int64_t n, int64_t k, int64_t operand_bytes,
                                   int64_t result_bytes, bool packed) {
  const bool narrow = is_narrow(operand_bytes), narrow_result = is_narrow(result_bytes);
  ProductWorkspace w;
  w.rows = packed && !narrow && !narrow_result ? m : std::min<int64_t>(m, packed ? 2048 : 512);
  w.columns = std::min<int64_t>(n, 1024);
  w.depth = std::min<int64_t>(k, 2048);
  Offsets offsets;
  if (narrow) w.a = offsets.take(w.rows * w.depth * wide_bytes(operand_bytes));
  if (narrow || packed) w.b = offsets.take(w.depth * w.columns * wide_bytes(operand_bytes));
  if (narrow_result) w.c = offsets.take(w.rows * w.columns * wide_bytes(result_bytes));
  w.bytes = offsets.bytes();
  return w;
}

LoraWorkspace lora_workspace(const LayerGraph& graph, const Op& op) {
  const int64_t tokens = graph.at(op.in[0]).dims[0];
  const auto panels_of = [&](const LoraPart& part) {
    switch (op.kind) {
      case OpKind::kLoraUp: return product_bytes(graph, op, tokens, part.columns, part.rank);
      case OpKind::kLoraUpDgrad: return product_bytes(graph, op, tokens, part.rank, part.columns);
      default: return product_bytes(graph, op, part.columns, part.rank, tokens);
    }
  };
  int64_t panels = 0;
  for (const LoraPart& part : lora_parts(graph, op)) panels = std::max(panels, panels_of(part));
  Offsets offsets;
  offsets.take(panels);
  LoraWorkspace w;
  if (op.kind != OpKind::kLoraUpDgrad) w.scaled = offsets.take(graph.at(op.in[1]).bytes());
  w.bytes = offsets.bytes();
  return w;
}

DoraWorkspace dora_workspace(const LayerGraph& graph, const Op& op) {
  constexpr int64_t kPanelElements = 1 << 19, kLeastRows = 64;
  const Value& down = graph.at(op.in[1]);
  const int64_t inputs = down.dims[1], element = dtype_bytes(down.dtype);
  int64_t rows = 0, rank = 0;
  for (const LoraPart& part : lora_parts(graph, op)) {
    rows = std::max(rows, part.columns);
    rank = std::max(rank, part.rank);
  }
  Offsets offsets;
  DoraWorkspace w;
  w.rows = std::min(rows, std::max(kPanelElements / inputs, kLeastRows));
  w.panel = offsets.take(w.rows * inputs * wide_bytes(element));
  w.b = offsets.take(w.rows * rank * wide_bytes(element));
  if (is_narrow(element)) w.a = offsets.take(down.dims[0] * inputs * wide_bytes(element));
  w.bytes = offsets.bytes();
  return w;
}

namespace workspace_of {

int64_t embed_wgrad(const LayerGraph& graph, const Op& op) {
  return graph.at(op.in[0]).dims[0] * dtype_bytes(DType::kI32);
}

int64_t linear(const LayerGraph& graph, const Op& op) {
  const Dims &x = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  return product_bytes(graph, op, x[0], w[0], x[1]);
}

int64_t linear_dgrad(const LayerGraph& graph, const Op& op) {
  const Dims &dy = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  return product_bytes(graph, op, dy[0], w[1], dy[1]);
}

int64_t linear_wgrad(const LayerGraph& graph, const Op& op) {
  const Dims &dy = graph.at(op.in[0]).dims, &x = graph.at(op.in[1]).dims;
  return product_bytes(graph, op, dy[1], x[1], dy[0]);
}

int64_t lora(const LayerGraph& graph, const Op& op) { return lora_workspace(graph, op).bytes; }

int64_t dora_squared_lengths(const LayerGraph& graph, const Op& op) { return dora_workspace(graph, op).bytes; }

// One partial gradient for every kWgradRows tokens of dy, never in 16 bits.
int64_t partial_gradients(const LayerGraph& graph, const Op& op) {
  int64_t width = 0;
  for (const ValueId gradient : op.out) width += element_count(graph.at(gradient).dims);
  const Value& dy = graph.at(op.in[0]);
  return blocks_of(dy.dims[0], kWgradRows) * width * wide_bytes(dtype_bytes(dy.dtype));
}

int64_t attention(const LayerGraph& graph, const Op& op) {
  return attention_bytes(graph.at(op.in[0]), op, false);
}

int64_t attention_dgrad(const LayerGraph& graph, const Op& op) {
  return attention_bytes(graph.at(op.in[1]), op, true);
}

int64_t linear_cross_entropy(const LayerGraph& graph, const Op& op) {
  const Dims &x = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  const HeadBytes bytes = head_bytes(graph, op);
  return cross_entropy_workspace(x[0], x[1], w[0], std::get<CrossEntropyAttrs>(op.attrs), bytes.element,
                                 bytes.gradient)
      .bytes;
}

int64_t vocabulary_logits(const LayerGraph& graph, const Op& op) {
  const Value& w = graph.at(op.in[1]);
  const int64_t bytes = dtype_bytes(w.dtype);
  return vocabulary_workspace(graph.at(op.out[0]).dims[0], w.dims[1], w.dims[0], bytes, bytes).bytes;
}

int64_t vocabulary_cross_entropy(const LayerGraph& graph, const Op& op) {
  const Dims& w = graph.at(op.in[1]).dims;
  const HeadBytes bytes = head_bytes(graph, op);
  return vocabulary_workspace(graph.at(op.in[3]).dims[0], w[1], w[0], bytes.element, bytes.gradient).bytes;
}

}  // namespace workspace_of

int64_t workspace_bytes(const LayerGraph& graph, const Op& op) {
  if (graph.dtypes.kernels == Kernels::kGpu) return gpu_workspace_bytes(graph, op);
  const auto workspace = op_spec(op.kind).workspace;
  return workspace == nullptr ? 0 : workspace(graph, op);
}

}  // namespace ftrun
