#include "ops/attention/attention.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/op_parts.h"
#include "ops/attention/cudnn_parts.h"
#include "ops/attention/gpu_workspace.h"
#include "ops/attention/workspace.h"
#include "ops/heads.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void add_attention_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  const auto& a = op.attrs.get<AttentionAttrs>();
  add_head_dimensions(a.query_heads, a.kv_heads, a.head_size, letters);
}

/// Counts the pairs (query, key) of a head whose scores kernels compute: all pairs of a query block
/// and a key block of which some pair is within the causal window. A sequence counts as one
/// document, because only the batch says where documents start; sequences of short documents cost
/// less.
double scored_pairs(int64_t tokens, const AttentionAttrs& attrs) {
  const int64_t block = kAttentionBlock, row = attrs.sequence_length;
  double pairs = 0;
  for (int64_t first = 0; first < row; first += block) {
    const int64_t end = std::min(first + block, row);
    const int64_t lowest = attrs.window > 0 ? std::max<int64_t>(first + 1 - attrs.window, 0) : 0;
    pairs += static_cast<double>((end - first) * (end - lowest / block * block));
  }
  return pairs * static_cast<double>(tokens / row * attrs.query_heads);
}

/// Returns the work of `matmuls` matrix multiplications over a head's elements for each scored
/// pair, and of the pair's exponential.
OpWork work_of_matmuls(const LayerGraph& graph, const Op& op, ValueId qkv, int matmuls) {
  const auto& attrs = op.attrs.get<AttentionAttrs>();
  const double pairs = scored_pairs(graph.at(qkv).dims[0], attrs);
  return OpPass{.flops = 2.0 * matmuls * pairs * static_cast<double>(attrs.head_size),
                .transcendentals = attrs.softcap > 0 ? 2 * pairs : pairs,
                .bytes = operand_bytes(graph, op)};
}

OpWork attention_work(const LayerGraph& graph, const Op& op) {
  return work_of_matmuls(graph, op, op.in[0], 2);
}

/// Counts five multiplications: the scores again, then the gradients with respect to P, v, q and k.
OpWork attention_dgrad_work(const LayerGraph& graph, const Op& op) {
  return work_of_matmuls(graph, op, op.in[1], 5);
}

int64_t attention_bytes(const Value& qkv, const Op& op, bool backward) {
  return attention_workspace(qkv.dims[0], op.attrs.get<AttentionAttrs>(), dtype_bytes(qkv.dtype),
                             backward)
      .bytes;
}

int64_t attention_workspace_bytes(const LayerGraph& graph, const Op& op) {
  return attention_bytes(graph.at(op.in[0]), op, false);
}

int64_t attention_dgrad_workspace_bytes(const LayerGraph& graph, const Op& op) {
  return attention_bytes(graph.at(op.in[1]), op, true);
}

int64_t attention_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const int64_t tokens = graph.at(op.in[0]).dims[0];
  return gpu_attention_workspace(tokens, op.attrs.get<AttentionAttrs>(), false).bytes;
}

int64_t attention_dgrad_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const int64_t tokens = graph.at(op.in[1]).dims[0];
  return gpu_attention_workspace(tokens, op.attrs.get<AttentionAttrs>(), true).bytes;
}

/// Returns an upper bound on the workspace of cuDNN's gradient: that of the largest part of
/// cudnn_parts(), of sequences or of documents, and some KiB for lists and marks.
int64_t attention_dgrad_library_bytes(const LayerGraph& graph, const Op& op) {
  constexpr int64_t kLists = int64_t{1} << 20;
  const auto& attrs = op.attrs.get<AttentionAttrs>();
  const Value& qkv = graph.at(op.in[1]);
  if (!cudnn_can_compute(attrs, qkv.dtype)) return 0;
  int64_t largest = 0;
  for (const bool documents : {false, true})
    for (const CudnnPart& part : cudnn_parts(attrs, qkv.dims[0], documents))
      largest = std::max(largest, cudnn_workspace_bytes(attrs, part));
  return largest + kLists;
}

void emit_attention_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId da = backward.result_gradient(op.out[0]);
  const ValueId qkv = backward.backward_value(op.in[0]);
  const ValueId a = backward.backward_value(op.out[0]);
  const ValueId lse = backward.backward_value(op.out[1]);
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(OpKind::kAttentionDgrad, {da, qkv, a, lse, op.in[1]}, {dx}, op.attrs);
  backward.add_term(op.in[0], dx);
}

}  // namespace

ValueId ops::attention(GraphBuilder& g, ValueId qkv, ValueId starts, AttentionAttrs attrs) {
  attrs.sequence_length = g.sequence_length();
  const int64_t width = (attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size;
  require(g.at(qkv).dims == Dims{g.tokens(), width}, "attention reads q, k and v of each token");
  require(attrs.query_heads % attrs.kv_heads == 0, "query heads are a multiple of key/value heads");
  const ValueId a =
      g.add_temporary("attention.out", {g.tokens(), attrs.query_heads * attrs.head_size});
  const ValueId lse = g.add_value("attention.lse", g.statistics_dtype(),
                                  {attrs.query_heads, g.tokens()}, ValueRole::kTemp);
  g.emit(OpKind::kAttention, {qkv, starts}, {a, lse}, attrs);
  return a;
}

namespace specs {

constinit const OpSpec attention{
    .name = "attention",
    .shapes = "N,(H+2K)d N -> N,Hd H,N",
    .split_along = "H",
    .add_letter_sizes = add_attention_letters,
    .work_class = WorkClass::kAttention,
    .work = attention_work,
    .workspace = attention_workspace_bytes,
    .gpu_workspace = attention_gpu_workspace,
    .gradients = emit_attention_gradients,
};

constinit const OpSpec attention_dgrad{
    .name = "attention_dgrad",
    .shapes = "N,Hd N,(H+2K)d N,Hd H,N N -> N,(H+2K)d",
    .split_along = "H",
    .add_letter_sizes = add_attention_letters,
    .gpu_library_bytes = attention_dgrad_library_bytes,
    .work_class = WorkClass::kAttention,
    .work = attention_dgrad_work,
    .workspace = attention_dgrad_workspace_bytes,
    .gpu_workspace = attention_dgrad_gpu_workspace,
};

}  // namespace specs

}  // namespace ftrun
