#include "ops/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/round_up.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/derivation.h"
#include "graph/layer_graph.h"
#include "graph/offsets.h"
#include "graph/op_parts.h"
#include "ops/collective/collective.h"
#include "ops/cross_entropy/workspace.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void vocabulary_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  letters["t"] = op.attrs.get<VocabularyAttrs>().ranks;
}

/// Bytes of the elements of x and w, and of dw where result 2 is it.
struct HeadBytes {
  int64_t element;
  int64_t gradient;
};

HeadBytes head_bytes(const LayerGraph& graph, const Op& op) {
  const int64_t element = dtype_bytes(graph.at(op.in[0]).dtype);
  return {element, op.out.size() > 2 ? dtype_bytes(graph.at(op.out[2]).dtype) : element};
}

/// HeadPasses makes the passes of a head over `tokens` tokens in `chunks` chunks, each of which
/// reads the whole weight, and reads and writes the whole of its gradient.
struct HeadPasses {
  double tokens, hidden, vocabulary;
  /// Bytes of a logit.
  double logit;
  HeadBytes bytes;
  double chunks = 1;

  double product() const { return 2.0 * tokens * hidden * vocabulary; }
  double x_bytes() const { return tokens * hidden * static_cast<double>(bytes.element); }
  double weight_bytes() const {
    return chunks * vocabulary * hidden * static_cast<double>(bytes.element);
  }
  double logit_bytes() const { return tokens * vocabulary * logit; }

  Pass logits() const {
    return {.flops = product(), .bytes = x_bytes() + weight_bytes() + logit_bytes()};
  }
  /// A row is in a cache between the sum of its exponentials and what becomes of them.
  Pass losses(double transcendentals) const {
    return {.flops = tokens * vocabulary,
            .transcendentals = transcendentals * tokens * vocabulary,
            .bytes = 2 * logit_bytes()};
  }
  Pass input_gradient() const { return logits(); }
  /// `reads` is how many of the chunks find a gradient to add to.
  Pass weight_gradient(double reads) const {
    const double gradient = vocabulary * hidden * static_cast<double>(bytes.gradient);
    return {.flops = product(), .bytes = x_bytes() + logit_bytes() + (chunks + reads) * gradient};
  }
};

/// Returns the passes over `tokens` of the operands x and w, without chunks.
HeadPasses passes_of(const LayerGraph& graph, const Op& op, int64_t tokens, int64_t logit_bytes) {
  const Dims& w = graph.at(op.in[1]).dims;
  return {.tokens = static_cast<double>(tokens),
          .hidden = static_cast<double>(w[1]),
          .vocabulary = static_cast<double>(w[0]),
          .logit = static_cast<double>(logit_bytes),
          .bytes = head_bytes(graph, op)};
}

/// A softcap takes a tangent of each logit, and its exponential once more for the gradient.
double transcendentals_of(double softcap, bool with_gradients) {
  return softcap == 0 ? 1 : with_gradients ? 3 : 2;
}

OpWork linear_cross_entropy_work(const LayerGraph& graph, const Op& op) {
  const auto& attrs = op.attrs.get<CrossEntropyAttrs>();
  const Dims &x = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  const auto [element, gradient] = head_bytes(graph, op);
  const bool on_gpu = graph.dtypes.kernels == Kernels::kGpu;
  HeadPasses head = passes_of(graph, op, x[0], on_gpu ? element : wide_bytes(element));
  const int64_t chunk =
      on_gpu ? gpu_head_workspace(x[0], w[0], attrs, element).chunk
             : cross_entropy_workspace(x[0], x[1], w[0], attrs, element, gradient).wide_chunk;
  head.chunks = static_cast<double>(divide_up(x[0], chunk));
  const Pass losses = head.losses(transcendentals_of(attrs.softcap, attrs.with_gradients));
  if (!attrs.with_gradients) return {head.logits(), losses};
  if (op.out.size() < 3) return {head.logits(), losses, head.input_gradient()};
  return {head.logits(), losses, head.weight_gradient(head.chunks - 1), head.input_gradient()};
}

OpWork vocabulary_logits_work(const LayerGraph& graph, const Op& op) {
  const Value& logits = graph.at(op.out[0]);
  const HeadPasses head = passes_of(graph, op, logits.dims[0], dtype_bytes(logits.dtype));
  const double softcap = op.attrs.get<VocabularyAttrs>().softcap;
  return {head.logits(), head.losses(transcendentals_of(softcap, false))};
}

/// The softmax of the logits from all ranks' statistics, and the products of both gradients.
OpWork vocabulary_cross_entropy_work(const LayerGraph& graph, const Op& op) {
  const auto& attrs = op.attrs.get<VocabularyAttrs>();
  const Value &logits = graph.at(op.in[3]), &statistics = graph.at(op.in[4]);
  const HeadPasses head = passes_of(graph, op, logits.dims[0], dtype_bytes(logits.dtype));
  if (!attrs.with_gradients)
    return Pass{.flops = head.tokens, .bytes = static_cast<double>(statistics.bytes())};
  return {head.losses(attrs.softcap > 0 ? 1 : 0),
          head.weight_gradient(attrs.first_token > 0 ? 1 : 0), head.input_gradient()};
}

int64_t linear_cross_entropy_workspace(const LayerGraph& graph, const Op& op) {
  const Dims &x = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  const HeadBytes bytes = head_bytes(graph, op);
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
  const HeadBytes bytes = head_bytes(graph, op);
  return vocabulary_workspace(graph.at(op.in[3]).dims[0], w[1], w[0], bytes.element, bytes.gradient)
      .bytes;
}

int64_t linear_cross_entropy_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const Value& x = graph.at(op.in[0]);
  const int64_t vocabulary = graph.at(op.in[1]).dims[0];
  const auto& attrs = op.attrs.get<CrossEntropyAttrs>();
  return gpu_head_workspace(x.dims[0], vocabulary, attrs, dtype_bytes(x.dtype)).bytes;
}

int64_t vocabulary_cross_entropy_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const int64_t chunk_tokens = graph.at(op.in[3]).dims[0];
  const auto& attrs = op.attrs.get<VocabularyAttrs>();
  return gpu_vocabulary_workspace(chunk_tokens, attrs.with_gradients).bytes;
}

// The head's kernel made the gradient by its input while it had the logits, [N,D]. It is saved
// whole although a chunk's rows are done with the chunk: backward begins with this layer, and what
// it makes of them, d_x, is as large and read whole by the layer before. The most that lives at
// once is in the forward list, where a chunk's logits lie beside it, and passing rows on early
// would add d_x there.
void linear_cross_entropy_gradients(Derivation& d, const Op& op) {
  require(op.out.size() == 3, "a head without gradients has no backward");
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

/// x, weight and labels; loss and, with gradients, dx and dw; the attributes of the chunk at
/// hand.
struct SplitHead {
  std::vector<ValueId> operands, results;
  VocabularyAttrs attrs;
};
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
  g.emit(OpKind::kVocabularyLogits, head.operands, {logits, statistics, label_logit}, head.attrs);
  return {head.attrs, logits, ops::all_gather(g, statistics, along_tensor(head.attrs.ranks)),
          label_logit};
}

void end_chunk(GraphBuilder& g, const SplitHead& head, const SplitChunk& chunk) {
  std::vector<ValueId> in = head.operands;
  in.insert(in.end(), {chunk.logits, chunk.statistics, chunk.label_logit});
  if (chunk.attrs.first_token > 0) in.insert(in.end(), head.results.begin(), head.results.end());
  std::vector<ValueId> out = head.results;
  if (chunk.attrs.with_gradients) out.push_back(chunk.logits);
  g.emit(OpKind::kVocabularyCrossEntropy, std::move(in), std::move(out), chunk.attrs);
}

}  // namespace

ValueId ops::linear_cross_entropy(GraphBuilder& g, ValueId x, ValueId weight, ValueId labels,
                                  const CrossEntropyAttrs& attrs) {
  require(g.at(x).dims[1] == g.at(weight).dims[1], "head width");
  const ValueId loss = g.add_value("loss", DType::kF64, {2}, ValueRole::kOutput, Port::kLoss);
  std::vector<ValueId> out{loss};
  if (attrs.with_gradients) {
    out.push_back(g.temp("d_" + g.at(x).name, g.at(x).dims));
    out.push_back(g.weight_gradient(weight));
  }
  g.emit(OpKind::kLinearCrossEntropy, {x, weight, labels}, std::move(out), attrs);
  return loss;
}

ValueId ops::vocabulary_cross_entropy(GraphBuilder& g, ValueId x, ValueId weight, ValueId labels,
                                      const CrossEntropyAttrs& attrs, const VocabularyPart& part) {
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
                  .rows = has_padding ? part.rows : 0}};
  if (attrs.with_gradients) {
    head.results.push_back(g.temp("d_" + g.at(x).name, Dims(g.at(x).dims)));
    head.results.push_back(g.weight_gradient(weight));
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
    .shapes = "N,D V,D N -> 2 [N,D] [V,D]",
    .once = true,
    .parameter_gradient = 2,
    .work = linear_cross_entropy_work,
    .workspace = linear_cross_entropy_workspace,
    .gpu_workspace = linear_cross_entropy_gpu_workspace,
    .gradients = linear_cross_entropy_gradients,
};

constinit const OpSpec vocabulary_logits{
    .name = "vocabulary_logits",
    .shapes = "N,D V,D N -> C,V C,2 C",
    .letters = vocabulary_letters,
    .private_result = 0,
    .work = vocabulary_logits_work,
    .workspace = vocabulary_logits_workspace,
    .gpu_workspace = workspace_of::none,
    .gradients = gradients_of::no_operand,
};

constinit const OpSpec vocabulary_cross_entropy{
    .name = "vocabulary_cross_entropy",
    .shapes = "N,D V,D N C,V P,2 C [2] [N,D] [V,D] -> 2 [N,D] [V,D] [C,V]",
    .once = true,
    .letters = vocabulary_letters,
    .work = vocabulary_cross_entropy_work,
    .workspace = vocabulary_cross_entropy_workspace,
    .gpu_workspace = vocabulary_cross_entropy_gpu_workspace,
    .gradients = vocabulary_cross_entropy_gradients,
};

}  // namespace specs

}  // namespace ftrun
