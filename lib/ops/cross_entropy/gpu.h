#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/kernels.h"

// The functions of this header enqueue their kernels on `stream`. `dtype` is the dtype of the
// activations, F32, BF16 or F16.
namespace ftrun::cuda {

/// SoftmaxLossArguments holds the arguments of softmax_loss(), which computes the losses of rows
/// and, if wanted, the gradients of their logits.
struct SoftmaxLossArguments {
  /// The logits [rows, vocabulary], with row_stride elements from one row to the next; with
  /// gradients it becomes (softmax - onehot) * token_loss_factor, 0 for masked rows.
  void* logits;
  const int32_t* labels;
  /// The losses F64[rows], written.
  double* losses;
  /// The flags I32[rows], written: 1 if the label is the most likely token and the loss is finite.
  /// Null with gradients.
  int32_t* correct;
  int64_t rows, vocabulary, row_stride;
  /// The bound on the logits; 0: none.
  float softcap;
  const StepScalars* scalars;
};
void softmax_loss(DType dtype, const SoftmaxLossArguments& s, cudaStream_t stream);
/// AddLossesArguments holds the arguments of add_losses(): loss[0] += sum of the losses, loss[1] +=
/// sum of `correct`, or, where that is null, the number of labels in [first_label, end_label).
struct AddLossesArguments {
  const double* losses;
  const int32_t* labels;
  const int32_t* correct;
  int64_t rows;
  double* loss;
  int64_t first_label, end_label;
};
void add_losses(const AddLossesArguments& a, cudaStream_t stream);
/// VocabularyChunkArguments describes a chunk of the head on one of several ranks. The rank has
/// rows [first_row, first_row + vocabulary) of all_rows vocabulary rows; those after its first
/// unpadded_rows are padding.
struct VocabularyChunkArguments {
  const int32_t* labels;
  /// The logits F32[rows, vocabulary].
  float* logits;
  /// The logits of the labels, F32[rows], which vocabulary_statistics() writes and
  /// vocabulary_loss() reads.
  float* label_logit;
  int64_t rows, vocabulary, unpadded_rows, first_row, all_rows;
  /// The bound on the logits; 0: none.
  float softcap;
};
/// Writes the statistics F32[rows, 2], 0 for masked rows, and label_logit. Applies the softcap to
/// the logits of other rows, in place.
void vocabulary_statistics(const VocabularyChunkArguments& v, float* statistics,
                           cudaStream_t stream);
/// VocabularyLossArguments holds the arguments of vocabulary_loss().
struct VocabularyLossArguments {
  VocabularyChunkArguments chunk;
  /// The statistics of all ranks, F32[ranks * rows, 2].
  const float* statistics;
  int64_t ranks;
  /// The losses F64[rows] and flags I32[rows], written as by softmax_loss().
  double* losses;
  int32_t* correct;
  const StepScalars* scalars;
};
/// Computes the loss; if it makes gradients, a row of logits becomes (softmax - onehot) *
/// token_loss_factor, 0 for masked rows, in `dtype` from the row's first byte on.
void vocabulary_loss(DType dtype, const VocabularyLossArguments& l, cudaStream_t stream);

}  // namespace ftrun::cuda
