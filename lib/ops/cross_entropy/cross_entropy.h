#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "graph/op.h"

namespace ftrun {

class GraphBuilder;

// linear_cross_entropy
//   The head's matrix multiplication and the loss in one operation, in chunks of tokens, so that
//   the logits are never in memory as a whole. The loss of token n is (lse(logits) -
//   logits[label]); gradients are multiplied by StepScalars::token_loss_factor; labels < 0 do not
//   count. With a softcap c logits are c tanh(x w^T / c).
//   in:  x[N,D], w[V,D], labels I32[N], [bias[V]]
//   out: loss F64[2] (adds {sum of losses, counted tokens; without gradients: tokens whose label
//        is the first of the largest logits}), and, when attrs.with_gradients: dx[N,D],
//        [dbias[V], where there is a bias], [dw[V,D]] (gradients of parameters: they add where
//        KernelContext::accumulate says)
// vocabulary_logits
//   The same if each of t tensor-parallel ranks has V rows of the vocabulary (VocabularyAttrs):
//   two operations for each chunk of C tokens, between which the ranks exchange their statistics
//   and nothing as large as the logits. `logits`, `statistics`, `label_logit`
//   are F32 (F64 in an F64 graph); how tokens lie in them, and in what form the logits are left
//   for the second operation, is the device's choice.
//   in:  x[N,D], w[V,D], labels I32[N], [bias[V]]
//   out: logits[C,V], statistics[C,2]: largest logit, sum of exp(logit - largest);
//        label_logit[C] of the tokens whose label is a row of w
// vocabulary_cross_entropy
//   The log-sum-exp from all ranks' statistics, in the order of the ranks; adds to the loss the
//   tokens whose label is a row of w. With gradients it adds to dw and dbias and writes the chunk's
//   rows of dx, a share of a sum over the ranks; logits are overwritten. Chunks after the first
//   name loss, dx, dw and dbias among their inputs too, and add to dw and dbias whatever
//   KernelContext::accumulate says.
//   in:  x[N,D], w[V,D], labels I32[N], logits[C,V], statistics[tC,2], label_logit[C], [loss,
//        [dx, dw, [dbias]]]
//   out: loss F64[2], and, when attrs.with_gradients: dx[N,D], dw[V,D], [dbias[V], where there is
//        a bias], logits[C,V] (the same value as the input)

/// CrossEntropyAttrs holds the attributes of linear_cross_entropy.
struct CrossEntropyAttrs {
  bool with_gradients = true;
  /// The number of tokens whose logits are in memory at one time.
  int64_t chunk_tokens = 256;
  /// The bound on the logits (Gemma Team 2024, section 2); 0 = none.
  double softcap = 0;
  bool operator==(const CrossEntropyAttrs&) const = default;
};

/// VocabularyAttrs holds the attributes of vocabulary_logits and vocabulary_cross_entropy.
struct VocabularyAttrs {
  bool with_gradients = true;
  /// The number of tensor-parallel ranks, and the index of this one. Its w has rows [rank V, (rank
  /// + 1) V) of all ranks V rows.
  int64_t ranks = 1;
  int64_t rank = 0;
  /// The chunk: tokens [first_token, first_token + C).
  int64_t first_token = 0;
  /// The bound on the logits (CrossEntropyAttrs::softcap).
  double softcap = 0;
  /// The number of rows of the vocabulary; 0: ranks V. Rows of w after them are padding: their
  /// logits are minus infinity, and their gradients 0.
  int64_t rows = 0;

  /// Returns how many of the V rows of w, which begin at row rank V, are rows of the vocabulary.
  int64_t unpadded_rows(int64_t width) const {
    return rows == 0 ? width : std::clamp<int64_t>(rows - rank * width, 0, width);
  }
  bool operator==(const VocabularyAttrs&) const = default;
};

/// HeadGradientIndices holds the indices of the parameters' gradients among the results; 0: there
/// is none.
struct HeadGradientIndices {
  size_t weight = 0, bias = 0;
};
/// Finds the indices in linear_cross_entropy.
HeadGradientIndices head_gradients_of(const Op& op);
/// Finds the indices in vocabulary_cross_entropy.
HeadGradientIndices vocabulary_gradients_of(const Op& op);

namespace ops {
/// Emits the head and returns the F64[2] loss value (an output at Port::kLoss). With gradients it
/// also computes the gradient with respect to `x`, from which the backward lists start. `bias` is
/// -1 where there is none.
ValueId linear_cross_entropy(GraphBuilder& g, ValueId x, ValueId weight, ValueId labels,
                             const CrossEntropyAttrs& attrs, ValueId bias = -1);
/// VocabularyPart is the part of a vocabulary of `rows` rows that one of `ranks` tensor-parallel
/// ranks has.
struct VocabularyPart {
  int64_t ranks = 1;
  int64_t rank = 0;
  int64_t rows = 0;
};
/// Emits the loss of a rank whose `weight` and `bias` (-1: none) are the part.rank-th block of the
/// vocabulary's rows. All blocks have the same number of rows; those of the last block that the
/// vocabulary does not have are padding. A chunk's exchange may run at the same time as the
/// multiplication of the next chunk; the logits of two chunks are in memory at once.
ValueId vocabulary_cross_entropy(GraphBuilder& g, ValueId x, ValueId weight, ValueId labels,
                                 const CrossEntropyAttrs& attrs, const VocabularyPart& part,
                                 ValueId bias = -1);
}  // namespace ops

}  // namespace ftrun
