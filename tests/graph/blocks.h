#pragma once

#include <functional>
#include <regex>
#include <string>

#include "base/error.h"
#include "graph/builder.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/collective/collective.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/dora/dora.h"
#include "ops/dropout/dropout.h"
#include "ops/embedding/embedding.h"
#include "ops/head_norm/head_norm.h"
#include "ops/heads.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/norm/norm.h"
#include "ops/qk_norm/qk_norm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"
#include "ops/softcap/softcap.h"
#include "ops/whole_qk_norm/whole_qk_norm.h"

namespace ftrun::testing {

// The letters of the small graphs: B=2 sequences of T=4 tokens (N=8), D=16, H=4, K=2, d=4, F=24,
// V=32.

struct BlockShape {
  int64_t rows = 2;
  int64_t sequence_length = 4;
  int64_t hidden = 16;
  int64_t query_heads = 4;
  int64_t kv_heads = 2;
  int64_t head_size = 4;
  int64_t feed_forward = 24;
  int64_t vocabulary = 32;
  int64_t window = 0;
  bool biases = false;
  bool qk_norm = false;
  /// The dropout rate of the adapters' operand.
  double dropout = 0;
  RecomputePolicy recompute = {};
  ModelDtypes dtypes = {};

  int64_t tokens() const { return rows * sequence_length; }
  bool operator==(const BlockShape&) const = default;
};

/// Makes a pre-norm block of attention and gated MLP.
inline LayerGraph block_graph(const BlockShape& s, bool train = true) {
  const int64_t width = (s.query_heads + 2 * s.kv_heads) * s.head_size;
  const HeadAttrs heads{s.query_heads, s.kv_heads, s.head_size, 1e-6};
  GraphBuilder g("block", s.tokens(), s.sequence_length, s.dtypes);
  const auto bias = [&](const char* name, int64_t size) {
    return s.biases ? g.param(name, {size}) : -1;
  };
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId rope = g.input(Port::kRope, DType::kF32, {s.tokens(), s.head_size}, "rope");
  const ValueId starts = g.input(Port::kStarts, DType::kI32, {s.tokens()}, "starts");
  const ValueId norm = ops::rms_norm(g, x, g.param("n1", {s.hidden}), {1e-5});
  ValueId qkv = ops::linear(g, norm, g.param("qkv", {width, s.hidden}), bias("qkv.b", width));
  if (s.qk_norm)
    qkv = ops::qk_norm(g, qkv, g.param("wq", {s.head_size}), g.param("wk", {s.head_size}), heads);
  const ValueId attended =
      ops::attention(g, ops::rope(g, qkv, rope, {heads}), starts,
                     {s.query_heads, s.kv_heads, s.head_size, 0, 0.5, s.window});
  const ValueId o = g.param("o", {s.hidden, s.query_heads * s.head_size});
  const ValueId out = ops::linear(g, attended, o, bias("o.b", s.hidden));
  const auto middle = ops::add_rms_norm(g, x, out, g.param("n2", {s.hidden}), {1e-5});
  const ValueId gate_up = g.param("gu", {2 * s.feed_forward, s.hidden});
  const ValueId gated = ops::gated_activation(
      g, ops::linear(g, middle.norm, gate_up, bias("gu.b", 2 * s.feed_forward)), Activation::kSilu);
  const ValueId down = g.param("down", {s.hidden, s.feed_forward});
  g.output(ops::add(g, middle.sum, ops::linear(g, gated, down, bias("down.b", s.hidden))),
           Port::kHidden);
  return g.finish(train, s.recompute);
}

/// Makes a linear layer with low-rank adapters of two of its three parts, and with magnitudes and a
/// bias, as in a decoder; for one of `ranks` tensor-parallel ranks.
inline LayerGraph magnitude_graph(const BlockShape& s, bool train = true, int64_t ranks = 1) {
  const int64_t q = s.query_heads * s.head_size, kv = s.kv_heads * s.head_size, width = q + 2 * kv;
  GraphBuilder g("magnitudes", s.tokens(), s.sequence_length, s.dtypes);
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId norm = ops::rms_norm(g, x, g.param("n1", {s.hidden}), {1e-5});
  const ValueId qkv = g.param("qkv", {width, s.hidden}),
                bias = s.biases ? g.param("qkv.b", {width}) : -1;
  const ValueId down = g.param("down", {5, s.hidden});
  const std::vector<ValueId> up{g.param("q.up", {q, 2}), g.param("v.up", {kv, 3})};
  const ValueId magnitudes = g.fp32_param("m", {q + kv});
  const LoraAttrs attrs{{{0, 2.0}, {width - kv, 0.5}}};
  const LinearAttrs linear_attrs{.gradient_ranks = ranks};
  DropoutAttrs dropout{
      .probability = s.dropout, .site = 1, .returns_dropped_part = true, .gradient_ranks = ranks};
  ValueId kept = norm, rest = -1;
  if (s.dropout > 0) {
    rest = ops::linear(g, ops::dropout(g, norm, dropout), qkv, -1,
                       {.gradient_ranks = ranks, .weight_gradient = false});
    dropout.returns_dropped_part = false;
    kept = ops::dropout(g, norm, dropout);
  }
  const ValueId z = ops::lora(g, kept, ops::linear(g, kept, qkv, -1, linear_attrs), down, up, attrs,
                              linear_attrs);
  ValueId y = ops::dora_scale(g, z, ops::dora_squared_lengths(g, qkv, down, up, attrs), magnitudes,
                              bias, {{{0, q}, {width - kv, kv}}});
  if (rest >= 0) y = ops::add(g, rest, y);
  g.output(ops::add(g, x, ops::linear(g, y, g.param("o", {s.hidden, width}))), Port::kHidden);
  return g.finish(train, s.recompute);
}

/// Makes two linear layers, one after the other, the first with low-rank adapters of two of its
/// three parts.
inline LayerGraph adapter_graph(const BlockShape& s, bool train = true) {
  const int64_t width = (s.query_heads + 2 * s.kv_heads) * s.head_size,
                kv = s.kv_heads * s.head_size;
  GraphBuilder g("adapted", s.tokens(), s.sequence_length, s.dtypes);
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId norm = ops::rms_norm(g, x, g.param("n1", {s.hidden}), {1e-5});
  const ValueId qkv = ops::linear(g, norm, g.param("qkv", {width, s.hidden}));
  const LoraAttrs attrs{{{0, 2.0}, {width - kv, 0.5}}};
  const ValueId kept = s.dropout > 0 ? ops::dropout(g, norm, {s.dropout, 1, 0}) : norm;
  const ValueId all = ops::lora(
      g, kept, qkv, g.param("down", {5, s.hidden}),
      {g.param("q.up", {s.query_heads * s.head_size, 2}), g.param("v.up", {kv, 3})}, attrs);
  g.output(ops::add(g, x, ops::linear(g, all, g.param("o", {s.hidden, width}))), Port::kHidden);
  return g.finish(train, s.recompute);
}

inline LayerGraph embedding_graph(const BlockShape& s, bool train = true) {
  GraphBuilder g("embed", s.tokens(), s.sequence_length);
  const ValueId tokens = g.input(Port::kTokens, DType::kI32, {s.tokens()}, "tokens");
  const ValueId positions = g.input(Port::kPositions, DType::kI32, {s.tokens()}, "positions");
  g.output(ops::embed(g, tokens, g.param("table", {s.vocabulary, s.hidden})), Port::kHidden);
  const RopeTableAttrs angles{
      std::vector<RopeAngle>(static_cast<size_t>(s.head_size / 2), RopeAngle{0.1})};
  g.output(ops::rope_table(g, positions, angles), Port::kRope);
  return g.finish(train);
}

/// Makes norms over all query heads and over all key heads, which pass gradients on.
inline LayerGraph whole_norm_graph(const BlockShape& s, bool train = true) {
  const int64_t q = s.query_heads * s.head_size, kv = s.kv_heads * s.head_size;
  const WholeQkNormAttrs attrs{{s.query_heads, s.kv_heads, s.head_size, 1e-6}};
  GraphBuilder g("whole_norms", s.tokens(), s.sequence_length, s.dtypes);
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId qkv = ops::linear(g, x, g.param("qkv", {q + 2 * kv, s.hidden}));
  const ValueId norm = ops::whole_qk_norm(g, qkv, ops::qk_squares(g, qkv, attrs),
                                          g.param("wq", {q}), g.param("wk", {kv}), attrs);
  g.output(ops::linear(g, norm, g.param("o", {s.hidden, q + 2 * kv})), Port::kHidden);
  return g.finish(train, s.recompute);
}

/// Makes layer norms of query and key heads with separate weights, which pass gradients on.
inline LayerGraph head_norm_graph(const BlockShape& s, bool train = true) {
  const int64_t q = s.query_heads * s.head_size, kv = s.kv_heads * s.head_size;
  GraphBuilder g("head_norms", s.tokens(), s.sequence_length, s.dtypes);
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId qkv = ops::linear(g, x, g.param("qkv", {q + 2 * kv, s.hidden}));
  const ValueId norm = ops::head_norm(g, qkv, g.param("wq", {q}), g.param("wk", {kv}),
                                      {s.query_heads, s.kv_heads, s.head_size, 1e-5});
  g.output(ops::linear(g, norm, g.param("o", {s.hidden, q + 2 * kv})), Port::kHidden);
  return g.finish(train, s.recompute);
}

/// Makes a scaled residual.
inline LayerGraph scale_graph(const BlockShape& s, bool train = true) {
  GraphBuilder g("scaled", s.tokens(), s.sequence_length, s.dtypes);
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId y = ops::linear(g, x, g.param("w", {s.hidden, s.hidden}));
  g.output(ops::add(g, x, ops::scale(g, y, 0.22)), Port::kHidden);
  return g.finish(train, s.recompute);
}

/// Makes a soft cap between two linear layers.
inline LayerGraph softcap_graph(const BlockShape& s, bool train = true) {
  GraphBuilder g("capped", s.tokens(), s.sequence_length, s.dtypes);
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId y = ops::linear(g, x, g.param("w", {s.hidden, s.hidden}));
  const ValueId capped = ops::softcap(g, y, 30.0);
  g.output(ops::linear(g, capped, g.param("v", {s.hidden, s.hidden})), Port::kHidden);
  return g.finish(train, s.recompute);
}

/// Makes a pre-norm block of a plain MLP. With s.biases the layer norm has a weight and a bias, and
/// the first linear layer a bias.
inline LayerGraph plain_mlp_graph(const BlockShape& s, bool train = true,
                                  Activation kind = Activation::kGelu) {
  GraphBuilder g("plain", s.tokens(), s.sequence_length, s.dtypes);
  const auto bias = [&](const char* name, int64_t size) {
    return s.biases ? g.param(name, {size}) : -1;
  };
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId norm = ops::layer_norm(g, x, bias("n", s.hidden), bias("n.b", s.hidden), 1e-5);
  const ValueId up =
      ops::linear(g, norm, g.param("up", {s.feed_forward, s.hidden}), bias("up.b", s.feed_forward));
  const ValueId down = g.param("down", {s.hidden, s.feed_forward});
  g.output(ops::add(g, x, ops::linear(g, ops::activation(g, up, kind), down)), Port::kHidden);
  return g.finish(train, s.recompute);
}

inline LayerGraph head_graph(const BlockShape& s, bool train = true, int64_t chunk_tokens = 256) {
  GraphBuilder g("head", s.tokens(), s.sequence_length);
  const ValueId x = g.input(Port::kHidden, DType::kF32, {s.tokens(), s.hidden}, "x");
  const ValueId labels = g.input(Port::kLabels, DType::kI32, {s.tokens()}, "labels");
  const ValueId y = ops::rms_norm(g, x, g.param("n", {s.hidden}), {1e-5});
  ops::linear_cross_entropy(g, y, g.param("w", {s.vocabulary, s.hidden}), labels,
                            {.with_gradients = train, .chunk_tokens = chunk_tokens},
                            s.biases ? g.param("b", {s.vocabulary}) : -1);
  return g.finish(train);
}

/// Makes the gated MLP of one of two tensor-parallel ranks; with `sequence`, they divide the tokens
/// of the hidden states.
inline LayerGraph split_mlp_graph(const BlockShape& s, bool sequence, bool train = true) {
  GraphBuilder g("split", s.tokens(), s.sequence_length, s.dtypes);
  const int64_t held = sequence ? s.tokens() / 2 : s.tokens();
  const auto all_tokens = [&](ValueId id) {
    return sequence ? ops::all_gather(g, id, along_tensor(2)) : id;
  };
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {held, s.hidden}, "x");
  const ValueId norm = all_tokens(ops::rms_norm(g, x, g.param("n", {s.hidden}), {1e-5}));
  const ValueId gate_up = g.param("gu", {s.feed_forward, s.hidden});
  const ValueId bias = s.biases ? g.param("gu.b", {s.feed_forward}) : -1;
  const ValueId gated = ops::gated_activation(
      g, ops::linear(g, norm, gate_up, bias, {.gradient_ranks = 2}), Activation::kSilu);
  const ValueId down =
      ops::linear(g, gated, g.param("down", {s.hidden, s.feed_forward / 2}),
                  s.biases ? g.param("down.b", {s.hidden}) : -1, {.adds_bias = !s.biases});
  g.output(ops::add(g, x,
                    sequence ? ops::reduce_scatter(g, down, along_tensor(2))
                             : ops::all_reduce(g, down, along_tensor(2))),
           Port::kHidden);
  return g.finish(train, s.recompute);
}

/// Makes the head of the second of two tensor-parallel ranks.
inline LayerGraph split_head_graph(const BlockShape& s, bool sequence, bool train = true,
                                   int64_t chunk_tokens = 3) {
  GraphBuilder g("split_head", s.tokens(), s.sequence_length, s.dtypes);
  const int64_t held = sequence ? s.tokens() / 2 : s.tokens();
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {held, s.hidden}, "x");
  const ValueId labels = g.input(Port::kLabels, DType::kI32, {s.tokens()}, "labels");
  const ValueId norm = ops::rms_norm(g, x, g.param("n", {s.hidden}), {1e-5});
  ops::vocabulary_cross_entropy(g, sequence ? ops::all_gather(g, norm, along_tensor(2)) : norm,
                                g.param("w", {s.vocabulary / 2, s.hidden}), labels,
                                {.with_gradients = train, .chunk_tokens = chunk_tokens},
                                {2, 1, s.vocabulary / 2 * 2},
                                s.biases ? g.param("b", {s.vocabulary / 2}) : -1);
  return g.finish(train);
}

/// Makes a block of one of `ranks` ranks along the context axis, which exchange and shift tokens.
inline LayerGraph exchange_graph(const BlockShape& s, bool train = true, int64_t ranks = 2) {
  GraphBuilder g("exchanged", s.tokens(), s.sequence_length, s.dtypes);
  const ValueId x = g.input(Port::kHidden, s.dtypes.compute, {s.tokens(), s.hidden}, "x");
  const ValueId y = ops::linear(g, x, g.param("w", {s.hidden, s.hidden}));
  const ValueId all = ops::all_to_all(g, y, {MeshAxis::kContext, ranks});
  const ValueId norm = ops::rms_norm(g, all, g.param("n", {s.hidden}), {1e-5});
  const ValueId moved = ops::shift(g, norm, {MeshAxis::kContext, ranks, 1});
  g.output(ops::linear(g, moved, g.param("v", {s.hidden, s.hidden})), Port::kHidden);
  return g.finish(train, s.recompute);
}

/// Returns whether the interleaved backward list both computes and reads the value.
inline bool lives_in_list(const Value& value) {
  return value.role == ValueRole::kTemp || value.role == ValueRole::kDeferred ||
         value.role == ValueRole::kWorkspace;
}

inline std::string list_text(const LayerGraph& graph, const std::vector<Op>& list) {
  std::string text;
  for (const Op& op : list) text += op_text(graph, op) + "\n";
  return text;
}

/// Returns "name bytes" of each saved value, one per line.
inline std::string saved_text(const LayerGraph& graph) {
  std::string text;
  for (const ValueId id : graph.values_with_role(ValueRole::kSaved))
    text += cat(graph.at(id).name, " ", graph.at(id).bytes(), "\n");
  return text;
}

/// Returns the value with this name, which must exist.
inline ValueId value_named(const LayerGraph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.values.size(); ++i)
    if (graph.values[i].name == name) return static_cast<ValueId>(i);
  throw std::logic_error("no value " + name);
}

/// Returns the message of the internal check that failed in `body`, without its source line;
/// "nothing" if none failed.
inline std::string bug_text(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::regex_replace(error.message(),
                              std::regex("^internal error at [^ ]*:[0-9]+: (expected that )?"), "");
  }
  return "nothing";
}

}  // namespace ftrun::testing
