#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/packed_format.h"
#include "graph/gpu_workspace.h"
#include "graph/op.h"
#include "kernels/kernels.h"

// What the .cu files give to the dispatcher: each function enqueues its kernels on `stream`. `dtype` is
// that of the activations, F32, BF16 or F16. Letters as in graph/op.h.
namespace ftrun::cuda {

// --- embedding.cu --------------------------------------------------------------------------------
struct Embed {
  const int32_t* tokens;
  const void* table;
  void* x;
  /// `given` rows of the table from rows.first_row on.
  int64_t count, width, given;
  RowsAttrs rows;
};
void embed(DType dtype, const Embed& e, cudaStream_t stream);
struct EmbedWgrad {
  const int32_t* tokens;
  const void* dx;
  void* dtable;
  DType gradient_dtype;
  int64_t count, width, vocabulary;
  /// Token of row 0; one whose row gets no gradient, or -1.
  int64_t first_row, without_gradient;
  bool accumulate;
  /// As gpu_embed_workspace() lays it out; null where that needs none.
  void* workspace;
};
void embed_wgrad(DType dtype, const EmbedWgrad& g, cudaStream_t stream);

// --- pointwise.cu --------------------------------------------------------------------------------
void rope_table(const int32_t* positions, float* table, int64_t count, const RopeTableAttrs& attrs,
                cudaStream_t stream);
/// sine_sign -1 rotates back; y may be x.
void rope(DType dtype, const void* x, const float* table, void* y, int64_t count, const HeadAttrs& heads,
          float sine_sign, cudaStream_t stream);
/// `width` is F.
void swiglu(DType dtype, const void* gu, void* s, int64_t count, int64_t width, cudaStream_t stream);
void swiglu_dgrad(DType dtype, const void* ds, const void* gu, void* dgu, int64_t count, int64_t width,
                  cudaStream_t stream);
void add(DType dtype, const void* a, const void* b, void* out, int64_t count, cudaStream_t stream);
struct Dropout {
  const void* x;
  /// May be x.
  void* y;
  int64_t count, width;
  DropoutAttrs attrs;
  int64_t layer, first_token;
  const StepScalars* scalars;
};
void dropout(DType dtype, const Dropout& d, cudaStream_t stream);
/// Every row of y becomes `row`.
void fill_rows(DType dtype, const void* row, void* y, int64_t count, int64_t width, cudaStream_t stream);
void convert(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count, cudaStream_t stream);
void add_into(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count, cudaStream_t stream);
/// dtype also F64.
void sum_blocks(DType dtype, const void* blocks, int ranks, int64_t stride, void* out, int64_t count,
                cudaStream_t stream);

// --- packed.cu -----------------------------------------------------------------------------------
/// out[rows,width] = the block of a packed matrix that begins at first_row, first_column; its rows have `columns` elements.
struct Unpack {
  const PackedFormat& format;
  const void* records;
  void* out;
  int64_t columns, first_row, rows, first_column, width;
};
void unpack(DType dtype, const Unpack& u, cudaStream_t stream);

// --- dora.cu -------------------------------------------------------------------------------------
/// squares[rows] = sums over columns of (w + delta)^2; w and delta (F32) are [rows, columns].
void squared_row_lengths(DType dtype, const void* w, const float* delta, float* squares, int64_t rows, int64_t columns,
                         cudaStream_t stream);
/// y = x by magnitudes / sqrt(squares) of the columns of the parts, and by 1 elsewhere, + bias (null: none); y may be x.
struct ScaledColumns {
  const void* x;
  /// F32, of the parts' columns side by side.
  const float* squares;
  const float* magnitudes;
  const void* bias;
  void* y;
  int64_t count, width;
};
void scale_columns(DType dtype, const ScaledColumns& s, const DoraAttrs& attrs, cudaStream_t stream);

// --- norm.cu -------------------------------------------------------------------------------------
struct RmsNorm {
  const void* x;
  /// Added to x, with the sum in `sum`; null for none.
  const void* r;
  const void* w;
  void* sum;
  void* y;
  float* rstd;
  int64_t rows, width;
  double epsilon;
};
void rms_norm(DType dtype, const RmsNorm& n, cudaStream_t stream);
struct RmsNormDgrad {
  const void* dy;
  const void* x;
  const float* rstd;
  const void* w;
  /// Added to the gradient; may be dx or null.
  const void* e;
  void* dx;
  int64_t rows, width;
};
void rms_norm_dgrad(DType dtype, const RmsNormDgrad& n, cudaStream_t stream);
struct WeightGradient;
/// Both gradients of a norm from one reading of dy and x: n, and g as weight_gradient() of them, with the bits that each
/// has alone. False, and nothing done, for rows that registers do not hold.
bool rms_norm_gradients(DType dtype, const RmsNormDgrad& n, const WeightGradient& g, cudaStream_t stream);
void qk_norm(DType dtype, const void* qkv, const void* wq, const void* wk, void* y, float* rstd, int64_t count,
             const HeadAttrs& heads, cudaStream_t stream);
void qk_norm_dgrad(DType dtype, const void* dy, const void* qkv, const float* rstd, const void* wq, const void* wk,
                   void* dqkv, int64_t count, const HeadAttrs& heads, cudaStream_t stream);

// --- weight_gradient.cu --------------------------------------------------------------------------
/// gradient[width] (+)= sum over tokens and heads of dy * x * rstd, of dy * x when rstd is null, or of dy alone when x is null.
/// Element (n, h, i) of dy and x is at n * row_stride + h * width + i, of rstd at n * rstd_stride + h.
struct WeightGradient {
  const void* dy;
  const void* x;
  const float* rstd;
  int64_t tokens, heads, width, row_stride, rstd_stride;
  void* gradient;
  DType gradient_dtype;
  bool accumulate;
  /// For partial sums.
  void* workspace;
  int64_t workspace_bytes;
  /// F32[width]: each sum is divided by the root of its number, and 0 where that is 0; null: it is not.
  const float* squares = nullptr;
};
void weight_gradient(DType dtype, const WeightGradient& g, cudaStream_t stream);
/// Its order: tokens in so many parts of weight_gradient_tokens() each; of a part, kPartLanes sums of every kPartLanes-th
/// token; these in order; then the parts in order, by add_partials(): F32[parts, width] in g.workspace.
inline constexpr int kPartLanes = 8;
int64_t weight_gradient_parts(const WeightGradient& g);
int64_t weight_gradient_tokens(const WeightGradient& g);
void add_partials(const WeightGradient& g, cudaStream_t stream);

// --- cross_entropy.cu ----------------------------------------------------------------------------
struct SoftmaxLoss {
  /// [rows, vocabulary], row_stride elements from a row to the next; with gradients it becomes (softmax - onehot) * loss_scale,
  /// 0 for masked rows.
  void* logits;
  const int32_t* labels;
  /// F64[rows], written.
  double* losses;
  /// I32[rows], written: 1 where the label is the likeliest token and the loss is finite. Null:
  /// with gradients.
  int32_t* correct;
  int64_t rows, vocabulary, row_stride;
  const StepScalars* scalars;
};
void softmax_loss(DType dtype, const SoftmaxLoss& s, cudaStream_t stream);
/// loss[0] += sum of the losses, loss[1] += sum of `correct`, or, where that is null, number of
/// labels in [first_label, end_label).
struct AddLosses {
  const double* losses;
  const int32_t* labels;
  const int32_t* correct;
  int64_t rows;
  double* loss;
  int64_t first_label, end_label;
};
void add_losses(const AddLosses& a, cudaStream_t stream);
/// A chunk of the head of one of several ranks: rows [first_row, first_row + vocabulary) of
/// all_rows.
struct VocabularyRows {
  const int32_t* labels;
  /// F32[rows, vocabulary].
  float* logits;
  /// F32[rows], written by the first and read by the second function.
  float* label_logit;
  int64_t rows, vocabulary, first_row, all_rows;
};
/// statistics F32[rows, 2]; 0 for masked rows.
void vocabulary_statistics(const VocabularyRows& v, float* statistics, cudaStream_t stream);
struct VocabularyLoss {
  VocabularyRows of;
  /// F32[ranks * rows, 2].
  const float* statistics;
  int64_t ranks;
  /// F64[rows] and I32[rows], written as by softmax_loss().
  double* losses;
  int32_t* correct;
  const StepScalars* scalars;
};
/// With gradients a row of logits becomes (softmax - onehot) * loss_scale, 0 for masked rows, in
/// `dtype` from the row's first byte on.
void vocabulary_loss(DType dtype, const VocabularyLoss& l, cudaStream_t stream);

// --- attention_prologue.cu, attention_documents.cu, attention_f32.cu, attention_narrow.cu ----------
struct Attention {
  const void* qkv;
  const int32_t* starts;
  /// Forward writes them, backward reads them.
  void* a;
  float* lse;
  /// Backward only.
  const void* da;
  void* dqkv;
  AttentionAttrs attrs;
  int64_t tokens;
  /// Scratch, as graph/workspace.h lays it out: I32[N], I32[batch rows, blocks], F32[H, N].
  int32_t* lowest;
  int32_t* first_block;
  float* delta;
  /// I32: tokens before this one are computed elsewhere, and blocks of them leave at once. Null: none are.
  const int32_t* uncovered;
};
/// Shared memory of a block of the kernel that asks for most.
struct SharedMemory {
  int64_t bytes;
  /// How it comes about: "4 tiles of 64 x 264 x 2 bytes".
  std::string text;
};
SharedMemory attention_shared_f32(int64_t head_size, bool backward);
SharedMemory attention_shared_narrow(int64_t head_size, bool backward);
void attention_prologue(DType dtype, const Attention& a, cudaStream_t stream);
void attention_forward_f32(const Attention& a, cudaStream_t stream);
void attention_backward_f32(const Attention& a, cudaStream_t stream);
/// BF16 or F16, on the tensor cores.
void attention_forward_narrow(DType dtype, const Attention& a, cudaStream_t stream);
void attention_backward_narrow(DType dtype, const Attention& a, cudaStream_t stream);

/// Lists of the documents that a library computes as sequences, in the scratch as GpuAttentionWorkspace lays it out.
struct DocumentLists {
  struct Group {
    int64_t most_tokens, slots;
    int32_t* lengths;
    int32_t* qkv_offsets;
    int32_t* out_offsets;
    int32_t* token_offsets;
  };
  Group groups[kMostGpuDocumentGroups];
  int count;
  int32_t* uncovered;
};
/// Writes the lists of a.starts; a.lowest is scratch. Documents of one token are in none. From the first document on that
/// no list holds, and everywhere where starts are not those of documents, nothing is listed.
void list_documents(const Attention& a, const DocumentLists& lists, cudaStream_t stream);
/// Attention and its gradient of the documents of one token before a.uncovered, in bf16.
void single_tokens_forward(const Attention& a, cudaStream_t stream);
void single_tokens_backward(const Attention& a, cudaStream_t stream);

// --- optimizer.cu --------------------------------------------------------------------------------
void sum_of_squares(DType dtype, const void* g, int64_t count, bool accumulate, double* sum, double* group_sums,
                    cudaStream_t stream);
/// `u.states` are those that the optimizer keeps (with_states_of).
void optimizer_update(const FlatUpdate& u, const OptimizerConfig& config, const StepScalars* scalars,
                      cudaStream_t stream);

}  // namespace ftrun::cuda
