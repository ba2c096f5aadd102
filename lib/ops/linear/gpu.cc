#include <algorithm>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/linear/linear.h"
#include "ops/linear/workspace.h"

namespace ftrun::cuda {

namespace {

/// Runs `whole`, a multiplication by operand 1 (a weight). A quantized weight is dequantized part
/// by part; the multiplication by each part gives some columns of the result.
void multiply_by_weight(const Operation& op, MatmulArguments whole, Matmul& matmul) {
  const QuantizedFormat& format = op.quantized(1);
  if (!format) {
    whole.b = op.in(1);
    return matmul.run(whole, op.stream());
  }
  const int64_t panel_columns = gpu_panel_columns(whole.n, whole.k);
  op.require_workspace(panel_columns * whole.k * dtype_bytes(op.dtype()));
  for (int64_t first = 0; first < whole.n; first += panel_columns) {
    MatmulArguments part = whole;
    part.n = std::min(panel_columns, whole.n - first);
    part.b = op.workspace<void>();
    part.c = op.element(whole.c, first);
    part.c_stride = whole.n;
    if (whole.transpose_b)
      dequantize(op.dtype(),
                 {format, op.records(1), op.workspace<void>(), whole.k, first, part.n, 0, whole.k},
                 op.stream());
    else
      dequantize(op.dtype(),
                 {format, op.records(1), op.workspace<void>(), whole.n, 0, whole.k, first, part.n},
                 op.stream());
    matmul.run(part, op.stream());
  }
}

}  // namespace

void run_linear(const Operation& op, const KernelLibraries& libraries) {
  const int64_t tokens = op.in_dims(0)[0], inputs = op.in_dims(0)[1], outputs = op.in_dims(1)[0];
  const bool bias = adds_bias(op.op());
  if (bias)
    fill_rows(op.dtype(), op.in(2),
              {.data = op.out(0),
               .dtype = op.dtype(),
               .count = tokens,
               .width = outputs,
               .stride = outputs},
              op.stream());
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
                     libraries.matmul);
}

void run_linear_dgrad(const Operation& op, const KernelLibraries& libraries) {
  const bool adds = op.has_in(2);
  if (adds) op.copy_to_result(2, element_count(op.in_dims(2)));
  multiply_by_weight(op,
                     {.m = op.in_dims(0)[0],
                      .n = op.in_dims(1)[1],
                      .k = op.in_dims(0)[1],
                      .a = op.in(0),
                      .c = op.out(0),
                      .beta = adds ? 1.0F : 0.0F,
                      .dtype = op.dtype(),
                      .out_dtype = op.dtype()},
                     libraries.matmul);
}

void run_linear_wgrad(const Operation& op, const KernelLibraries& libraries) {
  const auto [dw, dtype] = op.gradient(0);
  libraries.matmul.run({.transpose_a = true,
                        .m = op.in_dims(0)[1],
                        .n = op.in_dims(1)[1],
                        .k = op.in_dims(0)[0],
                        .a = op.in(0),
                        .b = op.in(1),
                        .c = dw,
                        .beta = op.accumulates() ? 1.0F : 0.0F,
                        .dtype = op.dtype(),
                        .out_dtype = dtype},
                       op.stream());
}

void run_bias_wgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  vector_gradient(op.dtype(), vector_gradient_of(op, 0), op.stream());
}

}  // namespace ftrun::cuda
