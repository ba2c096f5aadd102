#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace ftrun::cuda {

/// MatmulArguments describes a row-major c[m,n] = alpha op(a) op(b) + beta c. op(a) is [m,k], op(b)
/// is [k,n]. With beta 0 c is not read.
struct MatmulArguments {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  float alpha = 1.0F;
  float beta = 0.0F;
  /// The number of elements from one stored row to the next; 0: rows are contiguous.
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  /// The dtype of a and b, and of c.
  DType dtype = DType::kF32;
  DType out_dtype = DType::kF32;
};

/// Matmul multiplies matrices with cuBLAS. Results are summed in fp32, without TF32, and have the
/// same bits from run to run. It allocates one workspace, so multiplications must be enqueued to
/// one stream at a time.
class Matmul {
 public:
  explicit Matmul(bool hopper);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  void run(const MatmulArguments& arguments, cudaStream_t stream);

  /// HeadRowsExtent names the extent of a multiplication that is the number of rows of the head's
  /// matrix.
  enum class HeadRowsExtent { kM, kN, kK };
  /// Runs the multiplication as two if its extent `rows`, the rows of the head's matrix, is not a
  /// multiple of 8: cuBLAS has no fast kernels for other extents, regardless of the strides (8B's
  /// head after one token was added, on an H100: 42 ms instead of 5.5). The second one has fewer
  /// than kWholeRows rows, and is added to the first if `rows` is kK.
  void run_in_whole_rows(const MatmulArguments& arguments, HeadRowsExtent rows,
                         cudaStream_t stream);

 private:
  void use(cudaStream_t stream);

  cublasHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  size_t workspace_bytes_;
  cudaStream_t stream_ = nullptr;
  bool has_stream_ = false;
};

}  // namespace ftrun::cuda
