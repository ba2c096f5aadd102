#include "ops/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/round_up.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/offset_allocator.h"
#include "graph/op_parts.h"
#include "ops/collective/collective.h"
#include "ops/cross_entropy/workspace.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void add_vocabulary_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  letters["t"] = op.attrs.get<VocabularyAttrs>().ranks;
}

/// HeadBytes holds the sizes of an element of x and w, and of an element of the parameters'
/// gradients.
struct HeadBytes {
  int64_t element;
  int64_t gradient;
};

/// Returns the bytes of a head whose gradients are `results`; all of them have one dtype.
HeadBytes head_bytes(const LayerGraph& graph, const Op& op, const HeadGradientIndices& results) {
  const int64_t element = dtype_bytes(graph.at(op.in[0]).dtype);
  const size_t gradient = results.weight > 0 ? results.weight : results.bias;
  return {element, gradient > 0 ? dtype_bytes(graph.at(op.out[gradient]).dtype) : element};
}

/// HeadPasses makes the passes of a head over `tokens` tokens in `chunks` chunks. Each chunk reads
/// the whole weight, and reads and writes its whole gradient.
struct HeadPasses {
  double tokens, hidden, vocabulary;
  /// Bytes of a logit.
  double logit;
  HeadBytes bytes;
  /// Says whether the head has a bias.
  bool bias = false;
  /// Says whether the passes are those of a GPU. There, a separate pass first writes the bias to
  /// the logits and the multiplication adds to it; on a CPU, the pass of the losses adds the bias.
  bool on_gpu = false;
  double chunks = 1;

  double matmul_flops() const { return 2.0 * tokens * hidden * vocabulary; }
  double x_bytes() const { return tokens * hidden * static_cast<double>(bytes.element); }
  double weight_bytes() const {
    return chunks * vocabulary * hidden * static_cast<double>(bytes.element);
  }
  double logit_bytes() const { return tokens * vocabulary * logit; }

  OpPass matmul_pass() const {
    return {.flops = matmul_flops(), .bytes = x_bytes() + weight_bytes() + logit_bytes()};
  }
  /// Adds the passes of the logits and of their losses. A row stays in a cache between the sum of
  /// its exponentials and their second use.
  void add_losses(OpWork& work, double transcendentals) const {
    OpPass logits = matmul_pass();
    if (bias && on_gpu) {
      work.add({.bytes = logit_bytes()});
      logits.bytes += logit_bytes();
    }
    work.add(logits);
    OpPass losses = softmax(transcendentals);
    if (bias && !on_gpu) losses.flops += tokens * vocabulary;
    work.add(losses);
  }
  OpPass softmax(double transcendentals) const {
    return {.flops = tokens * vocabulary,
            .transcendentals = transcendentals * tokens * vocabulary,
            .bytes = 2 * logit_bytes()};
  }
  /// Adds the passes of the gradients of those parameters that have one. `reads` is the number of
  /// chunks that add to an existing gradient.
  void add_gradients(OpWork& work, const HeadGradientIndices& results, double reads) const {
    const double row = (chunks + reads) * vocabulary * static_cast<double>(bytes.gradient);
    if (results.weight > 0)
      work.add({.flops = matmul_flops(), .bytes = x_bytes() + logit_bytes() + hidden * row});
    if (results.bias > 0) work.add({.flops = tokens * vocabulary, .bytes = logit_bytes() + row});
    work.add(matmul_pass());
  }
};

/// Returns the passes over `tokens` of the operands x and w, without chunks.
HeadPasses passes_of(const LayerGraph& graph, const Op& op, int64_t tokens, int64_t logit_bytes,
                     const HeadGradientIndices& results) {
  const Dims& w = graph.at(op.in[1]).dims;
  return {.tokens = static_cast<double>(tokens),
          .hidden = static_cast<double>(w[1]),
          .vocabulary = static_cast<double>(w[0]),
          .logit = static_cast<double>(logit_bytes),
          .bytes = head_bytes(graph, op, results),
          .on_gpu = graph.dtypes.kernels == KernelDevice::kGpu};
}

/// Counts the transcendental functions of a logit: exp for the softmax, tanh for a softcap, and one
/// more for the softcap's gradient.
double transcendentals_of(double softcap, bool with_gradients) {
  return softcap == 0 ? 1 : with_gradients ? 3 : 2;
}

OpWork linear_cross_entropy_work(const LayerGraph& graph, const Op& op) {
  const auto& attrs = op.attrs.get<CrossEntropyAttrs>();
  const Dims &x = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  const HeadGradientIndices results = head_gradients_of(op);
  const auto [element, gradient] = head_bytes(graph, op, results);
  const bool on_gpu = graph.dtypes.kernels == KernelDevice::kGpu;
  HeadPasses head = passes_of(graph, op, x[0], on_gpu ? element : wide_bytes(element), results);
  head.bias = op.in.size() > 3;
  const int64_t chunk =
      on_gpu ? gpu_head_workspace(x[0], w[0], attrs, element).chunk
             : cross_entropy_workspace(x[0], x[1], w[0], attrs, element, gradient).wide_chunk;
  head.chunks = static_cast<double>(divide_up(x[0], chunk));
  OpWork work{};
  head.add_losses(work, transcendentals_of(attrs.softcap, attrs.with_gradients));
  if (attrs.with_gradients) head.add_gradients(work, results, head.chunks - 1);
  return work;
}

OpWork vocabulary_logits_work(const LayerGraph& graph, const Op& op) {
  const Value& logits = graph.at(op.out[0]);
  HeadPasses head = passes_of(graph, op, logits.dims[0], dtype_bytes(logits.dtype), {});
  head.bias = op.in.size() > 3;
  OpWork work{};
  head.add_losses(work, transcendentals_of(op.attrs.get<VocabularyAttrs>().softcap, false));
  return work;
}

/// Counts the softmax of the logits from all ranks' statistics, and the multiplications of both
/// gradients.
OpWork vocabulary_cross_entropy_work(const LayerGraph& graph, const Op& op) {
  const auto& attrs = op.attrs.get<VocabularyAttrs>();
  const Value &logits = graph.at(op.in[3]), &statistics = graph.at(op.in[4]);
  const HeadGradientIndices results = vocabulary_gradients_of(op);
  const HeadPasses head = passes_of(graph, op, logits.dims[0], dtype_bytes(logits.dtype), results);
  if (!attrs.with_gradients)
    return OpPass{.flops = head.tokens, .bytes = static_cast<double>(statistics.bytes())};
  OpWork work{};
  work.add(head.softmax(attrs.softcap > 0 ? 1 : 0));
  head.add_gradients(work, results, attrs.first_token > 0 ? 1 : 0);
  return work;
}

int64_t linear_cross_entropy_workspace(const LayerGraph& graph, const Op& op) {
  const Dims &x = graph.at(op.in[0]).dims, &w = graph.at(op.in[1]).dims;
  const HeadBytes bytes = head_bytes(graph, op, head_gradients_of(op));
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
  const HeadBytes bytes = head_bytes(graph, op, vocabulary_gradients_of(op));
  return vocabulary_workspace(graph.at(op.in[3]).dims[0], w[1], w[0], bytes.element, bytes.gradient)
      .bytes;
}

int64_t linear_cross_entropy_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const Value& x = graph.at(op.in[0]);
  const int64_t vocabulary = graph.at(op.in[1]).dims[0];
  const auto& attrs = op.attrs.get<CrossEntropyAttrs>();
  const bool bias_gradient = head_gradients_of(op).bias > 0;
  return gpu_head_workspace(x.dims[0], vocabulary, attrs, dtype_bytes(x.dtype), bias_gradient)
      .bytes;
}

int64_t vocabulary_cross_entropy_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const int64_t chunk_tokens = graph.at(op.in[3]).dims[0];
  const auto& attrs = op.attrs.get<VocabularyAttrs>();
  const int64_t bias_rows = vocabulary_gradients_of(op).bias > 0 ? graph.at(op.in[1]).dims[0] : 0;
  return gpu_vocabulary_workspace(chunk_tokens, attrs.with_gradients, bias_rows).bytes;
}

/// Saves the gradient [N,D] with respect to the head's input, which the head's kernel computed
/// while it had the logits. It is saved whole although a chunk's rows are complete with the chunk:
/// backward begins with this layer, and its result d_x is as large and read whole by the previous
/// layer. The peak of memory is in the forward list, where a chunk's logits exist together with
/// this gradient, and passing rows on early would add d_x there.
void emit_linear_cross_entropy_gradients(BackwardBuilder& backward, const Op& op) {
  require(op.out.size() >= 3, "a head without gradients has no backward");
  backward.save_for_backward(op.out[1]);
  backward.add_term(op.in[0], op.out[1]);
}

/// Saves the gradient dx, of which each chunk writes its rows. It is this rank's term for all N
/// tokens, and is summed over the ranks when all rows are written. With sequence parallelism a rank
/// needs N / t of the rows afterwards. A reduce-scatter for each chunk would leave it only these,
/// but a chunk is a range of tokens, most of them of one rank's block. A reduce-scatter distributes
/// blocks of equal size, so chunks would have to consist of every t-th part of each block, and the
/// weight's gradient would sum tokens in that order, which differs from the order of the head on
/// one rank.
void emit_vocabulary_cross_entropy_gradients(BackwardBuilder& backward, const Op& op) {
  require(op.out.size() > 1, "a head without gradients has no backward");
  const auto& attrs = op.attrs.get<VocabularyAttrs>();
  if (attrs.first_token > 0) return;
  backward.save_for_backward(op.out[1]);
  backward.add_term(op.in[0], backward.reduce_partial_gradient(op.in[0], op.out[1], attrs.ranks));
}

/// SplitHead holds the operands x, weight and labels; the results loss and, with gradients, dx, dw
/// and the gradient of the bias; the attributes of the current chunk; and the bias, -1 if there is
/// none.
struct SplitHead {
  std::vector<ValueId> operands, results;
  VocabularyAttrs attrs;
  ValueId bias = -1;
};

/// Returns the operands and, if there is one, the bias: the operands of an operation that computes
/// logits.
std::vector<ValueId> with_bias(std::vector<ValueId> operands, ValueId bias) {
  if (bias >= 0) operands.push_back(bias);
  return operands;
}

/// SplitChunk holds a chunk's values after its first operation, and the statistics of all ranks.
struct SplitChunk {
  VocabularyAttrs attrs;
  ValueId logits = -1, statistics = -1, label_logit = -1;
};

SplitChunk begin_chunk(GraphBuilder& g, const SplitHead& head, const std::string& suffix,
                       int64_t tokens) {
  const auto value = [&](const char* name, Dims dims) {
    return g.add_value(name + suffix, g.statistics_dtype(), std::move(dims), ValueRole::kTemp);
  };
  const ValueId logits = value("logits", {tokens, g.at(head.operands[1]).dims[0]});
  const ValueId statistics = value("statistics", {tokens, 2});
  const ValueId label_logit = value("label_logit", {tokens});
  g.emit(OpKind::kVocabularyLogits, with_bias(head.operands, head.bias),
         {logits, statistics, label_logit}, head.attrs);
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

HeadGradientIndices head_gradients_of(const Op& op) {
  const bool biased = op.in.size() > 3;
  const size_t bias = biased ? 2 : 0, weight = biased ? 3 : 2;
  return {weight < op.out.size() ? weight : 0, bias < op.out.size() ? bias : 0};
}

HeadGradientIndices vocabulary_gradients_of(const Op& op) {
  return {op.out.size() > 2 ? size_t{2} : 0, op.out.size() > 4 ? size_t{3} : 0};
}

ValueId ops::linear_cross_entropy(GraphBuilder& g, ValueId x, ValueId weight, ValueId labels,
                                  const CrossEntropyAttrs& attrs, ValueId bias) {
  require(g.at(x).dims[1] == g.at(weight).dims[1],
          "the head's matrix has as many columns as its input");
  const ValueId loss = g.add_value("loss", DType::kF64, {2}, ValueRole::kOutput, Port::kLoss);
  std::vector<ValueId> out{loss};
  if (attrs.with_gradients) {
    out.push_back(g.add_temporary("d_" + g.at(x).name, g.at(x).dims));
    if (bias >= 0) out.push_back(g.add_weight_gradient(bias));
    out.push_back(g.add_weight_gradient(weight));
  }
  g.emit(OpKind::kLinearCrossEntropy, with_bias({x, weight, labels}, bias), std::move(out), attrs);
  return loss;
}

ValueId ops::vocabulary_cross_entropy(GraphBuilder& g, ValueId x, ValueId weight, ValueId labels,
                                      const CrossEntropyAttrs& attrs, const VocabularyPart& part,
                                      ValueId bias) {
  require(g.at(x).dims[1] == g.at(weight).dims[1],
          "the head's matrix has as many columns as its input");
  require(attrs.chunk_tokens > 0, "a chunk of cross entropy has at least one token");
  // Logits are never 16-bit here, so a chunk has fewer tokens: its logits take as many bytes as
  // those of the fused operation's chunk.
  const int64_t bytes = dtype_bytes(g.dtypes().compute), wide = dtype_bytes(g.statistics_dtype());
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
    head.results.push_back(g.add_temporary("d_" + g.at(x).name, Dims(g.at(x).dims)));
    head.results.push_back(g.add_weight_gradient(weight));
    if (bias >= 0) head.results.push_back(g.add_weight_gradient(bias));
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
    .must_not_recompute = true,
    .parameter_gradient = 2,
    .work_class = WorkClass::kMatmul,
    .work = linear_cross_entropy_work,
    .workspace = linear_cross_entropy_workspace,
    .gpu_workspace = linear_cross_entropy_gpu_workspace,
    .gradients = emit_linear_cross_entropy_gradients,
};

constinit const OpSpec vocabulary_logits{
    .name = "vocabulary_logits",
    .shapes = "N,D V,D N [V] -> C,V C,2 C",
    .add_letter_sizes = add_vocabulary_letters,
    .device_specific_result = 0,
    .work_class = WorkClass::kMatmul,
    .work = vocabulary_logits_work,
    .workspace = vocabulary_logits_workspace,
    .gpu_workspace = workspace_of::none,
    .gradients = gradients_of::none,
};

constinit const OpSpec vocabulary_cross_entropy{
    .name = "vocabulary_cross_entropy",
    .shapes = "N,D V,D N C,V tC,2 C [2] [N,D] [V,D] [V] -> 2 [N,D] [V,D] [V] [C,V]",
    .must_not_recompute = true,
    .add_letter_sizes = add_vocabulary_letters,
    .work_class = WorkClass::kMatmul,
    .work = vocabulary_cross_entropy_work,
    .workspace = vocabulary_cross_entropy_workspace,
    .gpu_workspace = vocabulary_cross_entropy_gpu_workspace,
    .gradients = emit_vocabulary_cross_entropy_gradients,
};

}  // namespace specs

}  // namespace ftrun
