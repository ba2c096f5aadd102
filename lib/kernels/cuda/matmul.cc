#include "kernels/cuda/matmul.h"

#include <limits>

#include "base/library_error.h"
#include "kernels/cuda/check.h"

namespace ftrun::cuda {

namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw_library_error(what, "cuBLAS", cublasGetStatusString(status),
                        status == CUBLAS_STATUS_ALLOC_FAILED);
}

int blas_int(int64_t value) {
  require(value >= 0 && value <= std::numeric_limits<int>::max(), "matrix dimension fits cuBLAS");
  return static_cast<int>(value);
}

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

/// The first of two multiplications (run_in_whole_rows()) has a multiple of kWholeRows rows of the
/// head's matrix. A multiplication with a multiple of kFastRows rows is fast and is not divided.
constexpr int64_t kWholeRows = 64, kFastRows = 8;

const void* element(const void* data, DType dtype, int64_t index) {
  return static_cast<const std::byte*>(data) + index * dtype_bytes(dtype);
}

/// Return the number of elements from one row to the next of a, b and c, as they are stored.
int64_t a_stride_of(const MatmulArguments& p) {
  return p.a_stride > 0 ? p.a_stride : p.transpose_a ? p.m : p.k;
}
int64_t b_stride_of(const MatmulArguments& p) {
  return p.b_stride > 0 ? p.b_stride : p.transpose_b ? p.k : p.n;
}
int64_t c_stride_of(const MatmulArguments& p) {
  return p.c_stride > 0 ? p.c_stride : p.n;
}

cublasOperation_t operation(bool transpose) {
  return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

/// Opens cuBLAS with a workspace of the size that NVIDIA advises: 32 MiB on Hopper, 4 MiB before.
Matmul::Matmul(bool hopper) : workspace_bytes_(static_cast<size_t>(hopper ? 32 : 4) << 20) {
  check(cublasCreate(&handle_), "opening cuBLAS");
  cuda::check(cudaMalloc(&workspace_, workspace_bytes_),
              "allocating the workspace of matrix multiplications");
  const int mode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  check(cublasSetMathMode(handle_, static_cast<cublasMath_t>(mode)), "setting cuBLAS up");
}

Matmul::~Matmul() {
  cublasDestroy(handle_);
  cudaFree(workspace_);
}

/// Chooses the stream. cublasSetStream() resets the workspace to cuBLAS's own, so ours is set
/// again.
void Matmul::use(cudaStream_t stream) {
  if (has_stream_ && stream == stream_) return;
  check(cublasSetStream(handle_, stream), "choosing cuBLAS's stream");
  check(cublasSetWorkspace(handle_, workspace_, workspace_bytes_), "setting cuBLAS's workspace");
  stream_ = stream;
  has_stream_ = true;
}

/// Multiplies matrices. cuBLAS is column-major: a row-major matrix is its transpose there, and c^T
/// = op(b)^T op(a)^T.
void Matmul::run(const MatmulArguments& p, cudaStream_t stream) {
  use(stream);
  const int m = blas_int(p.m), n = blas_int(p.n), k = blas_int(p.k);
  const int a_stride = blas_int(a_stride_of(p)), b_stride = blas_int(b_stride_of(p)),
            c_stride = blas_int(c_stride_of(p));
  check(
      cublasGemmEx(handle_, operation(p.transpose_b), operation(p.transpose_a), n, m, k, &p.alpha,
                   p.b, data_type(p.dtype), b_stride, p.a, data_type(p.dtype), a_stride, &p.beta,
                   p.c, data_type(p.out_dtype), c_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "a matrix multiplication");
}

void Matmul::run_in_whole_rows(const MatmulArguments& p, HeadRowsExtent rows, cudaStream_t stream) {
  const auto extent = [rows](MatmulArguments& of) -> int64_t& {
    return rows == HeadRowsExtent::kM ? of.m : rows == HeadRowsExtent::kN ? of.n : of.k;
  };
  MatmulArguments fast_part = p;
  fast_part.a_stride = a_stride_of(p);
  fast_part.b_stride = b_stride_of(p);
  fast_part.c_stride = c_stride_of(p);
  const int64_t row_count = extent(fast_part), fast_rows = row_count / kWholeRows * kWholeRows;
  if (row_count % kFastRows == 0 || fast_rows == 0) return run(p, stream);
  MatmulArguments remainder = fast_part;
  extent(fast_part) = fast_rows;
  extent(remainder) = row_count - fast_rows;
  // The number of elements from row or column 0 of an operand to row or column `fast_rows`.
  const int64_t along_a =
      p.transpose_a == (rows == HeadRowsExtent::kM) ? fast_rows : fast_rows * fast_part.a_stride;
  const int64_t along_b =
      p.transpose_b == (rows == HeadRowsExtent::kK) ? fast_rows : fast_rows * fast_part.b_stride;
  if (rows != HeadRowsExtent::kN) remainder.a = element(p.a, p.dtype, along_a);
  if (rows != HeadRowsExtent::kM) remainder.b = element(p.b, p.dtype, along_b);
  if (rows == HeadRowsExtent::kK)
    remainder.beta = 1.0F;
  else
    remainder.c = const_cast<void*>(element(
        p.c, p.out_dtype, rows == HeadRowsExtent::kN ? fast_rows : fast_rows * fast_part.c_stride));
  run(fast_part, stream);
  run(remainder, stream);
}

}  // namespace ftrun::cuda
