#include "kernels/cuda/matmul.h"

#include <limits>

#include "base/library_error.h"
#include "kernels/cuda/check.h"

namespace ftrun::cuda {

namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw_library_error(what, "cuBLAS", cublasGetStatusString(status), status == CUBLAS_STATUS_ALLOC_FAILED);
}

int blas_int(int64_t value) {
  require(value >= 0 && value <= std::numeric_limits<int>::max(), "matrix dimension fits cuBLAS");
  return static_cast<int>(value);
}

cudaDataType_t data_type(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

cublasOperation_t operation(bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

// NVIDIA's advice: 32 MiB on Hopper, 4 MiB before.
Matmul::Matmul(bool hopper) : workspace_bytes_(static_cast<size_t>(hopper ? 32 : 4) << 20) {
  check(cublasCreate(&handle_), "opening cuBLAS");
  cuda::check(cudaMalloc(&workspace_, workspace_bytes_), "allocating the workspace of matrix products");
  const int mode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  check(cublasSetMathMode(handle_, static_cast<cublasMath_t>(mode)), "setting cuBLAS up");
}

Matmul::~Matmul() {
  cublasDestroy(handle_);
  cudaFree(workspace_);
}

/// cublasSetStream falls back to cuBLAS's own workspace: ours is set again.
void Matmul::use(cudaStream_t stream) {
  if (has_stream_ && stream == stream_) return;
  check(cublasSetStream(handle_, stream), "choosing cuBLAS's stream");
  check(cublasSetWorkspace(handle_, workspace_, workspace_bytes_), "setting cuBLAS's workspace");
  stream_ = stream;
  has_stream_ = true;
}

// cuBLAS is column-major: a row-major matrix is its transpose there, and c^T = op(b)^T op(a)^T.
void Matmul::run(const Product& p, cudaStream_t stream) {
  use(stream);
  const int m = blas_int(p.m), n = blas_int(p.n), k = blas_int(p.k);
  const int a_stride = p.a_stride > 0 ? blas_int(p.a_stride) : p.transpose_a ? m : k;
  const int b_stride = p.b_stride > 0 ? blas_int(p.b_stride) : p.transpose_b ? k : n;
  const int c_stride = p.c_stride > 0 ? blas_int(p.c_stride) : n;
  check(cublasGemmEx(handle_, operation(p.transpose_b), operation(p.transpose_a), n, m, k, &p.alpha,
                     p.b, data_type(p.dtype), b_stride, p.a, data_type(p.dtype),
                     a_stride, &p.beta, p.c, data_type(p.out_dtype), c_stride, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT),
        "a matrix product");
}

}  // namespace ftrun::cuda
