// Letters: N = B*T tokens, D hidden, H query heads, K key/value heads, d head size, F feed-forward,
// V vocabulary rows, t tensor-parallel ranks.
#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "axes/tensor/split.h"
#include "axes/tensor/split_collectives.h"
#include "base/error.h"
#include "base/half_floats.h"
#include "base/round_up.h"
#include "base/text.h"
#include "graph/builder.h"
#include "graph/op_spec.h"
#include "model/block_parameters.h"
#include "model/linear_layers.h"
#include "model/rope_angles.h"
#include "model/tensor_table.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/workspace.h"
#include "ops/dora/dora.h"
#include "ops/dropout/dropout.h"
#include "ops/embedding/embedding.h"
#include "ops/head_norm/head_norm.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/norm/norm.h"
#include "ops/qk_norm/qk_norm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"
#include "ops/softcap/softcap.h"
#include "ops/whole_qk_norm/whole_qk_norm.h"

namespace ftrun {
namespace {

/// MatrixParams holds the parameters of one matrix of linear layers in a block's graph, with its
/// adapters.
struct MatrixParams {
  /// LoraParams holds the A of all modules with an adapter, in one matrix, and the B of each
  /// module.
  struct LoraParams {
    ValueId down = -1;
    std::vector<ValueId> up;
    LoraAttrs attrs;
    /// The linear layers of each module that has an adapter.
    std::vector<std::vector<Projection>> modules;
    /// The dropout of the adapter's input; probability 0: none.
    DropoutAttrs dropout;
    /// The value that holds all magnitudes in one vector; -1: there are none.
    ValueId magnitudes = -1;
    DoraAttrs dora;
  };
  ValueId weight = -1, bias = -1;
  std::vector<Projection> projections;
  LoraParams lora;
};

/// NormParams holds the parameters of a norm, -1 where the config has none. A norm may have no
/// parameters at all, so an std::optional<NormParams> says whether there is a norm.
struct NormParams {
  ValueId weight = -1, bias = -1;
};

NormParams add_norm_params(GraphBuilder& g, const ModelConfig& c, std::string_view name) {
  if (!c.norm_weight) return {};
  NormParams params{g.param(cat(name, ".weight"), {c.hidden})};
  if (c.has_norm_bias()) params.bias = g.param(cat(name, ".bias"), {c.hidden});
  return params;
}

double norm_weight_offset(const ModelConfig& c) {
  return c.norm == NormKind::kRmsStoredLessOne ? 1.0 : 0.0;
}

/// Emits the norm of x; returns x itself where there is no norm.
ValueId add_norm(GraphBuilder& g, const ModelConfig& c, ValueId x,
                 const std::optional<NormParams>& norm) {
  if (!norm) return x;
  if (c.norm == NormKind::kLayer)
    return ops::layer_norm(g, x, norm->weight, norm->bias, c.norm_epsilon);
  return ops::rms_norm(g, x, norm->weight, {c.norm_epsilon, norm_weight_offset(c)});
}

/// Emits x + r and its norm, which is the sum itself where there is no norm.
ops::SumAndNormValues add_sum_and_norm(GraphBuilder& g, const ModelConfig& c, ValueId x, ValueId r,
                                       const std::optional<NormParams>& norm) {
  if (c.norm == NormKind::kLayer || !norm) {
    const ValueId sum = ops::add(g, x, r);
    return {sum, add_norm(g, c, sum, norm)};
  }
  return ops::add_rms_norm(g, x, r, norm->weight, {c.norm_epsilon, norm_weight_offset(c)});
}

/// BlockParams holds the parameters of a block's graph, -1 where the config has none.
struct BlockParams {
  std::array<MatrixParams, kLinearMatrices> matrices;
  std::array<std::optional<NormParams>, kBlockNorms> norms;
  ValueId q_norm = -1, k_norm = -1;

  const MatrixParams& at(LinearMatrix matrix) const {
    return matrices[static_cast<size_t>(matrix)];
  }
  MatrixParams& at(LinearMatrix matrix) { return matrices[static_cast<size_t>(matrix)]; }
  const std::optional<NormParams>& at(BlockNorm norm) const {
    return norms[static_cast<size_t>(norm)];
  }
  std::optional<NormParams>& at(BlockNorm norm) { return norms[static_cast<size_t>(norm)]; }
};

/// RankMatrix describes the part of a matrix of linear layers that one rank computes with.
struct RankMatrix {
  LinearMatrix matrix;
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::vector<LinearLayer> linear_layers;
};

/// Returns "qkv", "o", "gate_up" or "up", "down".
std::string matrix_name(const RankMatrix& matrix) {
  std::vector<std::string> roles;
  for (const LinearLayer& linear : matrix.linear_layers)
    roles.emplace_back(role_name(linear.projection));
  return join(roles, matrix.matrix == LinearMatrix::kQkv ? "" : "_");
}

std::vector<RankMatrix> rank_matrices(const ModelConfig& whole, const TensorSplit& split) {
  std::vector<RankMatrix> matrices;
  for (const LinearLayer& linear : block_linear_layers(whole, split)) {
    if (matrices.empty() || matrices.back().matrix != linear.matrix)
      matrices.push_back({.matrix = linear.matrix, .inputs = local_inputs(linear, split)});
    matrices.back().outputs += local_outputs(linear, split);
    matrices.back().linear_layers.push_back(linear);
  }
  return matrices;
}

/// Adds the parameters of low-rank adapters in the order in which a step reads them: after the
/// linear layer's own parameters.
MatrixParams::LoraParams add_lora_params(GraphBuilder& g, const RankMatrix& matrix,
                                         const TensorNames& names, const TensorSplit& split,
                                         const BlockAdapter& adapter, const DropoutAttrs& dropout) {
  struct Module {
    std::string name;
    int64_t columns;
    LowRankAdapter low_rank;
  };
  MatrixParams::LoraParams lora;
  lora.dropout = dropout;
  std::vector<Module> modules;
  int64_t ranks = 0, column = 0;
  for (const LinearModule& module : linear_modules(names)) {
    const std::vector<LinearLayer> of_module = linear_layers_of(module, matrix.linear_layers);
    if (of_module.empty()) continue;
    int64_t columns = 0;
    for (const LinearLayer& linear : of_module) columns += local_outputs(linear, split);
    if (const LowRankAdapter& low_rank = adapter.at(of_module.front().projection);
        low_rank.rank > 0) {
      ranks += low_rank.rank;
      lora.attrs.parts.push_back({column, low_rank.scale});
      lora.dora.parts.push_back({column, columns});
      lora.modules.push_back(module.projections);
      modules.push_back({std::string(last_path_part(module.name)), columns, low_rank});
    }
    column += columns;
  }
  if (ranks == 0) return lora;
  const std::string name = matrix_name(matrix);
  lora.down = g.param(cat(name, ".lora_A"), {ranks, matrix.inputs});
  int64_t rows = 0;
  for (const Module& module : modules) {
    lora.up.push_back(g.param(module.name + ".lora_B", {module.columns, module.low_rank.rank}));
    rows += module.columns;
  }
  if (adapter.magnitudes) lora.magnitudes = g.fp32_param(cat(name, ".magnitudes"), {rows});
  return lora;
}

/// BlockParamsBuilder adds a block's parameters to its graph, row by row of kBlockParameters, and
/// then those of its adapters.
class BlockParamsBuilder {
 public:
  /// Begins a block; `whole` is the config of the whole model.
  BlockParamsBuilder(GraphBuilder& g, const ModelConfig& whole, const TensorSplit& split)
      : g_(g), whole_(whole), split_(split), matrices_(rank_matrices(whole, split)) {
    require(matrices_.size() == kLinearMatrices, "a block has every matrix of linear layers");
  }

  void operator()(BlockNorm norm) {
    if (has_norm(whole_, norm))
      params_.at(norm) = add_norm_params(g_, whole_, norm_value_name(norm));
  }

  void operator()(LinearMatrix kind) {
    const RankMatrix& matrix = matrices_[static_cast<size_t>(kind)];
    MatrixParams& params = params_.at(kind);
    const std::string name = matrix_name(matrix);
    params.weight = g_.linear_weight(name + ".weight", {matrix.outputs, matrix.inputs});
    for (const LinearLayer& linear : matrix.linear_layers)
      params.projections.push_back(linear.projection);
    if (matrix.linear_layers.front().bias) params.bias = g_.param(name + ".bias", {matrix.outputs});
  }

  void operator()(HeadNorms /*unused*/) {
    if (whole_.qk_norm == QkNorm::kNone) return;
    const ModelConfig local = local_config(whole_, split_);
    const bool has_weights_per_head = whole_.qk_norm != QkNorm::kEachHead;
    const int64_t q_heads = has_weights_per_head ? local.query_heads : 1;
    const int64_t k_heads = has_weights_per_head ? local.kv_heads : 1;
    params_.q_norm = g_.param("q_norm.weight", {q_heads * whole_.head_size});
    params_.k_norm = g_.param("k_norm.weight", {k_heads * whole_.head_size});
  }

  /// Adds the adapters of all matrices. `dropout` holds the attributes that the dropouts of all
  /// adapters' operands share; each gets its own site and first column here. Modules of one matrix
  /// share a mask, because their A's are one matrix, too.
  void add_adapters(const BlockAdapter& adapter, const DropoutAttrs& dropout) {
    const TensorNames& names = tensor_names(whole_.family);
    for (const RankMatrix& matrix : matrices_) {
      const bool is_split_by_outputs = matrix.linear_layers.front().is_split_by_outputs;
      // The site decides the mask, so sites must stay the same for a resumed run.
      DropoutAttrs site = dropout;
      site.site = static_cast<int>(matrix.matrix);
      site.first_column = is_split_by_outputs ? 0 : split_.index * matrix.inputs;
      params_.at(matrix.matrix).lora = add_lora_params(g_, matrix, names, split_, adapter, site);
    }
  }

  const BlockParams& params() const { return params_; }

 private:
  GraphBuilder& g_;
  const ModelConfig& whole_;
  TensorSplit split_;
  /// The rank's part of each LinearMatrix, in their order.
  std::vector<RankMatrix> matrices_;
  BlockParams params_;
};

/// SplitLinearLayers emits the linear layers of a block as one tensor-parallel rank computes them,
/// and the collectives of ranks around them.
class SplitLinearLayers {
 public:
  SplitLinearLayers(GraphBuilder& g, const TensorSplit& split)
      : g_(g), split_(split), collectives_(g, split) {}

  /// Emits y = x w^T + b for all tokens. Each rank computes some columns of y.
  ValueId column_parallel(ValueId x, const MatrixParams& params) {
    const auto& [weight, bias, projections, lora] = params;
    const int ranks = gradient_is_partial(OpKind::kLinear, 0, 'O') ? split_.degree : 1;
    const LinearAttrs attrs{.gradient_ranks = ranks};
    if (lora.magnitudes >= 0) return emit_dora(x, weight, bias, lora, attrs, 'O');
    return add_adapter(x, ops::linear(g_, x, weight, bias, attrs), lora, attrs);
  }

  /// Emits this rank's term of x w^T + b, which is a sum over the ranks. Each rank has some columns
  /// of x and w, and only the first rank adds b.
  ValueId row_parallel_term(ValueId x, const MatrixParams& params) {
    const auto& [weight, bias, projections, lora] = params;
    const bool adds_bias = bias < 0 || split_.index == 0;
    const LinearAttrs attrs{.adds_bias = adds_bias};
    if (lora.magnitudes >= 0) return emit_dora(x, weight, bias, lora, attrs, 'I');
    return add_adapter(x, ops::linear(g_, x, weight, bias, attrs), lora, attrs);
  }

  /// Emits the sum over the ranks of the results of row_parallel_term().
  ValueId sum_terms(ValueId term) {
    return collectives_.reduce_partial(OpKind::kLinear, 'I', term);
  }

 private:
  ValueId add_adapter(ValueId x, ValueId y, const MatrixParams::LoraParams& lora,
                      const LinearAttrs& attrs) {
    if (lora.up.empty()) return y;
    const ValueId lora_input = lora.dropout.probability > 0 ? ops::dropout(g_, x, lora.dropout) : x;
    return ops::lora(g_, lora_input, y, lora.down, lora.up, lora.attrs, attrs);
  }
  /// Emits (x' w^T + scale x' a^T b^T) m / l + (x - x') w^T + bias, where x' is x after dropout, m
  /// the magnitudes, and l the lengths of the rows of w + scale b a. The second summand exists only
  /// with dropout. `split_letter` is the letter that ranks divide: I if each has some columns of w,
  /// O if each has some rows.
  ValueId emit_dora(ValueId x, ValueId weight, ValueId bias, const MatrixParams::LoraParams& lora,
                    const LinearAttrs& attrs, char split_letter) {
    const LinearAttrs linear_attrs{.gradient_ranks = attrs.gradient_ranks};
    ValueId dropout_x = x, dropped_term = -1;
    if (lora.dropout.probability > 0) {
      DropoutAttrs dropout = lora.dropout;
      dropout.gradient_ranks = attrs.gradient_ranks;
      dropout.returns_dropped_part = true;
      dropped_term =
          ops::linear(g_, ops::dropout(g_, x, dropout), weight, -1,
                      {.gradient_ranks = attrs.gradient_ranks, .weight_gradient = false});
      dropout.returns_dropped_part = false;
      dropout_x = ops::dropout(g_, x, dropout);
    }
    const ValueId of_base = ops::linear(g_, dropout_x, weight, -1, linear_attrs);
    const ValueId z =
        ops::lora(g_, dropout_x, of_base, lora.down, lora.up, lora.attrs, linear_attrs);
    ValueId squares = ops::dora_squared_lengths(g_, weight, lora.down, lora.up, lora.attrs);
    squares = collectives_.all_reduce_partial(OpKind::kDoraSquaredLengths, split_letter, squares);
    DoraAttrs dora = lora.dora;
    dora.adds_bias = attrs.adds_bias;
    const ValueId y = ops::dora_scale(g_, z, squares, lora.magnitudes, bias, dora);
    return dropped_term >= 0 ? ops::add(g_, dropped_term, y) : y;
  }

  GraphBuilder& g_;
  TensorSplit split_;
  TensorCollectives collectives_;
};

/// BlockKind holds the differences between blocks of one model, besides their recompute level and
/// their adapters.
struct BlockKind {
  /// Tokens of the sliding window; 0: none, or as long as the sequence.
  int64_t window = 0;
  /// An index of ModelConfig::rotations(); -1: it does not rotate.
  int rotation = 0;
  auto operator<=>(const BlockKind&) const = default;
};

BlockKind block_kind(const ModelConfig& c, int64_t layer, int64_t sequence_length) {
  const int64_t window = c.windows[static_cast<size_t>(layer)];
  const bool uses_window_rope = window > 0 && c.window_rope.has_value();
  return {window >= sequence_length ? 0 : window, !c.layer_rotates(layer) ? -1
                                                  : uses_window_rope      ? 1
                                                                          : 0};
}

/// Returns a graph's name: "block", "block.window128", "block.window128.rope1", "block.unrotated".
std::string block_name(const ModelConfig& c, const BlockKind& kind) {
  const bool differs = kind.rotation < 0 && c.rotary_size() > 0;
  return cat("block", kind.window > 0 ? cat(".window", kind.window) : "",
             kind.rotation > 0 ? cat(".rope", kind.rotation) : "", differs ? ".unrotated" : "");
}

/// Returns the attributes that select the angles of a rotation in the table of all rotations of the
/// model.
RopeAttrs rope_attrs(const ModelConfig& c, const HeadAttrs& heads, int rotation) {
  const int64_t angles = c.rotary_size() / 2;
  if (c.rotations().size() == 1) return {.heads = heads, .pairs = c.rotates_pairs};
  return {heads, rotation * angles, angles, c.rotates_pairs};
}

/// Returns the width of the rope table: twice the angles of all rotations.
int64_t rope_width(const ModelConfig& c) {
  return static_cast<int64_t>(c.rotations().size()) * c.rotary_size();
}

/// BlockGraph is the graph of a block and the values of its parameters.
struct BlockGraph {
  LayerGraph graph;
  BlockParams params;
};

/// BlockBuilder emits the forward list of a rank's block.
class BlockBuilder {
 public:
  /// Begins a block; `c` is the config of the rank's part of the model.
  BlockBuilder(GraphBuilder& g, const ModelConfig& c, const BatchShape& batch,
               const BlockKind& kind, const TensorSplit& split)
      : g_(g), c_(c), kind_(kind), ranks_(split.degree), collectives_(g, split), linear_(g, split) {
    const int64_t n = batch.tokens();
    x_ = g.input(Port::kHidden, g.dtypes().compute, {hidden_tokens(batch, split), c.hidden}, "x");
    if (kind.rotation >= 0) rope_ = g.input(Port::kRope, DType::kF32, {n, rope_width(c)}, "rope");
    starts_ = g.input(Port::kStarts, DType::kI32, {n}, "starts");
  }

  /// Returns the block's result.
  ValueId emit(const BlockParams& p) {
    const ValueId norm = collectives_.gather_tokens(add_norm(g_, c_, x_, p.at(BlockNorm::kInput)));
    const ValueId attention = attention_term(p, norm);
    return c_.parallel_residual ? emit_parallel(p, norm, attention) : emit_sequential(p, attention);
  }

 private:
  /// Emits the MLP after attention: it reads the hidden states to which attention's output was
  /// added.
  ValueId emit_sequential(const BlockParams& p, ValueId attention_term) {
    ValueId attention = linear_.sum_terms(attention_term);
    attention = add_norm(g_, c_, attention, p.at(BlockNorm::kAttentionOutput));
    const ValueId attended = ops::scale(g_, attention, c_.residual_scale);
    const auto middle = add_sum_and_norm(g_, c_, x_, attended, p.at(BlockNorm::kMlp));
    ValueId mlp = linear_.sum_terms(mlp_term(p, collectives_.gather_tokens(middle.norm)));
    mlp = add_norm(g_, c_, mlp, p.at(BlockNorm::kMlpOutput));
    return ops::add(g_, middle.sum, ops::scale(g_, mlp, c_.residual_scale));
  }

  /// Emits an MLP that reads the same hidden states as attention, in parallel with it. `norm` is
  /// the norm that attention reads, for all tokens. The ranks sum the outputs of attention and MLP
  /// together.
  ValueId emit_parallel(const BlockParams& p, ValueId norm, ValueId attention_term) {
    require(!c_.output_norms, "attention and MLP beside each other have no norms after them");
    const ValueId mlp_input =
        c_.mlp_norm ? collectives_.gather_tokens(add_norm(g_, c_, x_, p.at(BlockNorm::kMlp)))
                    : norm;
    const ValueId both = linear_.sum_terms(ops::add(g_, attention_term, mlp_term(p, mlp_input)));
    return ops::add(g_, x_, ops::scale(g_, both, c_.residual_scale));
  }

  ValueId attention_term(const BlockParams& p, ValueId norm) {
    const HeadAttrs heads{c_.query_heads, c_.kv_heads, c_.head_size, c_.norm_epsilon,
                          norm_weight_offset(c_)};
    const auto size = static_cast<double>(c_.head_size);
    const AttentionAttrs attrs{.query_heads = c_.query_heads,
                               .kv_heads = c_.kv_heads,
                               .head_size = c_.head_size,
                               .scale = c_.attention_scale.value_or(1.0 / std::sqrt(size)),
                               .window = kind_.window,
                               .softcap = c_.attention_softcap};
    ValueId qkv = linear_.column_parallel(norm, p.at(LinearMatrix::kQkv));
    if (c_.qk_norm != QkNorm::kNone) qkv = add_qk_norm(p, qkv, heads);
    if (rope_ >= 0) qkv = ops::rope(g_, qkv, rope_, rope_attrs(c_, heads, kind_.rotation));
    return linear_.row_parallel_term(ops::attention(g_, qkv, starts_, attrs),
                                     p.at(LinearMatrix::kAttentionOut));
  }

  ValueId add_qk_norm(const BlockParams& p, ValueId qkv, const HeadAttrs& heads) {
    if (c_.qk_norm == QkNorm::kLayerNormByHead)
      return ops::head_norm(g_, qkv, p.q_norm, p.k_norm, heads);
    if (c_.qk_norm == QkNorm::kEachHead) return ops::qk_norm(g_, qkv, p.q_norm, p.k_norm, heads);
    const WholeQkNormAttrs attrs{heads, ranks_};
    const ValueId squares =
        collectives_.all_reduce_partial(OpKind::kQkDots, 'H', ops::qk_squares(g_, qkv, attrs));
    return ops::whole_qk_norm(g_, qkv, squares, p.q_norm, p.k_norm, attrs);
  }

  ValueId mlp_term(const BlockParams& p, ValueId norm) {
    const ValueId gate_up = linear_.column_parallel(norm, p.at(LinearMatrix::kGateUp));
    const ValueId active = c_.gated ? ops::gated_activation(g_, gate_up, c_.activation)
                                    : ops::activation(g_, gate_up, c_.activation);
    return linear_.row_parallel_term(active, p.at(LinearMatrix::kDown));
  }

  GraphBuilder& g_;
  const ModelConfig& c_;
  BlockKind kind_;
  int ranks_;
  TensorCollectives collectives_;
  SplitLinearLayers linear_;
  ValueId x_ = -1, rope_ = -1, starts_ = -1;
};

/// Builds a rank's graph of a block.
BlockGraph build_block(const ModelConfig& whole, const BatchShape& batch, const BlockKind& kind,
                       bool train, const ModelDtypes& dtypes, const RecomputePolicy& recompute,
                       const TensorSplit& split, const BlockAdapter& adapter, double dropout) {
  const ModelConfig c = local_config(whole, split);
  GraphBuilder g(block_name(whole, kind), batch.tokens(), batch.sequence_length, dtypes);
  BlockBuilder block(g, c, batch, kind, split);
  const DropoutAttrs masks{.probability = train ? dropout : 0,
                           .sequence_length = batch.sequence_length,
                           .sequence_padding = batch.sequence_padding};
  BlockParamsBuilder params(g, whole, split);
  for (const BlockParameters& each : kBlockParameters) std::visit(params, each.kind);
  params.add_adapters(adapter, masks);
  g.output(block.emit(params.params()), Port::kHidden);
  return {g.finish(train, recompute), params.params()};
}

/// BlockBinder lists which tensors the parameters of a block's graph consist of, row by row of
/// kBlockParameters; the parameters of an adapter follow those of its matrix.
class BlockBinder {
 public:
  BlockBinder(const BlockParams& params, const BlockTensors& tensors, const ModelDtypes& dtypes)
      : params_(params), tensors_(tensors), dtypes_(dtypes) {}

  std::vector<GraphParam> bind() {
    for (const BlockParameters& each : kBlockParameters) {
      part_ = each.part;
      std::visit(*this, each.kind);
    }
    return std::move(graph_params_);
  }

  void operator()(BlockNorm kind) {
    const std::optional<NormParams>& norm = params_.at(kind);
    if (!norm) return;
    add(norm->weight, {tensors_.at(kind).weight});
    add(norm->bias, {tensors_.at(kind).bias});
  }

  void operator()(LinearMatrix matrix) {
    const MatrixParams& params = params_.at(matrix);
    std::vector<TensorId> weights, biases;
    for (const Projection projection : params.projections) {
      weights.push_back(tensors_.at(projection).weight);
      biases.push_back(tensors_.at(projection).bias);
    }
    graph_params_.push_back(
        {params.weight, std::move(weights), part_, static_cast<bool>(dtypes_.quantized)});
    add(params.bias, std::move(biases));
    add_lora(params.lora);
  }

  void operator()(HeadNorms /*unused*/) {
    add(params_.q_norm, {tensors_.q_norm});
    add(params_.k_norm, {tensors_.k_norm});
  }

 private:
  void add(ValueId value, std::vector<TensorId> tensors) {
    if (value >= 0) graph_params_.push_back({value, std::move(tensors), part_});
  }

  void add_lora(const MatrixParams::LoraParams& lora) {
    std::vector<TensorId> down, magnitudes;
    for (const std::vector<Projection>& module : lora.modules) {
      down.push_back(tensors_.lora_at(module.front()).a);
      for (const Projection projection : module)
        magnitudes.push_back(tensors_.lora_at(projection).magnitudes);
    }
    add(lora.down, std::move(down));
    for (size_t i = 0; i < lora.up.size(); ++i) {
      std::vector<TensorId> rows;
      for (const Projection projection : lora.modules[i])
        rows.push_back(tensors_.lora_at(projection).b);
      add(lora.up[i], std::move(rows));
    }
    if (lora.magnitudes < 0) return;
    add(lora.magnitudes, std::move(magnitudes));
    graph_params_.back().fp32 = dtype_bytes(dtypes_.compute) < dtype_bytes(DType::kF32);
  }

  const BlockParams& params_;
  const BlockTensors& tensors_;
  const ModelDtypes& dtypes_;
  BlockPart part_ = BlockPart::kAttention;
  std::vector<GraphParam> graph_params_;
};

/// DecoderBuilder builds layers and graphs into one description.
class DecoderBuilder {
 public:
  DecoderBuilder(const ModelConfig& config, const BatchShape& batch, GraphMode mode,
                 const ModelDtypes& dtypes, const RecomputeOptions& recompute,
                 const TensorSplit& split, const Adapter& adapter)
      : c_(config),
        names_(tensor_names(config.family)),
        local_(local_config(config, split)),
        split_(split),
        batch_(batch),
        mode_(mode),
        dtypes_(dtypes),
        recompute_(recompute),
        table_(out_.tensors, split, adapter.init) {
    out_.family = c_.family;
    out_.multimodal = c_.multimodal;
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
    const TensorId table =
        table_.add_split_by_rows(weight_of(names_.embedding), {c_.vocab_rows, c_.hidden});
    const TensorId positions =
        c_.learned_positions
            ? table_.add_split_by_rows(weight_of(names_.positions), {position_rows(), c_.hidden})
            : -1;
    add_embedding(table, positions);
    for (int64_t i = 0; i < c_.layers; ++i) add_block(i);
    const TensorTable::NormIds norm = table_.add_norm(std::string(names_.norm), c_);
    const TensorId head =
        c_.tied ? table
                : table_.add_split_by_rows(weight_of(names_.head), {c_.vocab_rows, c_.hidden});
    const TensorId bias =
        c_.head_bias ? table_.add_split_by_rows(cat(names_.head, ".bias"), {c_.vocab_rows}) : -1;
    add_head(norm, head, bias);
    if (c_.rotary_size() > 0) add_rope_table();
    return std::move(out_);
  }

 private:
  bool is_training() const { return mode_ == GraphMode::kTrain; }
  static std::string weight_of(std::string_view module) { return cat(module, ".weight"); }

  int add_graph(LayerGraph graph) {
    out_.graphs.push_back(std::move(graph));
    return static_cast<int>(out_.graphs.size() - 1);
  }

  /// Adds the embedding's layer. `position_table` is -1 without learned positions.
  void add_embedding(TensorId table, TensorId position_table) {
    const int64_t n = batch_.tokens();
    GraphBuilder g("embed", n, batch_.sequence_length, dtypes_);
    const ValueId tokens = g.input(Port::kTokens, DType::kI32, {n}, "tokens");
    const ValueId positions = positions_input(g);
    const ValueId weight = g.param("embed.weight", {local_.vocab_rows, c_.hidden});
    std::vector<GraphParam> params{{weight, {table}}};
    // Each rank has the vectors of some tokens and of some positions.
    ValueId x = ops::embed(g, tokens, weight, rows_of(c_.vocab_rows, local_.vocab_rows));
    if (position_table >= 0) {
      const int64_t rows = divide_up(position_rows(), split_.degree);
      const ValueId vectors = g.param("positions.weight", {rows, c_.hidden});
      x = ops::add(g, x, ops::embed(g, positions, vectors, position_rows_of(rows)));
      params.push_back({vectors, {position_table}});
    }
    x = TensorCollectives(g, split_).reduce_partial(OpKind::kEmbed, 'V', x);
    g.output(ops::scale(g, x, embedding_scale()), Port::kHidden);
    if (c_.rotary_size() > 0) output_rope_table(g, positions);
    out_.layers.push_back(
        {"embed", LayerKind::kEmbedding, add_graph(g.finish(is_training())), std::move(params)});
  }

  double embedding_scale() const {
    const auto scale = static_cast<float>(c_.embedding_scale);
    if (!c_.rounds_embedding_scale) return c_.embedding_scale;
    if (dtypes_.compute == DType::kBF16) return f32_from_bf16(bf16_from_f32(scale));
    if (dtypes_.compute == DType::kF16) return f32_from_f16(f16_from_f32(scale));
    return scale;
  }

  int64_t position_rows() const { return c_.max_positions + c_.position_offset; }

  /// Returns the positions to which the rank's rows of the table belong. The first
  /// `position_offset` rows belong to no position.
  EmbeddingRowsAttrs position_rows_of(int64_t rank_rows) const {
    if (c_.position_offset == 0) return rows_of(c_.max_positions, rank_rows);
    return {split_.index * rank_rows - c_.position_offset, c_.max_positions};
  }

  EmbeddingRowsAttrs rows_of(int64_t table_rows, int64_t rank_rows) const {
    return split_.degree > 1 ? EmbeddingRowsAttrs{split_.index * rank_rows, table_rows}
                             : EmbeddingRowsAttrs{};
  }

  void add_rope_table() {
    GraphBuilder g("rope", batch_.tokens(), batch_.sequence_length, dtypes_);
    output_rope_table(g, positions_input(g));
    out_.rope_graph = add_graph(g.finish(is_training()));
  }

  ValueId positions_input(GraphBuilder& g) const {
    return g.input(Port::kPositions, DType::kI32, {batch_.tokens()}, "positions");
  }

  void output_rope_table(GraphBuilder& g, ValueId positions) const {
    RopeTableAttrs attrs;
    for (const RopeConfig& rotation : c_.rotations())
      for (const double each :
           inverse_frequencies(rotation, c_.rotary_size(), batch_.max_sequence_tokens()))
        attrs.angles.push_back({each, rotation.attention_factor()});
    g.output(ops::rope_table(g, positions, std::move(attrs)), Port::kRope);
  }

  void add_block(int64_t index) {
    const BlockKind kind = block_kind(c_, index, batch_.sequence_length);
    const RecomputePolicy recompute = recompute_.policy_of_block(index);
    const BlockAdapter adapter = out_.adapter.block(index);
    const std::tuple<BlockKind, RecomputeLevel, BlockAdapter> key{kind, recompute.level, adapter};
    auto it = blocks_.find(key);
    if (it == blocks_.end()) {
      BlockGraph block = build_block(c_, batch_, kind, is_training(), dtypes_, recompute, split_,
                                     adapter, out_.adapter.dropout);
      const SharedBlock shared{add_graph(std::move(block.graph)), block.params};
      it = blocks_.emplace(key, shared).first;
    }
    const BlockTensors tensors = add_block_tensors(table_, c_, split_, index, adapter);
    out_.layers.push_back({cat("layers.", index), LayerKind::kBlock, it->second.graph,
                           BlockBinder(it->second.params, tensors, dtypes_).bind()});
  }

  /// Adds the head's layer. `bias_tensor` is -1 without a bias.
  void add_head(const TensorTable::NormIds& norm_tensors, TensorId weight_tensor,
                TensorId bias_tensor) {
    const int64_t n = batch_.tokens();
    GraphBuilder g("head", n, batch_.sequence_length, dtypes_);
    const ValueId x =
        g.input(Port::kHidden, dtypes_.compute, {hidden_tokens(batch_, split_), c_.hidden}, "x");
    const ValueId labels =
        mode_ == GraphMode::kLogits ? -1 : g.input(Port::kLabels, DType::kI32, {n}, "labels");
    const NormParams norm = add_norm_params(g, c_, "norm");
    const ValueId weight = g.param("lm_head.weight", {local_.vocab_rows, c_.hidden});
    const ValueId bias = bias_tensor >= 0 ? g.param("lm_head.bias", {local_.vocab_rows}) : -1;
    // Scales the operand of the matrix multiplication instead of the logits, which is the same
    // because the multiplication is linear: the logits are never in memory as a whole.
    const ValueId scaled = ops::scale(g, add_norm(g, c_, x, norm), c_.logit_scale);
    TensorCollectives collectives(g, split_);
    const ValueId y = collectives.gather_tokens(scaled);
    CrossEntropyAttrs attrs{.with_gradients = is_training(), .softcap = c_.logit_softcap};
    if (dtypes_.kernels == KernelDevice::kGpu)
      attrs.chunk_tokens = gpu_head_chunk(local_.vocab_rows, dtype_bytes(dtypes_.compute));
    const bool is_unsplit = split_.degree == 1;
    if (mode_ == GraphMode::kLogits) {
      const ValueId logits = ops::softcap(g, ops::linear(g, y, weight, bias), c_.logit_softcap);
      g.output(collectives.gather_blocks(logits), Port::kLogits);
    } else if (is_unsplit) {
      ops::linear_cross_entropy(g, y, weight, labels, attrs, bias);
    } else {
      const ops::VocabularyPart part{split_.degree, split_.index, c_.vocab_rows};
      ops::vocabulary_cross_entropy(g, y, weight, labels, attrs, part, bias);
    }
    std::vector<GraphParam> params;
    const auto add = [&](ValueId value, TensorId tensor) {
      if (value >= 0) params.push_back({value, {tensor}});
    };
    add(norm.weight, norm_tensors.weight);
    add(norm.bias, norm_tensors.bias);
    add(weight, weight_tensor);
    add(bias, bias_tensor);
    out_.layers.push_back(
        {"head", LayerKind::kHead, add_graph(g.finish(is_training())), std::move(params)});
  }

  /// SharedBlock is the graph that equal blocks share, by its index in the description, and its
  /// parameters.
  struct SharedBlock {
    int graph;
    BlockParams params;
  };

  const ModelConfig& c_;
  const TensorNames& names_;
  ModelConfig local_;
  TensorSplit split_;
  BatchShape batch_;
  GraphMode mode_;
  ModelDtypes dtypes_;
  RecomputeOptions recompute_;
  ModelDescription out_;
  TensorTable table_;
  std::map<std::tuple<BlockKind, RecomputeLevel, BlockAdapter>, SharedBlock> blocks_;
};

}  // namespace

ModelDescription build_decoder(const ModelConfig& config, const BatchShape& batch, GraphMode mode,
                               const ModelDtypes& dtypes, const RecomputeOptions& recompute,
                               const TensorSplit& split, const Adapter& adapter) {
  return DecoderBuilder(config, batch, mode, dtypes, recompute, split, adapter).build();
}

}  // namespace ftrun
