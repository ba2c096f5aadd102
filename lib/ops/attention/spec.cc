#include "ops/attention/attention.h"

#include <map>
#include <string>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/derivation.h"
#include "graph/layer_graph.h"
#include "graph/op_parts.h"
#include "ops/attention/gpu_workspace.h"
#include "ops/attention/workspace.h"
#include "ops/heads.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void attention_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  const auto& a = op.attrs.get<AttentionAttrs>();
  add_head_letters(a.query_heads, a.kv_heads, a.head_size, letters);
}

/// Pairs (query, key) that causal attention scores, summed over rows and heads, times 2 d.
double score_flops(const LayerGraph& graph, const Op& op, ValueId qkv) {
  const auto& attrs = op.attrs.get<AttentionAttrs>();
  const double rows = static_cast<double>(graph.at(qkv).dims[0] / attrs.row_tokens);
  const double tokens = static_cast<double>(attrs.row_tokens);
  double pairs = tokens * (tokens + 1) / 2;
  if (attrs.window > 0 && attrs.window < attrs.row_tokens) {
    const double hidden = tokens - static_cast<double>(attrs.window);
    pairs -= hidden * (hidden + 1) / 2;
  }
  return 2.0 * rows * pairs * static_cast<double>(attrs.query_heads * attrs.head_size);
}

double attention_flops(const LayerGraph& graph, const Op& op) {
  return 2.0 * score_flops(graph, op, op.in[0]);
}

// Scores again, then the gradients by P, v, q and k.
double attention_dgrad_flops(const LayerGraph& graph, const Op& op) {
  return 5.0 * score_flops(graph, op, op.in[1]);
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

/// cuDNN's gradient of attention keeps that of the queries in fp32, and sums of a query, in up to
/// two copies.
int64_t attention_dgrad_library_bytes(const LayerGraph& graph, const Op& op) {
  const auto& attrs = op.attrs.get<AttentionAttrs>();
  const int64_t tokens = graph.at(op.in[0]).dims[0];
  return 2 * tokens * attrs.query_heads * (attrs.head_size + 1) * dtype_bytes(DType::kF32);
}

void attention_gradients(Derivation& d, const Op& op) {
  const ValueId da = d.result_gradient(op.out[0]);
  const ValueId qkv = d.needed(op.in[0]);
  const ValueId a = d.needed(op.out[0]);
  const ValueId lse = d.needed(op.out[1]);
  const ValueId dx = d.new_gradient(op.in[0]);
  d.emit_input_grad(OpKind::kAttentionDgrad, {da, qkv, a, lse, op.in[1]}, {dx}, op.attrs);
  d.add_term(op.in[0], dx);
}

}  // namespace

ValueId ops::attention(GraphBuilder& g, ValueId qkv, ValueId starts, AttentionAttrs attrs) {
  attrs.row_tokens = g.row_tokens();
  const int64_t width = (attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size;
  require(g.at(qkv).dims == Dims{g.tokens(), width}, "attention operand");
  require(attrs.query_heads % attrs.kv_heads == 0, "query heads are a multiple of key/value heads");
  const ValueId a = g.temp("attention.out", {g.tokens(), attrs.query_heads * attrs.head_size});
  const ValueId lse = g.add_value("attention.lse", g.statistics(), {attrs.query_heads, g.tokens()},
                                  ValueRole::kTemp);
  g.emit(OpKind::kAttention, {qkv, starts}, {a, lse}, attrs);
  return a;
}

namespace specs {

constinit const OpSpec attention{
    .name = "attention",
    .shapes = "N,Q N -> N,A H,N",
    .shared_by = "H",
    .letters = attention_letters,
    .flops = attention_flops,
    .workspace = attention_workspace_bytes,
    .gpu_workspace = attention_gpu_workspace,
    .gradients = attention_gradients,
};

constinit const OpSpec attention_dgrad{
    .name = "attention_dgrad",
    .shapes = "N,A N,Q N,A H,N N -> N,Q",
    .shared_by = "H",
    .letters = attention_letters,
    .gpu_library_bytes = attention_dgrad_library_bytes,
    .flops = attention_dgrad_flops,
    .workspace = attention_dgrad_workspace_bytes,
    .gpu_workspace = attention_dgrad_gpu_workspace,
};

}  // namespace specs

}  // namespace ftrun
