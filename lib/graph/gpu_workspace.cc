#include "graph/gpu_workspace.h"

#include <algorithm>

#include "base/error.h"
#include "base/round_up.h"
#include "graph/layer_graph.h"
#include "graph/lora_parts.h"
#include "graph/op_parts.h"
#include "graph/op_spec.h"
#include "graph/storage.h"
#include "graph/workspace.h"

namespace ftrun {
namespace {

/// Tensor cores' loads want rows that begin at multiples of 16 bytes; of 128 bytes, a row begins a line of the cache.
constexpr int64_t kHeadRowElements = 64;

int64_t after(int64_t offset, int64_t bytes) {
  return offset + round_up(bytes, kStorageAlignment);
}

}  // namespace

int64_t gpu_partials(int64_t tokens) {
  return std::clamp((tokens + kGpuPartialRows - 1) / kGpuPartialRows, int64_t{1}, kMostGpuPartials);
}

std::vector<GpuDocumentGroup> gpu_document_groups(int64_t tokens, int64_t row_tokens) {
  // Below kShort one group is cheaper than several launches; lengths are multiples of kStep, as tiles are.
  constexpr int64_t kShort = 256, kStep = 64, kShare = 4;
  const int64_t rows = tokens / row_tokens;
  std::vector<GpuDocumentGroup> groups;
  int64_t most = row_tokens;
  while (most > kShort && groups.size() + 1 < kMostGpuDocumentGroups) {
    const int64_t next = round_up((most + 1) / 2, kStep);
    groups.push_back({.most_tokens = most, .slots = rows * (row_tokens / (next + 1))});
    most = next;
  }
  groups.push_back({.most_tokens = most, .slots = rows * kShare * ((row_tokens + most - 1) / most)});
  return groups;
}

GpuAttentionWorkspace gpu_attention_workspace(int64_t tokens, const AttentionAttrs& attrs, bool backward) {
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
    for (int64_t* offsets : {&group.qkv_offsets, &group.out_offsets, &group.token_offsets}) *offsets = list(group.slots + 1);
  }
  if (!backward) return w;
  w.delta = w.bytes;
  w.bytes = after(w.delta, attrs.query_heads * tokens * dtype_bytes(DType::kF32));
  return w;
}

GpuHeadWorkspace gpu_head_workspace(int64_t tokens, int64_t vocabulary, const CrossEntropyAttrs& attrs,
                                    int64_t element_bytes) {
  require(attrs.chunk_tokens > 0, "cross-entropy chunk");
  GpuHeadWorkspace w =
      gpu_vocabulary_workspace(std::min(attrs.chunk_tokens, tokens), attrs.with_gradients);
  w.row = round_up(vocabulary, kHeadRowElements);
  w.logits = w.bytes;
  w.bytes = after(w.logits, w.chunk * w.row * element_bytes);
  return w;
}

GpuEmbedWorkspace gpu_embed_workspace(int64_t tokens, int64_t width) {
  GpuEmbedWorkspace w;
  if (tokens <= kEmbedPart) return w;
  // A row with more than kEmbedPart tokens has at most twice as many parts as it has of that.
  w.rows = tokens / kEmbedPart;
  w.parts = 2 * w.rows;
  const int64_t word = dtype_bytes(DType::kI32);
  w.used = 0;
  w.order = after(w.used, kEmbedLists * word);
  w.part_place = after(w.order, tokens * word);
  w.part_count = after(w.part_place, w.parts * word);
  w.part_next = after(w.part_count, w.parts * word);
  w.row = after(w.part_next, w.parts * word);
  w.row_part = after(w.row, w.rows * word);
  w.sums = after(w.row_part, w.rows * word);
  w.bytes = after(w.sums, w.parts * width * dtype_bytes(DType::kF32));
  return w;
}

GpuHeadWorkspace gpu_vocabulary_workspace(int64_t tokens, bool with_gradients) {
  GpuHeadWorkspace w;
  w.chunk = tokens;
  w.losses = 0;
  w.bytes = after(w.losses, tokens * dtype_bytes(DType::kF64));
  if (with_gradients) return w;
  w.correct = w.bytes;
  w.bytes = after(w.correct, tokens * dtype_bytes(DType::kI32));
  return w;
}

GpuDoraWorkspace gpu_dora_workspace(int64_t columns, int64_t inputs, int64_t element_bytes, bool is_packed) {
  constexpr int64_t kMostElements = int64_t{4} << 20, kLeastRows = 64;
  GpuDoraWorkspace w;
  w.rows = std::min(columns, std::max(kMostElements / inputs, kLeastRows));
  w.bytes = after(w.delta, w.rows * inputs * dtype_bytes(DType::kF32));
  if (!is_packed) return w;
  w.weight = w.bytes;
  w.bytes = after(w.weight, w.rows * inputs * element_bytes);
  return w;
}

bool is_norm_pair(std::span<const Op> list, size_t i) {
  return i + 1 < list.size() && op_spec(list[i].kind).gpu_pair == list[i + 1].kind &&
         std::equal(list[i].in.begin(), list[i].in.end(), list[i + 1].in.begin());
}

int64_t gpu_panel_columns(int64_t n, int64_t k) {
  constexpr int64_t kMostElements = int64_t{64} << 20, kLeastColumns = 64;
  return std::min(n, std::max(kMostElements / k / kLeastColumns, int64_t{1}) * kLeastColumns);
}

int64_t gpu_head_chunk(int64_t vocabulary, int64_t element_bytes) {
  constexpr int64_t kMost = 4096, kLeast = 512, kLogitBytes = int64_t{512} << 20;
  int64_t chunk = kMost;
  while (chunk > kLeast && chunk * vocabulary * element_bytes > kLogitBytes) chunk /= 2;
  return chunk;
}

int64_t gpu_workspace_bytes(const LayerGraph& graph, const Op& op) {
  const auto workspace = op_spec(op.kind).gpu_workspace;
  return workspace == nullptr ? 0 : workspace(graph, op);
}

namespace gpu_workspace_of {

int64_t none(const LayerGraph& /*graph*/, const Op& /*op*/) {
  return 0;
}

int64_t packed_panel(const LayerGraph& graph, const Op& op) {
  const Value& weight = graph.at(op.in[1]);
  if (!weight.packed) return 0;
  const bool forward = op.kind == OpKind::kLinear;
  const int64_t n = weight.dims[forward ? 0 : 1], k = weight.dims[forward ? 1 : 0];
  return gpu_panel_columns(n, k) * k * dtype_bytes(weight.dtype);
}

int64_t partial_sums(const LayerGraph& graph, const Op& op) {
  int64_t widest = 0;
  for (const ValueId gradient : op.out)
    widest = std::max(widest, element_count(graph.at(gradient).dims));
  return gpu_partials(graph.at(op.in[0]).dims[0]) * widest * dtype_bytes(DType::kF32);
}

int64_t embed_wgrad(const LayerGraph& graph, const Op& op) {
  return gpu_embed_workspace(graph.at(op.in[0]).dims[0], graph.at(op.in[1]).dims[1]).bytes;
}

int64_t dora_squared_lengths(const LayerGraph& graph, const Op& op) {
  const Value& down = graph.at(op.in[1]);
  const bool is_packed = static_cast<bool>(graph.at(op.in[0]).packed);
  const int64_t columns = most_columns(lora_parts(graph, op));
  return gpu_dora_workspace(columns, down.dims[1], dtype_bytes(down.dtype), is_packed).bytes;
}

int64_t attention(const LayerGraph& graph, const Op& op) {
  const int64_t tokens = graph.at(op.in[0]).dims[0];
  return gpu_attention_workspace(tokens, std::get<AttentionAttrs>(op.attrs), false).bytes;
}

int64_t attention_dgrad(const LayerGraph& graph, const Op& op) {
  const int64_t tokens = graph.at(op.in[1]).dims[0];
  return gpu_attention_workspace(tokens, std::get<AttentionAttrs>(op.attrs), true).bytes;
}

int64_t linear_cross_entropy(const LayerGraph& graph, const Op& op) {
  const Value& x = graph.at(op.in[0]);
  const int64_t vocabulary = graph.at(op.in[1]).dims[0];
  const auto& attrs = std::get<CrossEntropyAttrs>(op.attrs);
  return gpu_head_workspace(x.dims[0], vocabulary, attrs, dtype_bytes(x.dtype)).bytes;
}

int64_t vocabulary_cross_entropy(const LayerGraph& graph, const Op& op) {
  const int64_t chunk_tokens = graph.at(op.in[3]).dims[0];
  const auto& attrs = std::get<VocabularyAttrs>(op.attrs);
  return gpu_vocabulary_workspace(chunk_tokens, attrs.with_gradients).bytes;
}

}  // namespace gpu_workspace_of

}  // namespace ftrun
