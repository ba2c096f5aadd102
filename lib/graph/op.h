#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

namespace ftrun {

/// Index of a value in its LayerGraph.
using ValueId = int32_t;

// The closed set of operation kinds. Letters in the comments: N = B*T tokens of a micro-batch
// (B rows of T tokens), D hidden, H query heads, K key/value heads, d head size, F feed-forward,
// V vocabulary rows. Matrices are row-major; activations have the dtype of the graph, `rstd` and
// `lse` are F32 (F64 in an F64 graph), integers I32. Optional inputs are written in [brackets] and come last.
//
// A gradient kind exists for each forward kind; kinds ending in "Wgrad" add to (or overwrite, see
// KernelContext::accumulate) gradients of parameters and write nothing else. Those gradients have the
// graph's gradient dtype (ModelDtypes).
enum class OpKind : uint8_t {
  // With RowsAttrs the table is some rows of a larger one: tokens of other rows give zeros.
  // in: tokens I32[N], table[V,D]                  out: x[N,D]
  kEmbed,
  // in: tokens I32[N], dx[N,D]                     out: dtable[V,D]
  kEmbedWgrad,
  // in: positions I32[N]                           out: rope F32[N,d]: cos of the d/2 angles, then sin
  kRopeTable,
  // in: x[N,D], w[D]                               out: y[N,D], rstd F32[N]
  kRmsNorm,
  // in: x[N,D], r[N,D], w[D]                       out: sum=x+r [N,D], y[N,D], rstd F32[N]
  kAddRmsNorm,
  // in: dy[N,D], x[N,D], rstd F32[N], w[D], [e[N,D]]  out: dx[N,D] (= gradient through the norm, + e)
  kRmsNormDgrad,
  // in: dy[N,D], x[N,D], rstd F32[N]               out: dw[D]
  kRmsNormWgrad,
  // in: x[N,I], w[O,I], [b[O]]                     out: y[N,O] = x w^T + b
  kLinear,
  // in: dy[N,O], w[O,I], [e[N,I]]                  out: dx[N,I] = dy w [+ e]   (out may be e)
  kLinearDgrad,
  // in: dy[N,O], x[N,I]                            out: dw[O,I] = dy^T x
  kLinearWgrad,
  // in: dy[N,O]                                    out: db[O] = sum over N
  kBiasWgrad,
  // Low-rank adapters (Hu et al. 2021, "LoRA") of up to three parts of a product's results y (LoraAttrs): part p has P_p
  // neighbouring columns of y, rank r_p, and the next r_p columns of h = x a^T (a kLinear); J = r_1 + r_2 + r_3.
  // in: y[N,O], h[N,J], b_1[P_1,r_1], [b_2], [b_3]  out: y, to part p of which scale_p h_p b_p^T is added  (out may be in)
  kLoraUp,
  // in: dy[N,O], b_1[P_1,r_1], [b_2], [b_3]        out: dh[N,J]: dh_p = scale_p dy_p b_p
  kLoraUpDgrad,
  // in: dy[N,O], h[N,J]                            out: db_1[P_1,r_1], [db_2], [db_3]: db_p = scale_p dy_p^T h_p
  kLoraUpWgrad,
  // Magnitudes beside such adapters (Liu et al. 2024, "DoRA"): row o of w_p + scale_p b_p a_p, where a_p are the part's rows of
  // a, gets the length m_o. Its own length is a constant for the gradients. M = P_1 + P_2 + P_3; a row of zeros stays zero. The magnitudes
  // m are F32 (F64 in an F64 graph), as q is.
  // in: w[O,I], a[J,I], b_1[P_1,r_1], [b_2], [b_3] out: q[M] (F32, F64 in an F64 graph): squared lengths of the rows
  kDoraSquaredLengths,
  // Part p of z, the product's results with kLoraUp and without a bias, is multiplied by m_p / sqrt(q_p); other columns are not.
  // in: z[N,O], q[M], m[M], [bias[O]]              out: y[N,O] = z m / sqrt(q) + bias   (out may be z)
  kDoraScale,
  // in: dy[N,O], q[M], m[M]                        out: dz[N,O] = dy m / sqrt(q)        (out may be dy)
  kDoraScaleDgrad,
  // in: dy[N,O], z[N,O], q[M]                      out: dm[M] = sum over N of dy z / sqrt(q)
  kDoraScaleWgrad,
  // Inverted dropout (Srivastava et al. 2014): an element is 0 with the probability p of DropoutAttrs and else divided by
  // 1 - p. Which ones is a function of where they stand in training (kernels/dropout_mask.h), so this is its own gradient.
  // in: x[N,I]                                     out: y[N,I]            (out may be x)
  kDropout,
  // RMS norm over each head's d elements of q and k; v is copied.
  // in: qkv[N,(H+2K)d], wq[d], wk[d]               out: y[N,(H+2K)d], rstd F32[N,H+K]
  kQkNorm,
  // in: dy[N,(H+2K)d], qkv[N,(H+2K)d], rstd F32[N,H+K], wq[d], wk[d]   out: dqkv[N,(H+2K)d]
  kQkNormDgrad,
  // in: dy[N,(H+2K)d], qkv[N,(H+2K)d], rstd F32[N,H+K]                 out: dwq[d], dwk[d]
  kQkNormWgrad,
  // Rotates q and k (halves i and i+d/2 of a head, as Hugging Face's rotate_half); v is copied.
  // in: qkv[N,(H+2K)d], rope F32[N,d]              out: y[N,(H+2K)d]      (out may be in)
  kRope,
  // in: dy[N,(H+2K)d], rope F32[N,d]               out: dqkv[N,(H+2K)d]   (out may be dy)
  kRopeDgrad,
  // Causal softmax attention inside each row. Token t attends to u with max(starts[t], t-window+1)
  // <= u <= t, all indices inside its row of T tokens, along which starts never falls. Query head h uses key/value head h*K/H.
  // in: qkv[N,(H+2K)d], starts I32[N]              out: a[N,H*d], lse F32[H,N] (log-sum-exp of scaled scores)
  kAttention,
  // in: da[N,H*d], qkv[N,(H+2K)d], a[N,H*d], lse F32[H,N], starts I32[N]   out: dqkv[N,(H+2K)d]
  kAttentionDgrad,
  // in: gu[N,2F]: gate, then up                    out: s[N,F] = silu(gate) * up
  kSwiGlu,
  // in: ds[N,F], gu[N,2F]                          out: dgu[N,2F]         (out may be gu)
  kSwiGluDgrad,
  // in: a, b (same shape)                          out: a+b               (out may be a)
  kAdd,
  // The head's product and the loss in one, in chunks of tokens so that logits are never whole in
  // memory. Loss of token n is (lse(logits) - logits[label]), times StepScalars::loss_scale in the
  // gradients; labels < 0 do not count.
  // in: x[N,D], w[V,D], labels I32[N]              out: loss F64[2] (adds {sum of losses, counted tokens; without
  // gradients: tokens whose label is the first of the largest logits}),
  //   and, when attrs.with_gradients: dx[N,D], [dw[V,D]] (a gradient of a parameter: see Wgrad above)
  kLinearCrossEntropy,

  // The same where each of t tensor-parallel ranks has V rows of the vocabulary (VocabularyAttrs), in two operations a
  // chunk of C tokens, between which the ranks exchange their statistics and nothing as large as the logits.
  // `logits`, `statistics`, `label_logit` are F32 (F64 in an F64 graph); how tokens lie in them, and in what form the
  // logits are left for the second operation, is the device's choice.
  // in: x[N,D], w[V,D], labels I32[N]              out: logits[C,V], statistics[C,2]: largest logit, sum of
  //   exp(logit - largest); label_logit[C] of the tokens whose label is a row of w
  kVocabularyLogits,
  // The log-sum-exp from all ranks' statistics, in the order of the ranks; adds to the loss the tokens whose label is a
  // row of w. With gradients it adds to dw and writes the chunk's rows of dx, a share of a sum over the ranks; logits are
  // overwritten. Chunks after the first name loss, dx and dw among their inputs too, and add to dw whatever
  // KernelContext::accumulate says.
  // in: x[N,D], w[V,D], labels I32[N], logits[C,V], statistics[tC,2], label_logit[C], [loss, [dx, dw]]
  // out: loss F64[2], and, when attrs.with_gradients: dx[N,D], dw[V,D], logits[C,V] (the same value as the input)
  kVocabularyCrossEntropy,

  // Collectives of the tensor-parallel group: communication, without a kernel. t = TensorGroupAttrs::ranks.
  // in: x                                          out: sum of x over the ranks, same shape   (out may be x)
  kTensorAllReduce,
  // in: x[R,...]                                   out: y[tR,...] or [t,R,...], the ranks' blocks in their order
  kTensorAllGather,
  // in: x[tR,...]                                  out: y[R,...], this rank's block of the sum over the ranks
  kTensorReduceScatter,
};
inline constexpr int kOpKinds = static_cast<int>(OpKind::kTensorReduceScatter) + 1;

struct NoAttrs {
  bool operator==(const NoAttrs&) const = default;
};

struct NormAttrs {
  double epsilon = 1e-5;
  bool operator==(const NormAttrs&) const = default;
};

/// Layout of qkv rows: H query heads, then K key heads, then K value heads, each of d elements.
struct HeadAttrs {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  /// kQkNorm only.
  double epsilon = 1e-6;
  bool operator==(const HeadAttrs&) const = default;
};

struct AttentionAttrs {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  /// T: tokens of a row; N is a multiple of it.
  int64_t row_tokens = 0;
  /// Multiplies the scores, usually 1/sqrt(d).
  double scale = 1.0;
  /// Sliding window in tokens; 0 = none.
  int64_t window = 0;
  bool operator==(const AttentionAttrs&) const = default;
};

struct RopeTableAttrs {
  /// d/2 angles per position (radians per token), already scaled as the family asks.
  std::vector<double> inverse_frequencies;
  /// Multiplies cos and sin (1 except for YaRN-like scalings).
  double magnitude = 1.0;
  bool operator==(const RopeTableAttrs&) const = default;
};

struct CrossEntropyAttrs {
  bool with_gradients = true;
  /// Tokens whose logits are in memory at once.
  int64_t chunk_tokens = 256;
  bool operator==(const CrossEntropyAttrs&) const = default;
};

/// Of the collectives: ranks of the tensor-parallel group.
struct TensorGroupAttrs {
  int64_t ranks = 1;
  bool operator==(const TensorGroupAttrs&) const = default;
};

/// kLinear of a tensor-parallel layer; products that know nothing of other ranks have NoAttrs.
struct LinearAttrs {
  /// Ranks that have other rows of w (column parallelism of the transposed product): the gradient by
  /// x that each makes is a share of a sum over them. 1: it is whole.
  int64_t gradient_ranks = 1;
  /// False: b is given and gets its gradient, but another rank adds it, since the results are summed.
  bool adds_bias = true;
  /// False: w never trains, and another product of the layer has it too.
  bool weight_gradient = true;
  bool operator==(const LinearAttrs&) const = default;
};

/// Of the low-rank adapters of one product: its parts that have one, by their columns.
struct LoraAttrs {
  struct Part {
    /// Where the part begins in a row of the product's results.
    int64_t first_column = 0;
    double scale = 1.0;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;
  bool operator==(const LoraAttrs&) const = default;
};

/// Of kDoraScale and its gradients: the parts of a product that have magnitudes.
struct DoraAttrs {
  struct Part {
    int64_t first_column = 0;
    int64_t columns = 0;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;
  /// As LinearAttrs has it.
  bool adds_bias = true;
  bool operator==(const DoraAttrs&) const = default;
};

struct DropoutAttrs {
  /// Of an element to become 0; below 1.
  double probability = 0;
  /// Which dropout of the layer it is: each has its own mask.
  int64_t site = 0;
  /// Place of column 0 in the rows of all tensor-parallel ranks.
  int64_t first_column = 0;
  /// What is left of x without what dropout makes of it: x - y.
  bool rest = false;
  /// As LinearAttrs has it, where no product reads x itself.
  int64_t gradient_ranks = 1;
  bool operator==(const DropoutAttrs&) const = default;
};

/// Rows [first_row, first_row + rows given) of a matrix of `all_rows`.
struct RowsAttrs {
  int64_t first_row = 0;
  int64_t all_rows = 0;
  /// Of kEmbedWgrad: a token whose row gets no gradient from the tokens that are read; -1: none.
  int64_t without_gradient = -1;
  bool operator==(const RowsAttrs&) const = default;
};

struct VocabularyAttrs {
  bool with_gradients = true;
  /// Tensor-parallel ranks and this one: w is rows [rank V, (rank + 1) V) of ranks V.
  int64_t ranks = 1;
  int64_t rank = 0;
  /// The chunk: tokens [first_token, first_token + C).
  int64_t first_token = 0;
  bool operator==(const VocabularyAttrs&) const = default;
};

using OpAttrs =
    std::variant<NoAttrs, NormAttrs, HeadAttrs, AttentionAttrs, RopeTableAttrs, CrossEntropyAttrs,
                 TensorGroupAttrs, LinearAttrs, LoraAttrs, DoraAttrs, DropoutAttrs, RowsAttrs, VocabularyAttrs>;

struct Op {
  OpKind kind;
  std::vector<ValueId> in;
  std::vector<ValueId> out;
  OpAttrs attrs;
  /// Scratch bytes this operation needs while it runs; a value of the list's scratch buffer.
  ValueId workspace = -1;
};

/// "linear_dgrad", ...: the word used in programs, messages and traces.
std::string_view op_name(OpKind kind);

/// Cheap kinds are run again in the backward list instead of saving what they produced.
bool is_cheap(OpKind kind);

/// Communication among the tensor-parallel ranks: no kernel runs it.
bool is_collective(OpKind kind);

/// The input whose storage output 0 may lie on if nothing reads that input later; -1: none.
ValueId in_place_input(const Op& op);

/// The attributes of a kLinear, given or not.
LinearAttrs linear_attrs(const Op& op);
/// The rows of a kEmbed or kEmbedWgrad whose table has `rows`: all unless its attributes say otherwise.
RowsAttrs given_rows(const Op& op, int64_t rows);

}  // namespace ftrun
