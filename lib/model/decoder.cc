// Letters: N = B*T tokens, D hidden, H query heads, K key/value heads, d head size, F feed-forward,
// V vocabulary rows, t tensor-parallel ranks.
#include "model/decoder.h"

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/op_spec.h"
#include "model/rope.h"
#include "model/tensor_split.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/collective/collective.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/workspace.h"
#include "ops/dora/dora.h"
#include "ops/dropout/dropout.h"
#include "ops/embedding/embedding.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/norm/norm.h"
#include "ops/qk_norm/qk_norm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"

namespace ftrun {
namespace {

// Adds tensors in the order of a Hugging Face state dict: a module's weight, then its bias.
class TensorTable {
 public:
  TensorTable(std::vector<TensorInfo>& tensors, const TensorSplit& split, LoraInit begin)
      : tensors_(tensors), split_(split), begin_(begin) {}

  TensorId add(TensorInfo tensor) {
    tensors_.push_back(std::move(tensor));
    return static_cast<TensorId>(tensors_.size() - 1);
  }
  TensorId rows(std::string name, Dims shape, int copies = 1) {
    return add(split_rows(std::move(name), std::move(shape), split_, copies));
  }
  /// A [rank, inputs] and B [outputs, rank] of a product that a rank makes some columns of, or a term of from some of its
  /// inputs.
  struct Lora {
    TensorId a, b;
    /// -1: it has none.
    TensorId magnitudes = -1;
  };
  /// A product's adapter, and whether it has magnitudes.
  struct LoraShape {
    int64_t out, in;
    LowRank low;
    bool magnitudes;
  };
  Lora column_parallel_lora(const std::string& module, const LoraShape& s, int copies = 1) {
    const bool term = gradient_is_term(OpKind::kLoraUp, 1, 'O');
    Lora ids{add_a(replicated(lora_a_name(module), {s.low.rank, s.in}, split_, term)),
             add_b(split_rows(lora_b_name(module), {s.out, s.low.rank}, split_, copies))};
    if (s.magnitudes) ids.magnitudes = add_magnitudes(split_rows(lora_magnitude_name(module), {s.out}, split_, copies), s.low);
    return ids;
  }
  Lora row_parallel_lora(const std::string& module, const LoraShape& s) {
    const bool term = result_is_term(OpKind::kLinear, 0, 'I');
    Lora ids{add_a(split_columns(lora_a_name(module), {s.low.rank, s.in}, split_)),
             add_b(replicated(lora_b_name(module), {s.out, s.low.rank}, split_, term))};
    if (s.magnitudes) ids.magnitudes = add_magnitudes(replicated(lora_magnitude_name(module), {s.out}, split_, term), s.low);
    return ids;
  }
  /// Of tokens, which are shared out with sequence parallelism.
  TensorId norm(std::string name, int64_t size) {
    const bool term = split_.sequence && gradient_is_term(OpKind::kRmsNorm, 1, 'N');
    return add(replicated(std::move(name), {size}, split_, term));
  }
  TensorId head_norm(std::string name, int64_t size) {
    return add(replicated(std::move(name), {size}, split_, gradient_is_term(OpKind::kQkNorm, 1, 'H')));
  }

  struct Linear {
    TensorId weight;
    TensorId bias = -1;
  };
  /// Each rank makes some of the results.
  Linear column_parallel(const std::string& module, int64_t out, int64_t in, bool bias,
                         int copies = 1) {
    Linear ids{rows(module + ".weight", {out, in}, copies)};
    if (bias) ids.bias = rows(module + ".bias", {out}, copies);
    return ids;
  }
  /// Each rank makes a share of every result, from some of the inputs.
  Linear row_parallel(const std::string& module, int64_t out, int64_t in, bool bias) {
    Linear ids{add(split_columns(module + ".weight", {out, in}, split_))};
    const bool term = gradient_is_term(OpKind::kLinear, 2, 'I');
    if (bias) ids.bias = add(replicated(module + ".bias", {out}, split_, term));
    return ids;
  }

 private:
  TensorId add_a(TensorInfo tensor) {
    const auto rank = static_cast<double>(tensor.shape[0]);
    tensor.initial = begin_ == LoraInit::kGaussian     ? Initial{Initial::Kind::kNormal, 1.0 / rank}
                     : begin_ == LoraInit::kOrthogonal ? Initial{Initial::Kind::kOrthogonalA, kOrthogonalSize}
                                                        : as_linear(tensor);
    return add(std::move(tensor));
  }
  TensorId add_b(TensorInfo tensor) {
    tensor.initial = begin_ == LoraInit::kBothUniform  ? as_linear(tensor)
                     : begin_ == LoraInit::kOrthogonal ? Initial{Initial::Kind::kOrthogonalB, kOrthogonalSize}
                                                        : Initial{Initial::Kind::kZero};
    return add(std::move(tensor));
  }
  TensorId add_magnitudes(TensorInfo tensor, const LowRank& low) {
    tensor.initial = {Initial::Kind::kRowLengths, low.scale};
    return add(std::move(tensor));
  }
  /// PEFT's.
  static constexpr double kOrthogonalSize = 0.1;
  /// torch.nn.Linear's weight: Kaiming uniform with a = sqrt(5), which is 1 / sqrt(inputs).
  static Initial as_linear(const TensorInfo& tensor) {
    return {Initial::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(tensor.shape[1]))};
  }

  std::vector<TensorInfo>& tensors_;
  TensorSplit split_;
  LoraInit begin_;
};

struct BlockTensors {
  TensorTable::Linear q, k, v, o, gate, up, down;
  std::array<TensorTable::Lora, kProjections> lora;
  TensorId q_norm = -1, k_norm = -1, input_norm = -1, post_norm = -1;
};

// `c` is of the whole model.
BlockTensors add_block_tensors(TensorTable& table, const ModelConfig& c, int kv_copies,
                               int64_t layer, const BlockAdapter& adapter) {
  const std::string prefix = cat("model.layers.", layer, ".");
  const std::string attn = prefix + "self_attn.";
  const int64_t q_rows = c.query_heads * c.head_size;
  const int64_t kv_rows = c.kv_heads * c.head_size;
  BlockTensors ids;
  ids.q = table.column_parallel(attn + "q_proj", q_rows, c.hidden, c.qkv_bias);
  ids.k = table.column_parallel(attn + "k_proj", kv_rows, c.hidden, c.qkv_bias, kv_copies);
  ids.v = table.column_parallel(attn + "v_proj", kv_rows, c.hidden, c.qkv_bias, kv_copies);
  ids.o = table.row_parallel(attn + "o_proj", c.hidden, q_rows, c.attention_out_bias);
  if (c.qk_norm) ids.q_norm = table.head_norm(attn + "q_norm.weight", c.head_size);
  if (c.qk_norm) ids.k_norm = table.head_norm(attn + "k_norm.weight", c.head_size);
  ids.gate = table.column_parallel(prefix + "mlp.gate_proj", c.feed_forward, c.hidden, c.mlp_bias);
  ids.up = table.column_parallel(prefix + "mlp.up_proj", c.feed_forward, c.hidden, c.mlp_bias);
  ids.down = table.row_parallel(prefix + "mlp.down_proj", c.hidden, c.feed_forward, c.mlp_bias);
  ids.input_norm = table.norm(prefix + "input_layernorm.weight", c.hidden);
  ids.post_norm = table.norm(prefix + "post_attention_layernorm.weight", c.hidden);
  const auto add = [&](Projection p, int64_t out, int64_t in, bool by_columns, int copies = 1) {
    const TensorTable::LoraShape shape{out, in, adapter.at(p), adapter.magnitudes};
    if (shape.low.rank == 0) return;
    const std::string module = projection_module(layer, p);
    ids.lora[static_cast<size_t>(p)] =
        by_columns ? table.column_parallel_lora(module, shape, copies) : table.row_parallel_lora(module, shape);
  };
  add(Projection::kQ, q_rows, c.hidden, true);
  add(Projection::kK, kv_rows, c.hidden, true, kv_copies);
  add(Projection::kV, kv_rows, c.hidden, true, kv_copies);
  add(Projection::kO, c.hidden, q_rows, false);
  add(Projection::kGate, c.feed_forward, c.hidden, true);
  add(Projection::kUp, c.feed_forward, c.hidden, true);
  add(Projection::kDown, c.hidden, c.feed_forward, false);
  return ids;
}

// The parameters of a block's graph, -1 where the config has none.
struct BlockParams {
  /// A product's low-rank adapters: A of all its parts that have one in one matrix, and each one's B.
  struct Lora {
    ValueId down = -1;
    std::vector<ValueId> up;
    LoraAttrs attrs;
    std::vector<Projection> parts;
    /// None: probability 0.
    DropoutAttrs dropout;
    /// Of all parts in one vector; -1: they have none.
    ValueId magnitudes = -1;
    DoraAttrs dora;
  };
  Lora qkv_lora, o_lora, gate_up_lora, down_lora;
  ValueId input_norm = -1, qkv = -1, qkv_bias = -1, q_norm = -1, k_norm = -1, o = -1, o_bias = -1;
  ValueId post_norm = -1, gate_up = -1, gate_up_bias = -1, down = -1, down_bias = -1;
};

/// A part of a product's results, by its columns.
struct ProductPart {
  Projection projection;
  int64_t columns;
};

/// In the order in which a step reads them: behind the product's own parameters.
BlockParams::Lora add_lora_params(GraphBuilder& g, const std::string& name, int64_t inputs,
                                  const std::vector<ProductPart>& parts, const BlockAdapter& adapter,
                                  const DropoutAttrs& dropout) {
  BlockParams::Lora lora;
  lora.dropout = dropout;
  int64_t ranks = 0, column = 0;
  for (const ProductPart& part : parts) {
    if (const LowRank& low = adapter.at(part.projection); low.rank > 0) {
      ranks += low.rank;
      lora.attrs.parts.push_back({column, low.scale});
      lora.dora.parts.push_back({column, part.columns});
      lora.parts.push_back(part.projection);
    }
    column += part.columns;
  }
  if (ranks == 0) return lora;
  lora.down = g.param(name + ".lora_A", {ranks, inputs});
  for (const ProductPart& part : parts)
    if (const LowRank& low = adapter.at(part.projection); low.rank > 0)
      lora.up.push_back(g.param(cat(projection_name(part.projection), ".lora_B"), {part.columns, low.rank}));
  if (!adapter.magnitudes) return lora;
  int64_t rows = 0;
  for (const DoraAttrs::Part& part : lora.dora.parts) rows += part.columns;
  lora.magnitudes = g.fp32_param(name + ".magnitudes", {rows});
  return lora;
}

/// `dropout`: of what adapters multiply. Parts of one product, whose A's are one matrix, have the same mask.
BlockParams add_block_params(GraphBuilder& g, const ModelConfig& c, const BlockAdapter& adapter, double dropout,
                             const TensorSplit& split) {
  const int64_t q_rows = c.query_heads * c.head_size;
  const int64_t qkv_rows = q_rows + 2 * c.kv_heads * c.head_size;
  BlockParams p;
  p.input_norm = g.param("input_norm.weight", {c.hidden});
  p.qkv = g.product_weight("qkv.weight", {qkv_rows, c.hidden});
  if (c.qkv_bias) p.qkv_bias = g.param("qkv.bias", {qkv_rows});
  if (c.qk_norm) p.q_norm = g.param("q_norm.weight", {c.head_size});
  if (c.qk_norm) p.k_norm = g.param("k_norm.weight", {c.head_size});
  p.o = g.product_weight("o.weight", {c.hidden, q_rows});
  if (c.attention_out_bias) p.o_bias = g.param("o.bias", {c.hidden});
  p.post_norm = g.param("post_norm.weight", {c.hidden});
  p.gate_up = g.product_weight("gate_up.weight", {2 * c.feed_forward, c.hidden});
  if (c.mlp_bias) p.gate_up_bias = g.param("gate_up.bias", {2 * c.feed_forward});
  p.down = g.product_weight("down.weight", {c.hidden, c.feed_forward});
  if (c.mlp_bias) p.down_bias = g.param("down.bias", {c.hidden});
  const int64_t kv_rows = c.kv_heads * c.head_size;
  // The numbers of sites decide masks: a run goes on with the same ones.
  p.qkv_lora = add_lora_params(g, "qkv", c.hidden,
                               {{Projection::kQ, q_rows}, {Projection::kK, kv_rows}, {Projection::kV, kv_rows}}, adapter,
                               {dropout, 0, 0});
  p.o_lora = add_lora_params(g, "o", q_rows, {{Projection::kO, c.hidden}}, adapter, {dropout, 1, split.index * q_rows});
  p.gate_up_lora = add_lora_params(g, "gate_up", c.hidden,
                                   {{Projection::kGate, c.feed_forward}, {Projection::kUp, c.feed_forward}}, adapter,
                                   {dropout, 2, 0});
  p.down_lora = add_lora_params(g, "down", c.feed_forward, {{Projection::kDown, c.hidden}}, adapter,
                                {dropout, 3, split.index * c.feed_forward});
  return p;
}

// The products of a layer as one of the tensor-parallel ranks computes them, with what the ranks
// exchange around them.
class SplitProducts {
 public:
  SplitProducts(GraphBuilder& g, const TensorSplit& split) : g_(g), split_(split) {}

  /// All tokens of what is split by tokens.
  ValueId all_tokens(ValueId x) { return by_tokens() ? ops::all_gather(g_, x, split_.degree) : x; }

  /// y = x w^T + b, of which each rank makes some columns.
  ValueId column_parallel(ValueId x, ValueId weight, ValueId bias, const BlockParams::Lora& lora) {
    const int ranks = gradient_is_term(OpKind::kLinear, 0, 'O') ? split_.degree : 1;
    const LinearAttrs attrs{.gradient_ranks = ranks};
    const ValueId all = all_tokens(x);
    if (lora.magnitudes >= 0) return with_magnitudes(all, weight, bias, lora, attrs, 'O');
    return adapted(all, ops::linear(g_, all, weight, bias, attrs), lora, attrs);
  }

  /// The sum over the ranks of x w^T, each of some columns of x and w, + b, which the first one
  /// adds.
  ValueId row_parallel(ValueId x, ValueId weight, ValueId bias, const BlockParams::Lora& lora) {
    const bool adds_bias = bias < 0 || split_.index == 0;
    const LinearAttrs attrs{.adds_bias = adds_bias};
    const ValueId y = lora.magnitudes >= 0
                          ? with_magnitudes(x, weight, bias, lora, attrs, 'I')
                          : adapted(x, ops::linear(g_, x, weight, bias, attrs), lora, attrs);
    return whole(OpKind::kLinear, 'I', y);
  }

  /// Result `x` of an operation that the ranks share out along `letter`: their sum where each made a
  /// term of it, by tokens where hidden states are.
  ValueId whole(OpKind kind, char letter, ValueId x) {
    if (split_.degree == 1 || !result_is_term(kind, 0, letter)) return x;
    return by_tokens() ? ops::reduce_scatter(g_, x, split_.degree)
                       : ops::all_reduce(g_, x, split_.degree);
  }

 private:
  ValueId adapted(ValueId x, ValueId y, const BlockParams::Lora& lora, const LinearAttrs& attrs) {
    if (lora.up.empty()) return y;
    const ValueId kept = lora.dropout.probability > 0 ? ops::dropout(g_, x, lora.dropout) : x;
    return ops::lora(g_, kept, y, lora.down, lora.up, lora.attrs, attrs);
  }
  /// (x' w^T + scale x' a^T b^T) m / l + (x - x') w^T + bias, where x' is x after dropout, l the lengths of the rows of
  /// w + scale b a, and the third term is there with dropout alone. `shared_by`: the letter of w's columns where ranks have some
  /// of them each, of its rows where they have those.
  ValueId with_magnitudes(ValueId x, ValueId weight, ValueId bias, const BlockParams::Lora& lora, const LinearAttrs& attrs, char shared_by) {
    const LinearAttrs product{.gradient_ranks = attrs.gradient_ranks};
    ValueId kept = x, rest = -1;
    if (lora.dropout.probability > 0) {
      DropoutAttrs dropout = lora.dropout;
      dropout.gradient_ranks = attrs.gradient_ranks;
      dropout.rest = true;
      rest = ops::linear(g_, ops::dropout(g_, x, dropout), weight, -1,
                         {.gradient_ranks = attrs.gradient_ranks, .weight_gradient = false});
      dropout.rest = false;
      kept = ops::dropout(g_, x, dropout);
    }
    const ValueId of_base = ops::linear(g_, kept, weight, -1, product);
    const ValueId z = ops::lora(g_, kept, of_base, lora.down, lora.up, lora.attrs, product);
    ValueId squares = ops::dora_squared_lengths(g_, weight, lora.down, lora.up, lora.attrs);
    if (split_.degree > 1 && result_is_term(OpKind::kDoraSquaredLengths, 0, shared_by))
      squares = ops::all_reduce(g_, squares, split_.degree);
    DoraAttrs dora = lora.dora;
    dora.adds_bias = attrs.adds_bias;
    const ValueId y = ops::dora_scale(g_, z, squares, lora.magnitudes, bias, dora);
    return rest >= 0 ? ops::add(g_, rest, y) : y;
  }
  bool by_tokens() const { return split_.degree > 1 && split_.sequence; }

  GraphBuilder& g_;
  TensorSplit split_;
};

// Tokens of the hidden states that a rank holds.
int64_t hidden_tokens(const BatchShape& batch, const TensorSplit& split) {
  return split.sequence ? batch.tokens() / split.degree : batch.tokens();
}

ValueId build_attention(GraphBuilder& g, SplitProducts& products, const ModelConfig& c,
                        const BlockParams& p, ValueId norm, ValueId rope, ValueId starts,
                        AttentionAttrs attrs) {
  const HeadAttrs heads{c.query_heads, c.kv_heads, c.head_size, c.norm_epsilon};
  ValueId qkv = products.column_parallel(norm, p.qkv, p.qkv_bias, p.qkv_lora);
  if (c.qk_norm) qkv = ops::qk_norm(g, qkv, p.q_norm, p.k_norm, heads);
  return products.row_parallel(ops::attention(g, ops::rope(g, qkv, rope, heads), starts, attrs),
                               p.o, p.o_bias, p.o_lora);
}

struct BlockGraph {
  LayerGraph graph;
  BlockParams params;
};

// `c` is of one rank; `window` is 0 when it does not shorten rows of T tokens.
BlockGraph build_block(const ModelConfig& c, const BatchShape& batch, int64_t window, bool train,
                       const ModelDtypes& dtypes, const RecomputePolicy& recompute,
                       const TensorSplit& split, const BlockAdapter& adapter, double dropout) {
  const int64_t n = batch.tokens();
  GraphBuilder g(window == 0 ? "block" : cat("block.window", window), n, batch.row_tokens,
                 dtypes);
  SplitProducts products(g, split);
  const ValueId x =
      g.input(Port::kHidden, dtypes.compute, {hidden_tokens(batch, split), c.hidden}, "x");
  const ValueId rope = g.input(Port::kRope, DType::kF32, {n, c.head_size}, "rope");
  const ValueId starts = g.input(Port::kStarts, DType::kI32, {n}, "starts");
  const BlockParams p = add_block_params(g, c, adapter, train ? dropout : 0, split);
  const AttentionAttrs attrs{
      .query_heads = c.query_heads,
      .kv_heads = c.kv_heads,
      .head_size = c.head_size,
      .row_tokens = batch.row_tokens,
      .scale = c.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(c.head_size))),
      .window = window};
  const ValueId norm = ops::rms_norm(g, x, p.input_norm, c.norm_epsilon);
  const ValueId attention = build_attention(g, products, c, p, norm, rope, starts, attrs);
  const ValueId attended = ops::scale(g, attention, c.residual_scale);
  const auto middle = ops::add_rms_norm(g, x, attended, p.post_norm, c.norm_epsilon);
  const ValueId gate_up = products.column_parallel(middle.norm, p.gate_up, p.gate_up_bias, p.gate_up_lora);
  const ValueId down = products.row_parallel(ops::gated_activation(g, gate_up, Activation::kSilu),
                                             p.down, p.down_bias, p.down_lora);
  g.output(ops::add(g, middle.sum, ops::scale(g, down, c.residual_scale)), Port::kHidden);
  return {g.finish(train, recompute), p};
}

std::vector<GraphParam> bind_block(const BlockParams& p, const BlockTensors& t, const ModelDtypes& dtypes) {
  std::vector<GraphParam> used;
  BlockPart part = BlockPart::kAttention;
  const auto add = [&](ValueId value, std::vector<TensorId> tensors) {
    if (value >= 0) used.push_back({value, std::move(tensors), part});
  };
  const auto add_product = [&](ValueId value, std::vector<TensorId> tensors) {
    used.push_back({value, std::move(tensors), part, static_cast<bool>(dtypes.packed)});
  };
  const auto add_lora = [&](const BlockParams::Lora& lora) {
    std::vector<TensorId> down;
    for (const Projection projection : lora.parts) down.push_back(t.lora[static_cast<size_t>(projection)].a);
    add(lora.down, std::move(down));
    for (size_t i = 0; i < lora.up.size(); ++i) add(lora.up[i], {t.lora[static_cast<size_t>(lora.parts[i])].b});
    if (lora.magnitudes < 0) return;
    add(lora.magnitudes, {});
    for (const Projection projection : lora.parts) used.back().tensors.push_back(t.lora[static_cast<size_t>(projection)].magnitudes);
    used.back().fp32 = dtype_bytes(dtypes.compute) < dtype_bytes(DType::kF32);
  };
  add(p.input_norm, {t.input_norm});
  add_product(p.qkv, {t.q.weight, t.k.weight, t.v.weight});
  add(p.qkv_bias, {t.q.bias, t.k.bias, t.v.bias});
  add_lora(p.qkv_lora);
  add(p.q_norm, {t.q_norm});
  add(p.k_norm, {t.k_norm});
  add_product(p.o, {t.o.weight});
  add(p.o_bias, {t.o.bias});
  add_lora(p.o_lora);
  part = BlockPart::kMlp;
  add(p.post_norm, {t.post_norm});
  add_product(p.gate_up, {t.gate.weight, t.up.weight});
  add(p.gate_up_bias, {t.gate.bias, t.up.bias});
  add_lora(p.gate_up_lora);
  add_product(p.down, {t.down.weight});
  add(p.down_bias, {t.down.bias});
  add_lora(p.down_lora);
  return used;
}

// Builds layers and graphs into one description.
class DecoderBuilder {
 public:
  DecoderBuilder(const ModelConfig& config, const BatchShape& batch, Mode mode,
                 const ModelDtypes& dtypes, const RecomputeOptions& recompute,
                 const TensorSplit& split, const Adapter& adapter)
      : c_(config),
        local_(local_config(config, split)),
        split_(split),
        batch_(batch),
        mode_(mode),
        dtypes_(dtypes),
        recompute_(recompute),
        table_(out_.tensors, split, adapter.begin) {
    out_.family = c_.family;
    out_.vocab_rows = c_.vocab_rows;
    out_.hidden = c_.hidden;
    out_.feed_forward = c_.feed_forward;
    out_.block_count = c_.layers;
    out_.query_heads = c_.query_heads;
    out_.kv_heads = c_.kv_heads;
    out_.head_size = c_.head_size;
    out_.tied = c_.tied;
    out_.batch = batch_;
    out_.mode = mode_;
    out_.dtypes = dtypes_;
    out_.split = split_;
    out_.adapter = adapter;
  }

  ModelDescription build() {
    const TensorId table = table_.rows("model.embed_tokens.weight", {c_.vocab_rows, c_.hidden});
    add_embedding(table);
    for (int64_t i = 0; i < c_.layers; ++i) add_block(i);
    const TensorId norm = table_.norm("model.norm.weight", c_.hidden);
    add_head(norm, c_.tied ? table : table_.rows("lm_head.weight", {c_.vocab_rows, c_.hidden}));
    add_rope_table();
    return std::move(out_);
  }

 private:
  bool train() const { return mode_ == Mode::kTrain; }

  int add_graph(LayerGraph graph) {
    out_.graphs.push_back(std::move(graph));
    return static_cast<int>(out_.graphs.size() - 1);
  }

  void add_embedding(TensorId table) {
    const int64_t n = batch_.tokens();
    GraphBuilder g("embed", n, batch_.row_tokens, dtypes_);
    const ValueId tokens = g.input(Port::kTokens, DType::kI32, {n}, "tokens");
    const ValueId positions = positions_input(g);
    const ValueId weight = g.param("embed.weight", {local_.vocab_rows, c_.hidden});
    RowsAttrs rows;
    if (split_.degree > 1) rows = {split_.index * local_.vocab_rows, c_.vocab_rows};
    const ValueId x =
        SplitProducts(g, split_).whole(OpKind::kEmbed, 'V', ops::embed(g, tokens, weight, rows));
    g.output(ops::scale(g, x, c_.embedding_scale), Port::kHidden);
    output_rope_table(g, positions);
    out_.layers.push_back(
        {"embed", LayerKind::kEmbedding, add_graph(g.finish(train())), {{weight, {table}}}});
  }

  void add_rope_table() {
    GraphBuilder g("rope", batch_.tokens(), batch_.row_tokens, dtypes_);
    output_rope_table(g, positions_input(g));
    out_.rope_graph = add_graph(g.finish(train()));
  }

  ValueId positions_input(GraphBuilder& g) const {
    return g.input(Port::kPositions, DType::kI32, {batch_.tokens()}, "positions");
  }

  void output_rope_table(GraphBuilder& g, ValueId positions) const {
    g.output(ops::rope_table(g, positions, inverse_frequencies(c_.rope, c_.head_size), 1.0),
             Port::kRope);
  }

  void add_block(int64_t index) {
    const int64_t asked = c_.windows[static_cast<size_t>(index)];
    const int64_t window = asked >= batch_.row_tokens ? 0 : asked;
    const RecomputePolicy recompute = recompute_.of_block(index);
    const BlockAdapter adapter = out_.adapter.block(index);
    const std::tuple<int64_t, RecomputeLevel, BlockAdapter> key{window, recompute.level, adapter};
    auto it = blocks_.find(key);
    if (it == blocks_.end()) {
      BlockGraph made = build_block(local_, batch_, window, train(), dtypes_, recompute, split_, adapter,
                                    out_.adapter.dropout);
      const Shared shared{add_graph(std::move(made.graph)), made.params};
      it = blocks_.emplace(key, shared).first;
    }
    const BlockTensors tensors = add_block_tensors(table_, c_, kv_copies(c_, split_), index, adapter);
    out_.layers.push_back({cat("layers.", index), LayerKind::kBlock, it->second.graph,
                           bind_block(it->second.params, tensors, dtypes_)});
  }

  void add_head(TensorId norm_tensor, TensorId weight_tensor) {
    const int64_t n = batch_.tokens();
    GraphBuilder g("head", n, batch_.row_tokens, dtypes_);
    const ValueId x =
        g.input(Port::kHidden, dtypes_.compute, {hidden_tokens(batch_, split_), c_.hidden}, "x");
    const ValueId labels =
        mode_ == Mode::kLogits ? -1 : g.input(Port::kLabels, DType::kI32, {n}, "labels");
    const ValueId norm = g.param("norm.weight", {c_.hidden});
    const ValueId weight = g.param("lm_head.weight", {local_.vocab_rows, c_.hidden});
    // The product is linear: its operand takes the scale, and logits never are whole in memory.
    const ValueId scaled =
        ops::scale(g, ops::rms_norm(g, x, norm, c_.norm_epsilon), c_.logit_scale);
    const ValueId y = SplitProducts(g, split_).all_tokens(scaled);
    CrossEntropyAttrs attrs{.with_gradients = train()};
    if (dtypes_.kernels == Kernels::kGpu)
      attrs.chunk_tokens = gpu_head_chunk(local_.vocab_rows, dtype_bytes(dtypes_.compute));
    const bool whole = split_.degree == 1;
    if (mode_ == Mode::kLogits) {
      const ValueId logits = ops::linear(g, y, weight);
      g.output(whole ? logits : ops::all_gather_blocks(g, logits, split_.degree), Port::kLogits);
    } else if (whole) {
      ops::linear_cross_entropy(g, y, weight, labels, attrs);
    } else {
      ops::vocabulary_cross_entropy(g, y, weight, labels, attrs, split_.degree, split_.index);
    }
    out_.layers.push_back({"head",
                           LayerKind::kHead,
                           add_graph(g.finish(train())),
                           {{norm, {norm_tensor}}, {weight, {weight_tensor}}}});
  }

  struct Shared {
    int graph;
    BlockParams params;
  };

  const ModelConfig& c_;
  ModelConfig local_;
  TensorSplit split_;
  BatchShape batch_;
  Mode mode_;
  ModelDtypes dtypes_;
  RecomputeOptions recompute_;
  ModelDescription out_;
  TensorTable table_;
  /// By window, what is made again, and adapters: the rest is the same in every block.
  std::map<std::tuple<int64_t, RecomputeLevel, BlockAdapter>, Shared> blocks_;
};

}  // namespace

ModelDescription build_decoder(const ModelConfig& config, const BatchShape& batch, Mode mode,
                               const ModelDtypes& dtypes, const RecomputeOptions& recompute,
                               const TensorSplit& split, const Adapter& adapter) {
  return DecoderBuilder(config, batch, mode, dtypes, recompute, split, adapter).build();
}

}  // namespace ftrun
