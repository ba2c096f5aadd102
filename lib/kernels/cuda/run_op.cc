#include "kernels/cuda/run_op.h"

#include <algorithm>
#include <limits>

#include "graph/gpu_workspace.h"
#include "kernels/cuda/attention_op.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

// --- embedding and rope --------------------------------------------------------------------------

void run_embed(const Operation& op) {
  const int64_t given = op.in_dims(1)[0];
  embed(op.dtype(),
        {.tokens = op.ints_in(0),
         .table = op.in(1),
         .x = op.out(0),
         .count = op.in_dims(0)[0],
         .width = op.in_dims(1)[1],
         .given = given,
         .rows = op.rows(given)},
        op.stream());
}

void run_embed_wgrad(const Operation& op) {
  const auto [dtable, dtype] = op.gradient(0);
  const int64_t scratch = gpu_embed_workspace(op.in_dims(0)[0], op.in_dims(1)[1]).bytes;
  if (scratch > 0) op.require_workspace(scratch);
  const RowsAttrs rows = op.rows(op.out_dims(0)[0]);
  embed_wgrad(op.dtype(),
              {.tokens = op.ints_in(0),
               .dx = op.in(1),
               .dtable = dtable,
               .gradient_dtype = dtype,
               .count = op.in_dims(0)[0],
               .width = op.in_dims(1)[1],
               .vocabulary = op.out_dims(0)[0],
               .first_row = rows.first_row,
               .without_gradient = rows.without_gradient,
               .accumulate = op.accumulate(),
               .workspace = scratch > 0 ? op.workspace<void>() : nullptr},
              op.stream());
}

void run_rope_table(const Operation& op) {
  rope_table(op.ints_in(0), op.floats_out(0), op.in_dims(0)[0], op.attrs<RopeTableAttrs>(), op.stream());
}

void run_rope(const Operation& op, float sine_sign) {
  rope(op.dtype(), op.in(0), op.floats_in(1), op.out(0), op.in_dims(0)[0], op.attrs<HeadAttrs>(), sine_sign,
       op.stream());
}

// --- norms ---------------------------------------------------------------------------------------

void run_rms_norm(const Operation& op) {
  rms_norm(op.dtype(),
           {.x = op.in(0),
            .r = nullptr,
            .w = op.in(1),
            .sum = nullptr,
            .y = op.out(0),
            .rstd = op.floats_out(1),
            .rows = op.in_dims(0)[0],
            .width = op.in_dims(0)[1],
            .epsilon = op.attrs<NormAttrs>().epsilon},
           op.stream());
}

void run_add_rms_norm(const Operation& op) {
  rms_norm(op.dtype(),
           {.x = op.in(0),
            .r = op.in(1),
            .w = op.in(2),
            .sum = op.out(0),
            .y = op.out(1),
            .rstd = op.floats_out(2),
            .rows = op.in_dims(0)[0],
            .width = op.in_dims(0)[1],
            .epsilon = op.attrs<NormAttrs>().epsilon},
           op.stream());
}

RmsNormDgrad rms_norm_dgrad_of(const Operation& op) {
  return {.dy = op.in(0),
          .x = op.in(1),
          .rstd = op.floats_in(2),
          .w = op.in(3),
          .e = op.has_in(4) ? op.in(4) : nullptr,
          .dx = op.out(0),
          .rows = op.in_dims(0)[0],
          .width = op.in_dims(0)[1]};
}

/// The fields that every sum over tokens shares; out(i) is the gradient.
WeightGradient weight_gradient_of(const Operation& op, size_t i) {
  const auto [gradient, dtype] = op.gradient(i);
  return {.dy = op.in(0),
          .x = nullptr,
          .rstd = nullptr,
          .tokens = op.in_dims(0)[0],
          .heads = 1,
          .width = op.out_dims(i)[0],
          .row_stride = op.in_dims(0)[1],
          .rstd_stride = 1,
          .gradient = gradient,
          .gradient_dtype = dtype,
          .accumulate = op.accumulate(),
          .workspace = op.workspace<void>(),
          .workspace_bytes = op.workspace_bytes()};
}

WeightGradient rms_norm_weight_gradient_of(const Operation& op) {
  WeightGradient g = weight_gradient_of(op, 0);
  g.x = op.in(1);
  g.rstd = op.floats_in(2);
  return g;
}

void run_qk_norm(const Operation& op) {
  qk_norm(op.dtype(), op.in(0), op.in(1), op.in(2), op.out(0), op.floats_out(1), op.in_dims(0)[0],
          op.attrs<HeadAttrs>(), op.stream());
}

void run_qk_norm_dgrad(const Operation& op) {
  qk_norm_dgrad(op.dtype(), op.in(0), op.in(1), op.floats_in(2), op.in(3), op.in(4), op.out(0), op.in_dims(0)[0],
                op.attrs<HeadAttrs>(), op.stream());
}

/// The gradient of one of the two weights: `first_head` of the row's heads on, `heads` of them.
void run_qk_norm_wgrad_part(const Operation& op, size_t out, int64_t first_head, int64_t heads) {
  const auto& attrs = op.attrs<HeadAttrs>();
  const int64_t skip = first_head * attrs.head_size * dtype_bytes(op.dtype());
  WeightGradient g = weight_gradient_of(op, out);
  g.dy = static_cast<const std::byte*>(op.in(0)) + skip;
  g.x = static_cast<const std::byte*>(op.in(1)) + skip;
  g.rstd = op.floats_in(2) + first_head;
  g.heads = heads;
  g.rstd_stride = attrs.query_heads + attrs.kv_heads;
  weight_gradient(op.dtype(), g, op.stream());
}

void run_qk_norm_wgrad(const Operation& op) {
  const auto& attrs = op.attrs<HeadAttrs>();
  run_qk_norm_wgrad_part(op, 0, 0, attrs.query_heads);
  run_qk_norm_wgrad_part(op, 1, attrs.query_heads, attrs.kv_heads);
}

// --- linear --------------------------------------------------------------------------------------

const void* element(const Operation& op, const void* data, int64_t index) {
  return static_cast<const std::byte*>(data) + index * dtype_bytes(op.dtype());
}

void* element(const Operation& op, void* data, int64_t index) {
  return static_cast<std::byte*>(data) + index * dtype_bytes(op.dtype());
}

/// `whole`, by input 1, as it is or as products by parts of it that are unpacked one after another: some columns of the
/// result each.
void multiply_by_weight(const Operation& op, Product whole, Matmul& matmul) {
  const PackedFormat& format = op.packed(1);
  if (!format) {
    whole.b = op.in(1);
    return matmul.run(whole, op.stream());
  }
  const int64_t panel_columns = gpu_panel_columns(whole.n, whole.k);
  op.require_workspace(panel_columns * whole.k * dtype_bytes(op.dtype()));
  for (int64_t first = 0; first < whole.n; first += panel_columns) {
    Product part = whole;
    part.n = std::min(panel_columns, whole.n - first);
    part.b = op.workspace<void>();
    part.c = element(op, whole.c, first);
    part.c_stride = whole.n;
    if (whole.transpose_b)
      unpack(op.dtype(), {format, op.records(1), op.workspace<void>(), whole.k, first, part.n, 0, whole.k}, op.stream());
    else
      unpack(op.dtype(), {format, op.records(1), op.workspace<void>(), whole.n, 0, whole.k, first, part.n}, op.stream());
    matmul.run(part, op.stream());
  }
}

void run_linear(const Operation& op, Matmul& matmul) {
  const int64_t tokens = op.in_dims(0)[0], inputs = op.in_dims(0)[1], outputs = op.in_dims(1)[0];
  const bool bias = op.adds_bias();
  if (bias) fill_rows(op.dtype(), op.in(2), op.out(0), tokens, outputs, op.stream());
  multiply_by_weight(op,
                     {.transpose_b = true,
                      .m = tokens,
                      .n = outputs,
                      .k = inputs,
                      .a = op.in(0),
                      .c = op.out(0),
                      .beta = bias ? 1.0F : 0.0F,
                      .dtype = op.dtype(),
                      .out_dtype = op.dtype()},
                     matmul);
}

/// Nothing where they are the same.
void copy_operand(const Operation& op, size_t in, int64_t elements) {
  if (op.in(in) == op.out(0)) return;
  cuda::check(cudaMemcpyAsync(op.out(0), op.in(in), static_cast<size_t>(elements * dtype_bytes(op.dtype())),
                              cudaMemcpyDefault, op.stream()),
              "copying what a product adds to");
}

void run_linear_dgrad(const Operation& op, Matmul& matmul) {
  const bool adds = op.has_in(2);
  if (adds) copy_operand(op, 2, element_count(op.in_dims(2)));
  multiply_by_weight(op,
                     {.m = op.in_dims(0)[0],
                      .n = op.in_dims(1)[1],
                      .k = op.in_dims(0)[1],
                      .a = op.in(0),
                      .c = op.out(0),
                      .beta = adds ? 1.0F : 0.0F,
                      .dtype = op.dtype(),
                      .out_dtype = op.dtype()},
                     matmul);
}

void run_lora_up(const Operation& op, Matmul& matmul) {
  const int64_t tokens = op.in_dims(0)[0], outputs = op.in_dims(0)[1];
  const std::vector<LoraPart> parts = op.lora_parts();
  copy_operand(op, 0, tokens * outputs);
  for (size_t p = 0; p < parts.size(); ++p)
    matmul.run({.transpose_b = true,
                .m = tokens,
                .n = parts[p].columns,
                .k = parts[p].rank,
                .a = element(op, op.in(1), parts[p].first_rank),
                .b = op.in(2 + p),
                .c = element(op, op.out(0), parts[p].first_column),
                .alpha = static_cast<float>(parts[p].scale),
                .beta = 1.0F,
                .a_stride = lora_ranks(parts),
                .c_stride = outputs,
                .dtype = op.dtype(),
                .out_dtype = op.dtype()},
               op.stream());
}

void run_lora_up_dgrad(const Operation& op, Matmul& matmul) {
  const std::vector<LoraPart> parts = op.lora_parts();
  for (size_t p = 0; p < parts.size(); ++p)
    matmul.run({.m = op.in_dims(0)[0],
                .n = parts[p].rank,
                .k = parts[p].columns,
                .a = element(op, op.in(0), parts[p].first_column),
                .b = op.in(1 + p),
                .c = element(op, op.out(0), parts[p].first_rank),
                .alpha = static_cast<float>(parts[p].scale),
                .a_stride = op.in_dims(0)[1],
                .c_stride = lora_ranks(parts),
                .dtype = op.dtype(),
                .out_dtype = op.dtype()},
               op.stream());
}

void run_lora_up_wgrad(const Operation& op, Matmul& matmul) {
  const std::vector<LoraPart> parts = op.lora_parts();
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto [db, dtype] = op.gradient(p);
    matmul.run({.transpose_a = true,
                .m = parts[p].columns,
                .n = parts[p].rank,
                .k = op.in_dims(0)[0],
                .a = element(op, op.in(0), parts[p].first_column),
                .b = element(op, op.in(1), parts[p].first_rank),
                .c = db,
                .alpha = static_cast<float>(parts[p].scale),
                .beta = op.accumulate() ? 1.0F : 0.0F,
                .a_stride = op.in_dims(0)[1],
                .b_stride = lora_ranks(parts),
                .dtype = op.dtype(),
                .out_dtype = dtype},
               op.stream());
  }
}

/// Panels of W + scale B A, one after another: never all of it.
void run_dora_squared_lengths(const Operation& op, Matmul& matmul) {
  const int64_t inputs = op.in_dims(1)[1];
  const PackedFormat& format = op.packed(0);
  const std::vector<LoraPart> parts = op.lora_parts();
  const GpuDoraWorkspace place = gpu_dora_workspace(most_columns(parts), inputs, dtype_bytes(op.dtype()),
                                                    static_cast<bool>(format));
  op.require_workspace(place.bytes);
  auto* const delta = op.workspace<float>(place.delta);
  float* squares = op.floats_out(0);
  for (size_t p = 0; p < parts.size(); ++p) {
    const LoraPart& part = parts[p];
    for (int64_t row = 0; row < part.columns; row += place.rows) {
      const int64_t rows = std::min(place.rows, part.columns - row), first = part.first_column + row;
      matmul.run({.m = rows,
                  .n = inputs,
                  .k = part.rank,
                  .a = element(op, op.in(2 + p), row * part.rank),
                  .b = element(op, op.in(1), part.first_rank * inputs),
                  .c = delta,
                  .alpha = static_cast<float>(part.scale),
                  .dtype = op.dtype(),
                  .out_dtype = DType::kF32},
                 op.stream());
      void* const unpacked = format ? op.workspace<void>(place.weight) : nullptr;
      if (format) unpack(op.dtype(), {format, op.records(0), unpacked, inputs, first, rows, 0, inputs}, op.stream());
      const void* const weight = format ? unpacked : element(op, op.in(0), first * inputs);
      squared_row_lengths(op.dtype(), weight, delta, squares + row, rows, inputs, op.stream());
    }
    squares += part.columns;
  }
}

void run_dora_scale(const Operation& op, bool adds_bias) {
  scale_columns(op.dtype(),
                {.x = op.in(0),
                 .squares = op.floats_in(1),
                 .magnitudes = op.floats_in(2),
                 .bias = adds_bias ? op.in(3) : nullptr,
                 .y = op.out(0),
                 .count = op.in_dims(0)[0],
                 .width = op.in_dims(0)[1]},
                op.attrs<DoraAttrs>(), op.stream());
}

void run_dora_scale_wgrad(const Operation& op) {
  const auto [gradient, dtype] = op.gradient(0);
  int64_t before = 0;
  for (const DoraAttrs::Part& part : op.attrs<DoraAttrs>().parts) {
    WeightGradient g = weight_gradient_of(op, 0);
    g.dy = element(op, op.in(0), part.first_column);
    g.x = element(op, op.in(1), part.first_column);
    g.width = part.columns;
    g.gradient = static_cast<std::byte*>(gradient) + before * dtype_bytes(dtype);
    g.squares = op.floats_in(2) + before;
    weight_gradient(op.dtype(), g, op.stream());
    before += part.columns;
  }
}

void run_linear_wgrad(const Operation& op, Matmul& matmul) {
  const auto [dw, dtype] = op.gradient(0);
  matmul.run({.transpose_a = true,
              .m = op.in_dims(0)[1],
              .n = op.in_dims(1)[1],
              .k = op.in_dims(0)[0],
              .a = op.in(0),
              .b = op.in(1),
              .c = dw,
              .beta = op.accumulate() ? 1.0F : 0.0F,
              .dtype = op.dtype(),
              .out_dtype = dtype},
             op.stream());
}

// --- pointwise -----------------------------------------------------------------------------------

void run_swiglu(const Operation& op) {
  swiglu(op.dtype(), op.in(0), op.out(0), op.in_dims(0)[0], op.in_dims(0)[1] / 2, op.stream());
}

void run_swiglu_dgrad(const Operation& op) {
  swiglu_dgrad(op.dtype(), op.in(0), op.in(1), op.out(0), op.in_dims(0)[0], op.in_dims(0)[1], op.stream());
}

void run_dropout(const Operation& op) {
  dropout(op.dtype(),
          {.x = op.in(0),
           .y = op.out(0),
           .count = op.in_dims(0)[0],
           .width = op.in_dims(0)[1],
           .attrs = op.attrs<DropoutAttrs>(),
           .layer = op.layer(),
           .first_token = op.first_token(),
           .scalars = op.scalars()},
          op.stream());
}

void run_add(const Operation& op) {
  add(op.dtype(), op.in(0), op.in(1), op.out(0), element_count(op.in_dims(0)), op.stream());
}

// --- loss ----------------------------------------------------------------------------------------

/// A chunk's gradients of the logits, in the dtype of the activations.
struct LogitGradients {
  int64_t first, count;
  const void* data;
  /// Elements from a row to the next.
  int64_t stride;
  bool adds_to_weight;
};

/// dx of the chunk's tokens (out 1) and, where it is wanted, dw (out 2) of x (in 0) and w (in 1).
void head_gradients(const Operation& op, const LogitGradients& g, Matmul& matmul) {
  const int64_t hidden = op.in_dims(0)[1], vocabulary = op.in_dims(1)[0];
  const int64_t skip = g.first * hidden * dtype_bytes(op.dtype());
  if (op.has_out(2)) {
    const auto [dw, dw_dtype] = op.gradient(2);
    matmul.run_in_whole_rows(
        {.transpose_a = true,
         .m = vocabulary,
         .n = hidden,
         .k = g.count,
         .a = g.data,
         .b = static_cast<const std::byte*>(op.in(0)) + skip,
         .c = dw,
         .beta = g.adds_to_weight ? 1.0F : 0.0F,
         .a_stride = g.stride,
         .dtype = op.dtype(),
         .out_dtype = dw_dtype},
        Matmul::Rows::kM, op.stream());
  }
  matmul.run_in_whole_rows(
      {.m = g.count,
       .n = hidden,
       .k = vocabulary,
       .a = g.data,
       .b = op.in(1),
       .c = static_cast<std::byte*>(op.out(1)) + skip,
       .a_stride = g.stride,
       .dtype = op.dtype(),
       .out_dtype = op.dtype()},
      Matmul::Rows::kK, op.stream());
}

/// All tokens are multiplied, masked ones too: how many count is known only on the device. Their rows of
/// dlogits are 0.
class LinearCrossEntropy {
 public:
  LinearCrossEntropy(const Operation& op, Matmul& matmul)
      : op_(op),
        matmul_(matmul),
        attrs_(op.attrs<CrossEntropyAttrs>()),
        tokens_(op.in_dims(0)[0]),
        hidden_(op.in_dims(0)[1]),
        vocabulary_(op.in_dims(1)[0]),
        place_(gpu_head_workspace(tokens_, vocabulary_, attrs_, dtype_bytes(op.dtype()))),
        logits_(op.workspace<void>(place_.logits)) {
    op.require_workspace(place_.bytes);
  }

  void run() {
    for (int64_t first = 0; first < tokens_; first += place_.chunk)
      run_chunk(first, std::min(place_.chunk, tokens_ - first));
  }

 private:
  void run_chunk(int64_t first, int64_t count) {
    const int64_t skip = first * hidden_ * dtype_bytes(op_.dtype());
    const void* const x = static_cast<const std::byte*>(op_.in(0)) + skip;
    const int32_t* const labels = op_.ints_in(2) + first;
    auto* const losses = op_.workspace<double>(place_.losses);
    int32_t* const correct =
        attrs_.with_gradients ? nullptr : op_.workspace<int32_t>(place_.correct);
    matmul_.run_in_whole_rows(
        {.transpose_b = true,
         .m = count,
         .n = vocabulary_,
         .k = hidden_,
         .a = x,
         .b = op_.in(1),
         .c = logits_,
         .c_stride = place_.row,
         .dtype = op_.dtype(),
         .out_dtype = op_.dtype()},
        Matmul::Rows::kN, op_.stream());
    softmax_loss(op_.dtype(),
                 {.logits = logits_,
                  .labels = labels,
                  .losses = losses,
                  .correct = correct,
                  .rows = count,
                  .vocabulary = vocabulary_,
                  .row_stride = place_.row,
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
    if (attrs_.with_gradients)
      head_gradients(op_, {first, count, logits_, place_.row, first > 0 || op_.accumulate()},
                     matmul_);
  }

  const Operation& op_;
  Matmul& matmul_;
  const CrossEntropyAttrs& attrs_;
  int64_t tokens_, hidden_, vocabulary_;
  GpuHeadWorkspace place_;
  void* logits_;
};

VocabularyRows vocabulary_rows(const Operation& op, int64_t rows) {
  const auto& attrs = op.attrs<VocabularyAttrs>();
  const int64_t vocabulary = op.in_dims(1)[0];
  return {.labels = op.ints_in(2) + attrs.first_token,
          .logits = nullptr,
          .label_logit = nullptr,
          .rows = rows,
          .vocabulary = vocabulary,
          .first_row = attrs.rank * vocabulary,
          .all_rows = attrs.ranks * vocabulary};
}

void run_vocabulary_logits(const Operation& op, Matmul& matmul) {
  VocabularyRows rows = vocabulary_rows(op, op.out_dims(0)[0]);
  rows.logits = op.floats_out(0);
  rows.label_logit = op.floats_out(2);
  const int64_t hidden = op.in_dims(0)[1];
  const int64_t skip = op.attrs<VocabularyAttrs>().first_token * hidden * dtype_bytes(op.dtype());
  matmul.run_in_whole_rows(
      {.transpose_b = true,
       .m = rows.rows,
       .n = rows.vocabulary,
       .k = hidden,
       .a = static_cast<const std::byte*>(op.in(0)) + skip,
       .b = op.in(1),
       .c = rows.logits,
       .dtype = op.dtype(),
       .out_dtype = DType::kF32},
      Matmul::Rows::kN, op.stream());
  vocabulary_statistics(rows, op.floats_out(1), op.stream());
}

void run_vocabulary_cross_entropy(const Operation& op, Matmul& matmul) {
  const auto& attrs = op.attrs<VocabularyAttrs>();
  VocabularyRows rows = vocabulary_rows(op, op.in_dims(3)[0]);
  // Read and, with gradients, written.
  rows.logits = const_cast<float*>(op.floats_in(3));
  rows.label_logit = const_cast<float*>(op.floats_in(5));
  const GpuHeadWorkspace place = gpu_vocabulary_workspace(rows.rows, attrs.with_gradients);
  op.require_workspace(place.bytes);
  auto* const losses = op.workspace<double>(place.losses);
  int32_t* const correct = attrs.with_gradients ? nullptr : op.workspace<int32_t>(place.correct);
  vocabulary_loss(op.dtype(),
                  {.of = rows,
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
  head_gradients(
      op,
      {attrs.first_token, rows.rows, rows.logits, stride, attrs.first_token > 0 || op.accumulate()},
      matmul);
}

}  // namespace

void prepare(const LayerGraph& graph, const Libraries& libraries) {
  for (const auto* list : {&graph.forward, &graph.backward})
    for (const Op& op : *list)
      if (op.kind == OpKind::kAttention || op.kind == OpKind::kAttentionDgrad) prepare_attention(graph, op, libraries);
}

bool run_norm_gradients(const Operation& weight, const Operation& input) {
  const WeightGradient g = rms_norm_weight_gradient_of(weight);
  return rms_norm_gradients(input.dtype(), rms_norm_dgrad_of(input), g, input.stream());
}

// clang-format off
void run_operation(const Operation& op, const Libraries& libraries) {
  Matmul& matmul = libraries.matmul;
  switch (op.kind()) {
    case OpKind::kEmbed: return run_embed(op);
    case OpKind::kEmbedWgrad: return run_embed_wgrad(op);
    case OpKind::kRopeTable: return run_rope_table(op);
    case OpKind::kRmsNorm: return run_rms_norm(op);
    case OpKind::kAddRmsNorm: return run_add_rms_norm(op);
    case OpKind::kRmsNormDgrad: return rms_norm_dgrad(op.dtype(), rms_norm_dgrad_of(op), op.stream());
    case OpKind::kRmsNormWgrad: return weight_gradient(op.dtype(), rms_norm_weight_gradient_of(op), op.stream());
    case OpKind::kLinear: return run_linear(op, matmul);
    case OpKind::kLinearDgrad: return run_linear_dgrad(op, matmul);
    case OpKind::kLinearWgrad: return run_linear_wgrad(op, matmul);
    case OpKind::kLoraUp: return run_lora_up(op, matmul);
    case OpKind::kLoraUpDgrad: return run_lora_up_dgrad(op, matmul);
    case OpKind::kLoraUpWgrad: return run_lora_up_wgrad(op, matmul);
    case OpKind::kDoraSquaredLengths: return run_dora_squared_lengths(op, matmul);
    case OpKind::kDoraScale: return run_dora_scale(op, op.has_in(3) && op.attrs<DoraAttrs>().adds_bias);
    case OpKind::kDoraScaleDgrad: return run_dora_scale(op, false);
    case OpKind::kDoraScaleWgrad: return run_dora_scale_wgrad(op);
    case OpKind::kDropout: return run_dropout(op);
    case OpKind::kBiasWgrad: return weight_gradient(op.dtype(), weight_gradient_of(op, 0), op.stream());
    case OpKind::kQkNorm: return run_qk_norm(op);
    case OpKind::kQkNormDgrad: return run_qk_norm_dgrad(op);
    case OpKind::kQkNormWgrad: return run_qk_norm_wgrad(op);
    case OpKind::kRope: return run_rope(op, 1.0F);
    case OpKind::kRopeDgrad: return run_rope(op, -1.0F);
    case OpKind::kAttention: return run_attention(op, libraries);
    case OpKind::kAttentionDgrad: return run_attention_dgrad(op, libraries);
    case OpKind::kSwiGlu: return run_swiglu(op);
    case OpKind::kSwiGluDgrad: return run_swiglu_dgrad(op);
    case OpKind::kAdd: return run_add(op);
    case OpKind::kLinearCrossEntropy: return LinearCrossEntropy(op, matmul).run();
    case OpKind::kVocabularyLogits: return run_vocabulary_logits(op, matmul);
    case OpKind::kVocabularyCrossEntropy: return run_vocabulary_cross_entropy(op, matmul);
    case OpKind::kTensorAllReduce:
    case OpKind::kTensorAllGather:
    case OpKind::kTensorReduceScatter: bug(cat(op_name(op.kind()), " is no work for a kernel"));
  }
  bug("unknown operation kind");
}
// clang-format on

}  // namespace ftrun::cuda
