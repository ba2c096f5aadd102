#include "ops/cross_entropy/gpu.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/workspace.h"

namespace ftrun::cuda {

namespace {

/// LogitGradients holds the gradients of a chunk's logits, in the dtype of the activations.
struct LogitGradients {
  int64_t first, count;
  const void* data;
  /// The number of elements from one row to the next.
  int64_t stride;
  /// Says whether the gradients of parameters are added to their buffers. False: they overwrite
  /// them.
  bool adds;
  HeadGradientIndices results;
  /// F32[kGpuBiasParts, V], where the bias has a gradient.
  void* bias_sums;
};

/// Computes dbias = [dbias +] the sum of the chunk's rows.
void run_bias_gradient(const Operation& op, const LogitGradients& g) {
  const int64_t vocabulary = op.in_dims(1)[0];
  const auto [gradient, dtype] = op.gradient(g.results.bias);
  vector_gradient(op.dtype(),
                  {.dy = g.data,
                   .x = nullptr,
                   .rstd = nullptr,
                   .tokens = g.count,
                   .heads = 1,
                   .width = vocabulary,
                   .row_stride = g.stride,
                   .rstd_stride = 0,
                   .gradient = gradient,
                   .gradient_dtype = dtype,
                   .accumulate = g.adds,
                   .workspace = g.bias_sums,
                   .workspace_bytes = kGpuBiasParts * vocabulary * dtype_bytes(DType::kF32)},
                  op.stream());
}

/// Computes dx of the chunk's tokens (result 1) and, if wanted, the gradients of w (operand 1) and
/// of the bias.
void run_head_gradients(const Operation& op, const LogitGradients& g, Matmul& matmul) {
  const int64_t hidden = op.in_dims(0)[1], vocabulary = op.in_dims(1)[0];
  const int64_t skip = g.first * hidden * dtype_bytes(op.dtype());
  if (g.results.bias > 0) run_bias_gradient(op, g);
  if (g.results.weight > 0) {
    const auto [dw, dw_dtype] = op.gradient(g.results.weight);
    matmul.run_in_whole_rows({.transpose_a = true,
                              .m = vocabulary,
                              .n = hidden,
                              .k = g.count,
                              .a = g.data,
                              .b = static_cast<const std::byte*>(op.in(0)) + skip,
                              .c = dw,
                              .beta = g.adds ? 1.0F : 0.0F,
                              .a_stride = g.stride,
                              .dtype = op.dtype(),
                              .out_dtype = dw_dtype},
                             Matmul::HeadRowsExtent::kM, op.stream());
  }
  matmul.run_in_whole_rows({.m = g.count,
                            .n = hidden,
                            .k = vocabulary,
                            .a = g.data,
                            .b = op.in(1),
                            .c = static_cast<std::byte*>(op.out(1)) + skip,
                            .a_stride = g.stride,
                            .dtype = op.dtype(),
                            .out_dtype = op.dtype()},
                           Matmul::HeadRowsExtent::kK, op.stream());
}

/// Returns the memory for partial sums of the gradient of the bias; null if the bias has none.
void* bias_sums_workspace(const Operation& op, const GpuHeadWorkspace& layout) {
  return layout.bias_sums < 0 ? nullptr : op.workspace<void>(layout.bias_sums);
}

/// LinearCrossEntropy multiplies all tokens, including masked ones, because only the device knows
/// how many tokens count. Masked tokens have rows of 0 in dlogits.
class LinearCrossEntropy {
 public:
  LinearCrossEntropy(const Operation& op, Matmul& matmul)
      : op_(op),
        matmul_(matmul),
        attrs_(op.attrs<CrossEntropyAttrs>()),
        tokens_(op.in_dims(0)[0]),
        hidden_(op.in_dims(0)[1]),
        vocabulary_(op.in_dims(1)[0]),
        results_(head_gradients_of(op.op())),
        workspace_layout_(gpu_head_workspace(tokens_, vocabulary_, attrs_, dtype_bytes(op.dtype()),
                                             results_.bias > 0)),
        logits_(op.workspace<void>(workspace_layout_.logits)) {
    op.require_workspace(workspace_layout_.bytes);
  }

  void run() {
    for (int64_t first = 0; first < tokens_; first += workspace_layout_.chunk)
      run_chunk(first, std::min(workspace_layout_.chunk, tokens_ - first));
  }

 private:
  void run_chunk(int64_t first, int64_t count) {
    const int64_t skip = first * hidden_ * dtype_bytes(op_.dtype());
    const void* const x = static_cast<const std::byte*>(op_.in(0)) + skip;
    const int32_t* const labels = op_.ints_in(2) + first;
    auto* const losses = op_.workspace<double>(workspace_layout_.losses);
    int32_t* const correct =
        attrs_.with_gradients ? nullptr : op_.workspace<int32_t>(workspace_layout_.correct);
    const bool bias = op_.has_in(3);
    if (bias)
      fill_rows(op_.dtype(), op_.in(3),
                {.data = logits_,
                 .dtype = op_.dtype(),
                 .count = count,
                 .width = vocabulary_,
                 .stride = workspace_layout_.row_stride},
                op_.stream());
    matmul_.run_in_whole_rows({.transpose_b = true,
                               .m = count,
                               .n = vocabulary_,
                               .k = hidden_,
                               .a = x,
                               .b = op_.in(1),
                               .c = logits_,
                               .beta = bias ? 1.0F : 0.0F,
                               .c_stride = workspace_layout_.row_stride,
                               .dtype = op_.dtype(),
                               .out_dtype = op_.dtype()},
                              Matmul::HeadRowsExtent::kN, op_.stream());
    softmax_loss(op_.dtype(),
                 {.logits = logits_,
                  .labels = labels,
                  .losses = losses,
                  .correct = correct,
                  .rows = count,
                  .vocabulary = vocabulary_,
                  .row_stride = workspace_layout_.row_stride,
                  .softcap = static_cast<float>(attrs_.softcap),
                  .scalars = attrs_.with_gradients ? op_.scalars() : nullptr},
                 op_.stream());
    add_losses({.losses = losses,
                .labels = labels,
                .correct = correct,
                .rows = count,
                .loss = op_.doubles_out(0),
                .first_label = 0,
                .end_label = std::numeric_limits<int64_t>::max()},
               op_.stream());
    if (!attrs_.with_gradients) return;
    run_head_gradients(op_,
                       {.first = first,
                        .count = count,
                        .data = logits_,
                        .stride = workspace_layout_.row_stride,
                        .adds = first > 0 || op_.accumulates(),
                        .results = results_,
                        .bias_sums = bias_sums_workspace(op_, workspace_layout_)},
                       matmul_);
  }

  const Operation& op_;
  Matmul& matmul_;
  const CrossEntropyAttrs& attrs_;
  int64_t tokens_, hidden_, vocabulary_;
  HeadGradientIndices results_;
  GpuHeadWorkspace workspace_layout_;
  void* logits_;
};

VocabularyChunkArguments vocabulary_rows(const Operation& op, int64_t rows) {
  const auto& attrs = op.attrs<VocabularyAttrs>();
  const int64_t vocabulary = op.in_dims(1)[0];
  return {.labels = op.ints_in(2) + attrs.first_token,
          .logits = nullptr,
          .label_logit = nullptr,
          .rows = rows,
          .vocabulary = vocabulary,
          .unpadded_rows = attrs.unpadded_rows(vocabulary),
          .first_row = attrs.rank * vocabulary,
          .all_rows = attrs.ranks * vocabulary,
          .softcap = static_cast<float>(attrs.softcap)};
}

}  // namespace

void run_linear_cross_entropy(const Operation& op, const KernelLibraries& libraries) {
  LinearCrossEntropy(op, libraries.matmul).run();
}

void run_vocabulary_logits(const Operation& op, const KernelLibraries& libraries) {
  VocabularyChunkArguments rows = vocabulary_rows(op, op.out_dims(0)[0]);
  rows.logits = op.floats_out(0);
  rows.label_logit = op.floats_out(2);
  const int64_t hidden = op.in_dims(0)[1];
  const int64_t skip = op.attrs<VocabularyAttrs>().first_token * hidden * dtype_bytes(op.dtype());
  const bool bias = op.has_in(3);
  if (bias)
    fill_rows(op.dtype(), op.in(3),
              {.data = rows.logits,
               .dtype = DType::kF32,
               .count = rows.rows,
               .width = rows.vocabulary,
               .stride = rows.vocabulary},
              op.stream());
  libraries.matmul.run_in_whole_rows({.transpose_b = true,
                                      .m = rows.rows,
                                      .n = rows.vocabulary,
                                      .k = hidden,
                                      .a = static_cast<const std::byte*>(op.in(0)) + skip,
                                      .b = op.in(1),
                                      .c = rows.logits,
                                      .beta = bias ? 1.0F : 0.0F,
                                      .dtype = op.dtype(),
                                      .out_dtype = DType::kF32},
                                     Matmul::HeadRowsExtent::kN, op.stream());
  vocabulary_statistics(rows, op.floats_out(1), op.stream());
}

void run_vocabulary_cross_entropy(const Operation& op, const KernelLibraries& libraries) {
  const auto& attrs = op.attrs<VocabularyAttrs>();
  VocabularyChunkArguments rows = vocabulary_rows(op, op.in_dims(3)[0]);
  // The kernel reads these logits and, with gradients, writes them.
  rows.logits = const_cast<float*>(op.floats_in(3));
  rows.label_logit = const_cast<float*>(op.floats_in(5));
  const HeadGradientIndices results = vocabulary_gradients_of(op.op());
  const GpuHeadWorkspace layout = gpu_vocabulary_workspace(rows.rows, attrs.with_gradients,
                                                           results.bias > 0 ? rows.vocabulary : 0);
  op.require_workspace(layout.bytes);
  auto* const losses = op.workspace<double>(layout.losses);
  int32_t* const correct = attrs.with_gradients ? nullptr : op.workspace<int32_t>(layout.correct);
  vocabulary_loss(op.dtype(),
                  {.chunk = rows,
                   .statistics = op.floats_in(4),
                   .ranks = attrs.ranks,
                   .losses = losses,
                   .correct = correct,
                   .scalars = attrs.with_gradients ? op.scalars() : nullptr},
                  op.stream());
  add_losses({.losses = losses,
              .labels = rows.labels,
              .correct = correct,
              .rows = rows.rows,
              .loss = op.doubles_out(0),
              .first_label = rows.first_row,
              .end_label = rows.first_row + rows.vocabulary},
             op.stream());
  if (!attrs.with_gradients) return;
  const int64_t stride = rows.vocabulary * dtype_bytes(DType::kF32) / dtype_bytes(op.dtype());
  run_head_gradients(op,
                     {.first = attrs.first_token,
                      .count = rows.rows,
                      .data = rows.logits,
                      .stride = stride,
                      .adds = attrs.first_token > 0 || op.accumulates(),
                      .results = results,
                      .bias_sums = bias_sums_workspace(op, layout)},
                     libraries.matmul);
}

}  // namespace ftrun::cuda
