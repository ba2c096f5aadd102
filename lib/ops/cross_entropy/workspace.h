#pragma once

#include <cstdint>

namespace ftrun {

struct CrossEntropyAttrs;

/// CrossEntropyWorkspace holds byte offsets in the scratch of linear_cross_entropy.
struct CrossEntropyWorkspace {
  /// The number of tokens of a chunk: the attribute, or all tokens if there are fewer.
  int64_t chunk = 0;
  /// The number of tokens whose F32 logits fit in the same bytes: the chunk of kernels that keep
  /// F32 logits of 16-bit operands.
  int64_t wide_chunk = 0;
  /// The offsets of I32[N], the tokens that count, and of F64[chunk], their losses.
  int64_t counted = -1;
  int64_t losses = -1;
  /// The offsets of [chunk, D], the rows that are gathered if counted tokens are not neighbors,
  /// and of [chunk, V], the logits.
  int64_t rows = -1;
  int64_t logits = -1;
  /// The number of rows of a panel if operands or weight gradient have 16 bits: F32[panel_rows, D]
  /// of w or dw.
  int64_t panel_rows = 0;
  int64_t panel = -1;
  int64_t bytes = 0;
};
/// Returns the offsets for elements of `element_bytes` in x and w and of `gradient_bytes` in dw;
/// the offsets before `panel` do not depend on `gradient_bytes`.
CrossEntropyWorkspace cross_entropy_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                              const CrossEntropyAttrs& attrs, int64_t element_bytes,
                                              int64_t gradient_bytes = 4);

/// Returns the offsets of vocabulary_logits and vocabulary_cross_entropy, whose logits are values
/// of the graph: `tokens` is the chunk, and `logits` is -1.
CrossEntropyWorkspace vocabulary_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                           int64_t element_bytes, int64_t gradient_bytes = 4);

/// GpuHeadWorkspace holds byte offsets in the scratch of linear_cross_entropy on a GPU.
struct GpuHeadWorkspace {
  /// The number of tokens of a chunk: the attribute, or all tokens if there are fewer.
  int64_t chunk = 0;
  /// The number of elements from one row of logits to the next: V rounded up, so that every row
  /// begins where wide loads are possible, for every V.
  int64_t row_stride = 0;
  /// The offsets of F64[chunk], the losses; of I32[chunk], without gradients, whether each token is
  /// predicted; and of [chunk, row], the logits in the dtype of x and w.
  int64_t losses = -1;
  int64_t correct = -1;
  int64_t logits = -1;
  /// The offset of F32[kGpuBiasParts, V]: partial sums of the bias' gradient, where it has one.
  int64_t bias_sums = -1;
  int64_t bytes = 0;
};
/// The largest number of parts in which a chunk's gradient of the bias is summed. Each part of a
/// group of columns has its own thread block; with 8 parts, 50,000 columns fill any GPU.
inline constexpr int64_t kGpuBiasParts = 8;
GpuHeadWorkspace gpu_head_workspace(int64_t tokens, int64_t vocabulary,
                                    const CrossEntropyAttrs& attrs, int64_t element_bytes,
                                    bool bias_gradient = false);
/// Returns the offsets of vocabulary_cross_entropy on a GPU, whose logits are values of the graph:
/// `tokens` is the chunk, and `logits` is -1. `bias_rows` is how many rows of the vocabulary have a
/// bias with a gradient.
GpuHeadWorkspace gpu_vocabulary_workspace(int64_t tokens, bool with_gradients,
                                          int64_t bias_rows = 0);

/// Returns the number of tokens of a chunk of the head on a GPU. Each chunk reads and writes the
/// whole gradient of the head's matrix, so few large chunks are best: 4,096 tokens, fewer where
/// their logits would take more than 512 MiB.
int64_t gpu_head_chunk(int64_t vocabulary, int64_t element_bytes);

}  // namespace ftrun
