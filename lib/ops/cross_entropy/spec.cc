#include "ops/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/derivation.h"
#include "graph/layer_graph.h"
#include "graph/op_parts.h"
#include "ops/collective/collective.h"
#include "ops/cross_entropy/workspace.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void vocabulary_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  letters["t"] = op.attrs.get<VocabularyAttrs>().ranks;
}

double linear_cross_entropy_flops(const LayerGraph& graph, const Op& op) {
  const bool has_weight_gradient = head_gradients_of(op.in.size(), op.out.size()).weight > 0;
  const int products = 1 + (op.out.size() > 1 ? 1 : 0) + (has_weight_gradient ? 1 : 0);
  return product_flops(graph, op.in[0], op.in[1]) * products;  // logits, dx, dw
}

double vocabulary_logits_flops(const LayerGraph& graph, const Op& op) {
  return product_flops(graph, op.out[0], op.in[1]);
}

// The products of both gradients.
double vocabulary_cross_entropy_flops(const LayerGraph& graph, const Op& op) {
  return op.out.size() > 1 ? 2.0 * product_flops(graph, op.in[3], op.in[1])
                           : static_cast<double>(graph.at(op.in[3]).dims[0]);
}

/// Bytes of the elements of x and w, and of dw, which is result `weight`; 0: it is none.
struct HeadBytes {
  int64_t element;
  int64_t gradient;
};

HeadBytes head_bytes(const LayerGraph& graph, const Op& op, size_t weight) {
  const int64_t element = dtype_bytes(graph.at(op.in[0]).dtype);
  return {element, weight > 0 ? dtype_bytes(graph.at(op.out[weight]).dtype) : element};
}

int64_t linear_cross_entropy_workspace(const LayerGraph& graph, const Op& op) {
  const Dims &x = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  const HeadBytes bytes =
      head_bytes(graph, op, head_gradients_of(op.in.size(), op.out.size()).weight);
  return cross_entropy_workspace(x[0], x[1], w[0], op.attrs.get<CrossEntropyAttrs>(), bytes.element,
                                 bytes.gradient)
      .bytes;
}

int64_t vocabulary_logits_workspace(const LayerGraph& graph, const Op& op) {
  const Value& w = graph.at(op.in[1]);
  const int64_t bytes = dtype_bytes(w.dtype);
  return vocabulary_workspace(graph.at(op.out[0]).dims[0], w.dims[1], w.dims[0], bytes, bytes)
      .bytes;
}

int64_t vocabulary_cross_entropy_workspace(const LayerGraph& graph, const Op& op) {
  const Dims& w = graph.at(op.in[1]).dims;
  const HeadBytes bytes = head_bytes(graph, op, op.out.size() > 2 ? 2 : 0);
  return vocabulary_workspace(graph.at(op.in[3]).dims[0], w[1], w[0], bytes.element, bytes.gradient)
      .bytes;
}

int64_t linear_cross_entropy_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const Value& x = graph.at(op.in[0]);
  const int64_t vocabulary = graph.at(op.in[1]).dims[0];
  const auto& attrs = op.attrs.get<CrossEntropyAttrs>();
  return gpu_head_workspace(x.dims[0], vocabulary, attrs, dtype_bytes(x.dtype), op.in.size() > 3)
      .bytes;
}

int64_t vocabulary_cross_entropy_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const int64_t chunk_tokens = graph.at(op.in[3]).dims[0];
  const auto& attrs = op.attrs.get<VocabularyAttrs>();
  const int64_t bias_rows = op.out.size() > 4 ? graph.at(op.in[1]).dims[0] : 0;
  return gpu_vocabulary_workspace(chunk_tokens, attrs.with_gradients, bias_rows).bytes;
}

// The head's kernel made the gradient by its input while it had the logits, [N,D]. It is saved
// whole although a chunk's rows are done with the chunk: backward begins with this layer, and what
// it makes of them, d_x, is as large and read whole by the layer before. The most that lives at
// once is in the forward list, where a chunk's logits lie beside it, and passing rows on early
// would add d_x there.
void linear_cross_entropy_gradients(Derivation& d, const Op& op) {
  require(op.out.size() >= 3, "a head without gradients has no backward");
  d.save(op.out[1]);
  d.add_term(op.in[0], op.out[1]);
}

// Every chunk writes its rows of one gradient, which is this rank's term of all N tokens and summed
// once they are all there. With sequence parallelism a rank needs N / t of the rows afterwards. A
// reduce-scatter a chunk would leave it these alone, but a chunk is a range of tokens, most of
// them of one rank's block: the blocks of equal size that a reduce-scatter hands out would take
// chunks of every t-th part of each block, and the weight's gradient would sum tokens in that
// order, which is not the order of the head on one rank.
void vocabulary_cross_entropy_gradients(Derivation& d, const Op& op) {
  require(op.out.size() > 1, "a head without gradients has no backward");
  const auto& attrs = op.attrs.get<VocabularyAttrs>();
  if (attrs.first_token > 0) return;
  d.save(op.out[1]);
  d.add_term(op.in[0], d.whole_gradient(op.in[0], op.out[1], attrs.ranks));
}

/// x, weight and labels; loss and, with gradients, dx and dw; the bias and its gradient, -1: none;
/// the attributes of the chunk at hand.
struct SplitHead {
  std::vector<ValueId> operands, results;
  VocabularyAttrs attrs;
  ValueId bias = -1, bias_gradient = -1;
};

void add_given(std::vector<ValueId>& values, ValueId value) {
  if (value >= 0) values.push_back(value);
}
/// A chunk's values after its first operation; statistics of all ranks.
struct SplitChunk {
  VocabularyAttrs attrs;
  ValueId logits = -1, statistics = -1, label_logit = -1;
};

SplitChunk begin_chunk(GraphBuilder& g, const SplitHead& head, const std::string& suffix,
                       int64_t tokens) {
  const auto value = [&](const char* name, Dims dims) {
    return g.add_value(name + suffix, g.statistics(), std::move(dims), ValueRole::kTemp);
  };
  const ValueId logits = value("logits", {tokens, g.at(head.operands[1]).dims[0]});
  const ValueId statistics = value("statistics", {tokens, 2});
  const ValueId label_logit = value("label_logit", {tokens});
  std::vector<ValueId> in = head.operands;
  add_given(in, head.bias);
  g.emit(OpKind::kVocabularyLogits, std::move(in), {logits, statistics, label_logit}, head.attrs);
  return {head.attrs, logits, ops::all_gather(g, statistics, head.attrs.ranks), label_logit};
}

void end_chunk(GraphBuilder& g, const SplitHead& head, const SplitChunk& chunk) {
  std::vector<ValueId> in = head.operands;
  in.insert(in.end(), {chunk.logits, chunk.statistics, chunk.label_logit});
  if (chunk.attrs.first_token > 0) {
    in.insert(in.end(), head.results.begin(), head.results.end());
    add_given(in, head.bias_gradient);
  }
  std::vector<ValueId> out = head.results;
  if (chunk.attrs.with_gradients) out.push_back(chunk.logits);
  add_given(out, head.bias_gradient);
  g.emit(OpKind::kVocabularyCrossEntropy, std::move(in), std::move(out), chunk.attrs);
}

}  // namespace

HeadGradients head_gradients_of(size_t operands, size_t results) {
  const size_t bias = operands > 3 ? 2 : 0, weight = operands > 3 ? 3 : 2;
  return {weight < results ? weight : 0, bias < results ? bias : 0};
}

ValueId ops::linear_cross_entropy(GraphBuilder& g, ValueId x, ValueId weight, ValueId labels,
                                  const CrossEntropyAttrs& attrs, ValueId bias) {
  require(g.at(x).dims[1] == g.at(weight).dims[1], "head width");
  const ValueId loss = g.add_value("loss", DType::kF64, {2}, ValueRole::kOutput, Port::kLoss);
  std::vector<ValueId> out{loss};
  if (attrs.with_gradients) {
    out.push_back(g.temp("d_" + g.at(x).name, g.at(x).dims));
    if (bias >= 0) out.push_back(g.weight_gradient(bias));
    out.push_back(g.weight_gradient(weight));
  }
  std::vector<ValueId> in{x, weight, labels};
  add_given(in, bias);
  g.emit(OpKind::kLinearCrossEntropy, std::move(in), std::move(out), attrs);
  return loss;
}

ValueId ops::vocabulary_cross_entropy(GraphBuilder& g, ValueId x, ValueId weight, ValueId labels,
                                      const CrossEntropyAttrs& attrs, const VocabularyPart& part,
                                      ValueId bias) {
  require(g.at(x).dims[1] == g.at(weight).dims[1], "head width");
  require(attrs.chunk_tokens > 0, "cross-entropy chunk");
  // Logits are not in 16 bits: in their bytes are as many tokens as the fused kernel has at once.
  const int64_t bytes = dtype_bytes(g.dtypes().compute), wide = dtype_bytes(g.statistics());
  const int64_t chunk = std::max<int64_t>(attrs.chunk_tokens * bytes / wide, 1);
  const ValueId loss = g.add_value("loss", DType::kF64, {2}, ValueRole::kOutput, Port::kLoss);
  const bool has_padding = part.ranks * g.at(weight).dims[0] != part.rows;
  SplitHead head{{x, weight, labels},
                 {loss},
                 {.with_gradients = attrs.with_gradients,
                  .ranks = part.ranks,
                  .rank = part.rank,
                  .softcap = attrs.softcap,
                  .rows = has_padding ? part.rows : 0},
                 bias};
  if (attrs.with_gradients) {
    head.results.push_back(g.temp("d_" + g.at(x).name, Dims(g.at(x).dims)));
    head.results.push_back(g.weight_gradient(weight));
    if (bias >= 0) head.bias_gradient = g.weight_gradient(bias);
  }
  SplitChunk before;
  for (int64_t first = 0; first < g.tokens(); first += chunk) {
    head.attrs.first_token = first;
    const SplitChunk next =
        begin_chunk(g, head, cat(".", first / chunk), std::min(chunk, g.tokens() - first));
    if (first > 0) end_chunk(g, head, before);
    before = next;
  }
  end_chunk(g, head, before);
  return loss;
}

namespace specs {

constinit const OpSpec linear_cross_entropy{
    .name = "linear_cross_entropy",
    .shapes = "N,D V,D N [V] -> 2 [N,D] [V] [V,D]",
    .once = true,
    .parameter_gradient = 2,
    .flops = linear_cross_entropy_flops,
    .workspace = linear_cross_entropy_workspace,
    .gpu_workspace = linear_cross_entropy_gpu_workspace,
    .gradients = linear_cross_entropy_gradients,
};

constinit const OpSpec vocabulary_logits{
    .name = "vocabulary_logits",
    .shapes = "N,D V,D N [V] -> C,V C,2 C",
    .letters = vocabulary_letters,
    .private_result = 0,
    .flops = vocabulary_logits_flops,
    .workspace = vocabulary_logits_workspace,
    .gpu_workspace = workspace_of::none,
    .gradients = gradients_of::no_operand,
};

constinit const OpSpec vocabulary_cross_entropy{
    .name = "vocabulary_cross_entropy",
    .shapes = "N,D V,D N C,V P,2 C [2] [N,D] [V,D] [V] -> 2 [N,D] [V,D] [C,V] [V]",
    .once = true,
    .letters = vocabulary_letters,
    .flops = vocabulary_cross_entropy_flops,
    .workspace = vocabulary_cross_entropy_workspace,
    .gpu_workspace = vocabulary_cross_entropy_gpu_workspace,
    .gradients = vocabulary_cross_entropy_gradients,
};

}  // namespace specs

}  // namespace ftrun
