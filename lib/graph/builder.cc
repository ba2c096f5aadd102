#include "graph/builder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "graph/check_graph.h"
#include "graph/derive.h"
#include "graph/workspace.h"

namespace ftrun {

GraphBuilder::GraphBuilder(std::string name, int64_t tokens, int64_t row_tokens, const ModelDtypes& dtypes)
    : tokens_(tokens),
      row_tokens_(row_tokens),
      statistics_(dtypes.compute == DType::kF64 ? DType::kF64 : DType::kF32) {
  require(tokens > 0 && row_tokens > 0 && tokens % row_tokens == 0, "rows of tokens");
  graph_.name = std::move(name);
  graph_.dtypes = dtypes;
}

ValueId GraphBuilder::add_value(std::string name, DType dtype, Dims dims, ValueRole role, Port port) {
  graph_.values.push_back({std::move(name), dtype, std::move(dims), role, port, -1});
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId GraphBuilder::temp(const std::string& name, Dims dims) {
  return add_value(name, graph_.dtypes.compute, std::move(dims), ValueRole::kTemp);
}

void GraphBuilder::emit(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out, OpAttrs attrs) {
  Op op{kind, std::move(in), std::move(out), std::move(attrs), -1};
  const int64_t scratch = workspace_bytes(graph_, op);
  if (scratch > 0)
    op.workspace = add_value(cat(op_name(kind), ".workspace"), DType::kU8, {scratch}, ValueRole::kWorkspace);
  graph_.forward.push_back(std::move(op));
}

ValueId GraphBuilder::input(Port port, DType dtype, Dims dims, std::string name) {
  return add_value(std::move(name), dtype, std::move(dims), ValueRole::kInput, port);
}

ValueId GraphBuilder::param(std::string name, Dims dims) {
  return add_value(std::move(name), graph_.dtypes.compute, std::move(dims), ValueRole::kParam);
}

ValueId GraphBuilder::fp32_param(std::string name, Dims dims) {
  return add_value(std::move(name), statistics_, std::move(dims), ValueRole::kParam);
}

ValueId GraphBuilder::product_weight(std::string name, Dims dims) {
  const ValueId weight = param(std::move(name), std::move(dims));
  graph_.values[static_cast<size_t>(weight)].packed = graph_.dtypes.packed;
  return weight;
}

ValueId GraphBuilder::embed(ValueId tokens, ValueId table, const RowsAttrs& rows) {
  const ValueId x = temp("embedding", {tokens_, graph_.at(table).dims[1]});
  OpAttrs attrs;
  if (rows != RowsAttrs{}) attrs = rows;
  emit(OpKind::kEmbed, {tokens, table}, {x}, std::move(attrs));
  return x;
}

ValueId GraphBuilder::rope_table(ValueId positions, std::vector<double> inverse_frequencies,
                                 double magnitude) {
  const auto head_size = static_cast<int64_t>(inverse_frequencies.size()) * 2;
  const ValueId table = add_value("rope", DType::kF32, {tokens_, head_size}, ValueRole::kTemp);
  emit(OpKind::kRopeTable, {positions}, {table}, RopeTableAttrs{std::move(inverse_frequencies), magnitude});
  return table;
}

ValueId GraphBuilder::rms_norm(ValueId x, ValueId weight, double epsilon) {
  require(graph_.at(x).dims[1] == graph_.at(weight).dims[0], "rms_norm width");
  const ValueId y = temp(graph_.at(weight).name + ".out", graph_.at(x).dims);
  const ValueId rstd = add_value(graph_.at(weight).name + ".rstd", statistics_,
                                 {graph_.at(x).dims[0]}, ValueRole::kTemp);
  emit(OpKind::kRmsNorm, {x, weight}, {y, rstd}, NormAttrs{epsilon});
  return y;
}

GraphBuilder::SumAndNorm GraphBuilder::add_rms_norm(ValueId x, ValueId r, ValueId weight, double epsilon) {
  require(graph_.at(x).dims == graph_.at(r).dims, "add_rms_norm operands");
  require(graph_.at(x).dims[1] == graph_.at(weight).dims[0], "add_rms_norm width");
  const ValueId sum = temp(graph_.at(weight).name + ".sum", graph_.at(x).dims);
  const ValueId y = temp(graph_.at(weight).name + ".out", graph_.at(x).dims);
  const ValueId rstd = add_value(graph_.at(weight).name + ".rstd", statistics_,
                                 {graph_.at(x).dims[0]}, ValueRole::kTemp);
  emit(OpKind::kAddRmsNorm, {x, r, weight}, {sum, y, rstd}, NormAttrs{epsilon});
  return {sum, y};
}

ValueId GraphBuilder::linear(ValueId x, ValueId weight, ValueId bias, const LinearAttrs& attrs) {
  const Dims w = graph_.at(weight).dims;  // a copy: the new value moves the others
  require(graph_.at(x).dims[1] == w[1], "linear input width");
  const ValueId y = temp(graph_.at(weight).name + ".out", {graph_.at(x).dims[0], w[0]});
  std::vector<ValueId> in{x, weight};
  if (bias >= 0) {
    require(graph_.at(bias).dims == Dims{w[0]}, "linear bias width");
    in.push_back(bias);
  }
  OpAttrs given;
  if (attrs != LinearAttrs{}) given = attrs;
  emit(OpKind::kLinear, std::move(in), {y}, std::move(given));
  return y;
}

ValueId GraphBuilder::dropout(ValueId x, const DropoutAttrs& attrs) {
  require(attrs.probability > 0 && attrs.probability < 1 && attrs.first_column >= 0, "a dropout of some elements");
  const ValueId y = temp(graph_.at(x).name + ".dropout", Dims(graph_.at(x).dims));
  emit(OpKind::kDropout, {x}, {y}, attrs);
  return y;
}

ValueId GraphBuilder::lora(ValueId x, ValueId y, ValueId down, const std::vector<ValueId>& up,
                           const LoraAttrs& attrs, const LinearAttrs& y_attrs) {
  require(!up.empty() && up.size() <= 3 && up.size() == attrs.parts.size(), "adapters of one to three parts");
  int64_t ranks = 0;
  for (size_t p = 0; p < up.size(); ++p) {
    const Dims& b = graph_.at(up[p]).dims;
    require(attrs.parts[p].first_column + b[0] <= graph_.at(y).dims[1], "a part of the product's results");
    ranks += b[1];
  }
  require(graph_.at(down).dims[0] == ranks, "the ranks of all parts");
  const ValueId h = linear(x, down, -1, {.gradient_ranks = y_attrs.gradient_ranks});
  const ValueId sum = temp(graph_.at(y).name + ".lora", graph_.at(y).dims);
  std::vector<ValueId> in{y, h};
  in.insert(in.end(), up.begin(), up.end());
  emit(OpKind::kLoraUp, std::move(in), {sum}, attrs);
  return sum;
}

ValueId GraphBuilder::dora_squared_lengths(ValueId weight, ValueId down, const std::vector<ValueId>& up, const LoraAttrs& attrs) {
  int64_t rows = 0;
  for (size_t p = 0; p < up.size(); ++p) {
    const int64_t part = graph_.at(up[p]).dims[0];
    require(attrs.parts.at(p).first_column + part <= graph_.at(weight).dims[0], "a part of the product's weight");
    rows += part;
  }
  const ValueId squares = add_value(graph_.at(weight).name + ".squared_lengths", statistics_, {rows}, ValueRole::kTemp);
  std::vector<ValueId> in{weight, down};
  in.insert(in.end(), up.begin(), up.end());
  emit(OpKind::kDoraSquaredLengths, std::move(in), {squares}, attrs);
  return squares;
}

ValueId GraphBuilder::dora_scale(ValueId z, ValueId squares, ValueId magnitudes, ValueId bias, const DoraAttrs& attrs) {
  for (const DoraAttrs::Part& part : attrs.parts)
    require(part.first_column + part.columns <= graph_.at(z).dims[1], "a part of the product's results");
  const ValueId y = temp(graph_.at(z).name + ".dora", Dims(graph_.at(z).dims));
  std::vector<ValueId> in{z, squares, magnitudes};
  if (bias >= 0) in.push_back(bias);
  emit(OpKind::kDoraScale, std::move(in), {y}, attrs);
  return y;
}

ValueId GraphBuilder::qk_norm(ValueId qkv, ValueId weight_q, ValueId weight_k, const HeadAttrs& heads) {
  require(graph_.at(weight_q).dims == Dims{heads.head_size} && graph_.at(weight_k).dims == Dims{heads.head_size},
          "qk_norm weights");
  const ValueId y = temp("qk_norm.out", graph_.at(qkv).dims);
  const ValueId rstd = add_value("qk_norm.rstd", statistics_, {tokens_, heads.query_heads + heads.kv_heads},
                                 ValueRole::kTemp);
  emit(OpKind::kQkNorm, {qkv, weight_q, weight_k}, {y, rstd}, heads);
  return y;
}

ValueId GraphBuilder::rope(ValueId qkv, ValueId table, const HeadAttrs& heads) {
  require(graph_.at(table).dims == Dims{tokens_, heads.head_size}, "rope table");
  const ValueId y = temp("rope.out", graph_.at(qkv).dims);
  emit(OpKind::kRope, {qkv, table}, {y}, heads);
  return y;
}

ValueId GraphBuilder::attention(ValueId qkv, ValueId starts, AttentionAttrs attrs) {
  attrs.row_tokens = row_tokens_;
  const int64_t width = (attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size;
  require(graph_.at(qkv).dims == Dims{tokens_, width}, "attention operand");
  require(attrs.query_heads % attrs.kv_heads == 0, "query heads are a multiple of key/value heads");
  const ValueId a = temp("attention.out", {tokens_, attrs.query_heads * attrs.head_size});
  const ValueId lse = add_value("attention.lse", statistics_, {attrs.query_heads, tokens_}, ValueRole::kTemp);
  emit(OpKind::kAttention, {qkv, starts}, {a, lse}, attrs);
  return a;
}

ValueId GraphBuilder::swiglu(ValueId gate_up) {
  const ValueId s =
      temp("swiglu.out", {graph_.at(gate_up).dims[0], graph_.at(gate_up).dims[1] / 2});
  emit(OpKind::kSwiGlu, {gate_up}, {s});
  return s;
}

ValueId GraphBuilder::add(ValueId a, ValueId b) {
  require(graph_.at(a).dims == graph_.at(b).dims, "add operands");
  const ValueId sum = temp("sum", graph_.at(a).dims);
  emit(OpKind::kAdd, {a, b}, {sum});
  return sum;
}

ValueId GraphBuilder::linear_cross_entropy(ValueId x, ValueId weight, ValueId labels,
                                           const CrossEntropyAttrs& attrs) {
  require(graph_.at(x).dims[1] == graph_.at(weight).dims[1], "head width");
  const ValueId loss = add_value("loss", DType::kF64, {2}, ValueRole::kOutput, Port::kLoss);
  std::vector<ValueId> out{loss};
  if (attrs.with_gradients) {
    out.push_back(temp("d_" + graph_.at(x).name, graph_.at(x).dims));
    out.push_back(weight_gradient(weight));
  }
  emit(OpKind::kLinearCrossEntropy, {x, weight, labels}, std::move(out), attrs);
  return loss;
}

ValueId GraphBuilder::weight_gradient(ValueId weight) {
  const ValueId grad = add_value("d_" + graph_.at(weight).name, graph_.dtypes.gradients,
                                 Dims(graph_.at(weight).dims), ValueRole::kParamGrad);
  graph_.values[static_cast<size_t>(weight)].grad = grad;
  return grad;
}

ValueId GraphBuilder::vocabulary_cross_entropy(ValueId x, ValueId weight, ValueId labels,
                                               const CrossEntropyAttrs& attrs, int64_t ranks,
                                               int64_t rank) {
  require(graph_.at(x).dims[1] == graph_.at(weight).dims[1], "head width");
  require(attrs.chunk_tokens > 0, "cross-entropy chunk");
  // Logits are not in 16 bits: in their bytes are as many tokens as the fused kernel has at once.
  const int64_t bytes = dtype_bytes(graph_.dtypes.compute), wide = dtype_bytes(statistics_);
  const int64_t chunk = std::max<int64_t>(attrs.chunk_tokens * bytes / wide, 1);
  const ValueId loss = add_value("loss", DType::kF64, {2}, ValueRole::kOutput, Port::kLoss);
  SplitHead head{{x, weight, labels}, {loss}, {attrs.with_gradients, ranks, rank, 0}};
  if (attrs.with_gradients) {
    head.results.push_back(temp("d_" + graph_.at(x).name, Dims(graph_.at(x).dims)));
    head.results.push_back(weight_gradient(weight));
  }
  SplitChunk before;
  for (int64_t first = 0; first < tokens_; first += chunk) {
    head.attrs.first_token = first;
    const SplitChunk next =
        begin_chunk(head, cat(".", first / chunk), std::min(chunk, tokens_ - first));
    if (first > 0) end_chunk(head, before);
    before = next;
  }
  end_chunk(head, before);
  return loss;
}

GraphBuilder::SplitChunk GraphBuilder::begin_chunk(const SplitHead& head, const std::string& suffix,
                                                   int64_t tokens) {
  const auto value = [&](const char* name, Dims dims) {
    return add_value(name + suffix, statistics_, std::move(dims), ValueRole::kTemp);
  };
  const ValueId logits = value("logits", {tokens, graph_.at(head.operands[1]).dims[0]});
  const ValueId statistics = value("statistics", {tokens, 2});
  const ValueId label_logit = value("label_logit", {tokens});
  emit(OpKind::kVocabularyLogits, head.operands, {logits, statistics, label_logit}, head.attrs);
  return {head.attrs, logits, all_gather(statistics, head.attrs.ranks), label_logit};
}

void GraphBuilder::end_chunk(const SplitHead& head, const SplitChunk& chunk) {
  std::vector<ValueId> in = head.operands;
  in.insert(in.end(), {chunk.logits, chunk.statistics, chunk.label_logit});
  if (chunk.attrs.first_token > 0) in.insert(in.end(), head.results.begin(), head.results.end());
  std::vector<ValueId> out = head.results;
  if (chunk.attrs.with_gradients) out.push_back(chunk.logits);
  emit(OpKind::kVocabularyCrossEntropy, std::move(in), std::move(out), chunk.attrs);
}

ValueId GraphBuilder::collective(OpKind kind, ValueId x, std::string name, Dims dims,
                                 int64_t ranks) {
  require(ranks > 1, "a collective has ranks");
  const ValueId y =
      add_value(std::move(name), graph_.at(x).dtype, std::move(dims), ValueRole::kTemp);
  emit(kind, {x}, {y}, TensorGroupAttrs{ranks});
  return y;
}

ValueId GraphBuilder::all_reduce(ValueId x, int64_t ranks) {
  return collective(OpKind::kTensorAllReduce, x, graph_.at(x).name + ".summed", graph_.at(x).dims,
                    ranks);
}

ValueId GraphBuilder::all_gather(ValueId x, int64_t ranks) {
  Dims dims = graph_.at(x).dims;
  dims.at(0) *= ranks;
  return collective(OpKind::kTensorAllGather, x, graph_.at(x).name + ".gathered", std::move(dims),
                    ranks);
}

ValueId GraphBuilder::all_gather_blocks(ValueId x, int64_t ranks) {
  Dims dims = graph_.at(x).dims;
  dims.insert(dims.begin(), ranks);
  return collective(OpKind::kTensorAllGather, x, graph_.at(x).name + ".gathered", std::move(dims),
                    ranks);
}

ValueId GraphBuilder::reduce_scatter(ValueId x, int64_t ranks) {
  Dims dims = graph_.at(x).dims;
  require(dims.at(0) % ranks == 0, "a reduce-scatter has blocks of equal size");
  dims[0] /= ranks;
  return collective(OpKind::kTensorReduceScatter, x, graph_.at(x).name + ".scattered",
                    std::move(dims), ranks);
}

void GraphBuilder::output(ValueId value, Port port) {
  Value& v = graph_.values[static_cast<size_t>(value)];
  require(v.role == ValueRole::kTemp || v.role == ValueRole::kOutput, "outputs are made by the layer");
  v.role = ValueRole::kOutput;
  v.port = port;
}

LayerGraph GraphBuilder::finish(bool with_backward, const RecomputePolicy& recompute) {
  if (with_backward) derive_backward(graph_, recompute);
  check_graph(graph_);
  return std::move(graph_);
}

}  // namespace ftrun
