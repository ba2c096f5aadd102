#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "base/quantized_format.h"
#include "kernels/kernels.h"

// The functions of this header launch kernels that operations share on a GPU: each enqueues its
// kernels on `stream`. `dtype` is the dtype of the activations, F32, BF16 or F16. Letters are those
// of graph/op_spec.h.
namespace ftrun::cuda {

// --- pointwise.cu --------------------------------------------------------------------------------
/// RowSpan is `count` rows of `width` elements, `stride` elements from one to the next, in the
/// dtype of the activations or in F32.
struct RowSpan {
  void* data;
  DType dtype;
  int64_t count, width, stride;
};
/// Sets every row of y to `row`, which has the dtype of the activations.
void fill_rows(DType dtype, const void* row, const RowSpan& y, cudaStream_t stream);
void convert(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count,
             cudaStream_t stream);
void add_into(DType from_dtype, const void* from, DType to_dtype, void* to, int64_t count,
              cudaStream_t stream);
/// Sums blocks; `dtype` may also be F64.
void sum_blocks(DType dtype, const void* blocks, int ranks, int64_t stride, void* out,
                int64_t count, cudaStream_t stream);

// --- quantized.cu --------------------------------------------------------------------------------
/// DequantizeArguments describes out[rows,width] = the block of a quantized matrix that begins at
/// first_row, first_column; its rows have `columns` elements.
struct DequantizeArguments {
  const QuantizedFormat& format;
  const void* records;
  void* out;
  int64_t columns, first_row, rows, first_column, width;
};
void dequantize(DType dtype, const DequantizeArguments& u, cudaStream_t stream);

// --- vector_gradient.cu --------------------------------------------------------------------------
/// VectorGradient is gradient[width] (+)= sum over tokens and heads of dy * x * rstd, of dy * x
/// when rstd is null, or of dy when x is null. Element (n, h, i) of dy and x is at n * row_stride +
/// h * width + i, of rstd at n * rstd_stride + h. With a mean, which lies as rstd does, x is
/// replaced by x minus the mean.
struct VectorGradient {
  const void* dy;
  const void* x;
  const float* rstd;
  int64_t tokens, heads, width, row_stride, rstd_stride;
  void* gradient;
  DType gradient_dtype;
  bool accumulate;
  /// The workspace of partial sums.
  void* workspace;
  int64_t workspace_bytes;
  /// F32[width]: the sum of a column is divided by the square root of the column's number, and is 0
  /// if that is 0. Null: no division.
  const float* squares = nullptr;
  const float* mean = nullptr;
  /// The number of neighboring columns that share a mean and an rstd, which are at n * rstd_stride
  /// + h + column / rstd_columns; 0: all columns of a head do.
  int64_t rstd_columns = 0;
};
void vector_gradient(DType dtype, const VectorGradient& g, cudaStream_t stream);
/// The number of running sums of a part. The order of the whole sum is fixed: tokens are cut into
/// parts of vector_gradient_tokens() each, and a part has kPartLanes running sums, each over every
/// kPartLanes-th token. These are added in order; then add_partials() adds the parts in order, from
/// F32[parts, width] in g.workspace.
inline constexpr int kPartLanes = 8;
int64_t vector_gradient_parts(const VectorGradient& g);
int64_t vector_gradient_tokens(const VectorGradient& g);
void add_partials(const VectorGradient& g, cudaStream_t stream);
class Operation;
/// Returns the fields that every sum over tokens has: from operand 0 to result i.
VectorGradient vector_gradient_of(const Operation& op, size_t i);

// --- optimizer.cu --------------------------------------------------------------------------------
void sum_of_squares(DType dtype, const void* g, int64_t count, bool accumulate, double* sum,
                    double* group_sums, cudaStream_t stream);
/// Runs one step; `u.states` holds the states that the optimizer keeps (with_states_of).
void optimizer_update(const FlatUpdate& u, const OptimizerConfig& config,
                      const StepScalars* scalars, cudaStream_t stream);
void compute_scales(const FlatUpdate& u, const OptimizerConfig& config, const StepScalars* scalars,
                    cudaStream_t stream);

}  // namespace ftrun::cuda
