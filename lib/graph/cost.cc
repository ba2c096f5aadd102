#include "graph/cost.h"

#include <algorithm>

#include "graph/layer_graph.h"
#include "graph/lora_parts.h"
#include "graph/op_spec.h"

namespace ftrun {
namespace {

/// Of each row of `x` with all of w.
double product_flops(const LayerGraph& graph, ValueId x, ValueId w) {
  const double tokens = static_cast<double>(graph.at(x).dims[0]);
  return 2.0 * tokens * static_cast<double>(element_count(graph.at(w).dims));
}

/// Pairs (query, key) that causal attention scores, summed over rows and heads, times 2 d.
double score_flops(const LayerGraph& graph, const Op& op, ValueId qkv) {
  const auto& attrs = std::get<AttentionAttrs>(op.attrs);
  const double rows = static_cast<double>(graph.at(qkv).dims[0] / attrs.row_tokens);
  const double tokens = static_cast<double>(attrs.row_tokens);
  double pairs = tokens * (tokens + 1) / 2;
  if (attrs.window > 0 && attrs.window < attrs.row_tokens) {
    const double hidden = tokens - static_cast<double>(attrs.window);
    pairs -= hidden * (hidden + 1) / 2;
  }
  return 2.0 * rows * pairs * static_cast<double>(attrs.query_heads * attrs.head_size);
}

}  // namespace

namespace flops_of {

double elements(const LayerGraph& graph, const Op& op) {
  double elements = 0;
  for (const ValueId id : op.out) elements += static_cast<double>(element_count(graph.at(id).dims));
  return elements;
}

double communication(const LayerGraph&, const Op&) {
  return 0.0;
}

double linear(const LayerGraph& graph, const Op& op) {
  return product_flops(graph, op.in[0], op.in[1]);
}

double linear_wgrad(const LayerGraph& graph, const Op& op) {
  return product_flops(graph, op.in[0], op.out[0]);
}

double lora(const LayerGraph& graph, const Op& op) {
  double elements = 0;
  for (const LoraPart& part : lora_parts(graph, op)) elements += static_cast<double>(part.columns * part.rank);
  return 2.0 * static_cast<double>(graph.at(op.in[0]).dims[0]) * elements;
}

// B A of each row, and its square.
double dora_squared_lengths(const LayerGraph& graph, const Op& op) {
  double elements = 0;
  for (const LoraPart& part : lora_parts(graph, op)) elements += static_cast<double>(part.columns * (part.rank + 1));
  return 2.0 * static_cast<double>(graph.at(op.in[0]).dims[1]) * elements;
}

double attention(const LayerGraph& graph, const Op& op) {
  return 2.0 * score_flops(graph, op, op.in[0]);
}

// Scores again, then the gradients by P, v, q and k.
double attention_dgrad(const LayerGraph& graph, const Op& op) {
  return 5.0 * score_flops(graph, op, op.in[1]);
}

double linear_cross_entropy(const LayerGraph& graph, const Op& op) {
  return product_flops(graph, op.in[0], op.in[1]) * static_cast<double>(op.out.size());  // logits, dx, dw
}

double vocabulary_logits(const LayerGraph& graph, const Op& op) {
  return product_flops(graph, op.out[0], op.in[1]);
}

// The products of both gradients.
double vocabulary_cross_entropy(const LayerGraph& graph, const Op& op) {
  return op.out.size() > 1 ? 2.0 * product_flops(graph, op.in[3], op.in[1])
                           : static_cast<double>(graph.at(op.in[3]).dims[0]);
}

}  // namespace flops_of

double flops(const LayerGraph& graph, const Op& op) {
  return op_spec(op.kind).flops(graph, op);
}

int64_t traffic_bytes(const LayerGraph& graph, const Op& op) {
  int64_t bytes = 0;
  for (const ValueId id : op.in) bytes += graph.at(id).bytes();
  for (const ValueId id : op.out) bytes += graph.at(id).bytes();
  return bytes;
}

double op_price(const LayerGraph& graph, const Op& op) {
  return std::max(flops(graph, op), kFlopsPerByte * static_cast<double>(traffic_bytes(graph, op)));
}

}  // namespace ftrun
