#pragma once

#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"

using cublasHandle_t = struct cublasContext*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_ALLOC_FAILED = 3 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F };
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH = 0,
  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
};
enum { CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT };

inline const char* cublasGetStatusString(cublasStatus_t) {
  return "success";
}
inline cublasStatus_t cublasCreate(cublasHandle_t*) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

/// EmulatedMatrix is a column-major matrix. op(matrix) has the elements at(row, column).
struct EmulatedMatrix {
  const void* data;
  cudaDataType_t type;
  int64_t stride;
  cublasOperation_t op = CUBLAS_OP_N;

  bool has_aligned_rows() const { return stride * (type == CUDA_R_32F ? 4 : 2) % 16 == 0; }
  int64_t place(int64_t row, int64_t column) const {
    return op == CUBLAS_OP_N ? row + column * stride : column + row * stride;
  }
  float at(int64_t row, int64_t column) const {
    const int64_t i = place(row, column);
    if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[i]);
    return type == CUDA_R_32F ? static_cast<const float*>(data)[i]
                              : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  }
};

/// Copies `count` rows or columns of `k` elements into contiguous fp64 numbers. Each is used in
/// many multiplications, so it is converted only once.
template <class At>
std::vector<double> lines_of(int count, int k, const At& at) {
  std::vector<double> lines(static_cast<size_t>(count) * static_cast<size_t>(k));
  double* next = lines.data();
  for (int line = 0; line < count; ++line)
    for (int i = 0; i < k; ++i) *next++ = static_cast<double>(at(line, i));
  return lines;
}

/// Computes c[m,n] = alpha op(a) op(b) + beta c, summed in fp64.
inline cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b,
                                   int m, int n, int k, const void* alpha, const void* a,
                                   cudaDataType_t a_type, int lda, const void* b,
                                   cudaDataType_t b_type, int ldb, const void* beta, void* c,
                                   cudaDataType_t c_type, int ldc, int, int) {
  const EmulatedMatrix left{a, a_type, lda, op_a}, right{b, b_type, ldb, op_b}, out{c, c_type, ldc};
  if (!left.has_aligned_rows() || !right.has_aligned_rows() || !out.has_aligned_rows())
    ++emulator::runtime().unaligned_matmuls;
  if (m >= 64 && n >= 64 && k >= 64 && (m % 8 != 0 || n % 8 != 0 || k % 8 != 0))
    ++emulator::runtime().matmuls_not_multiple_of_8;
  const std::vector<double> rows = lines_of(m, k, [&](int row, int i) { return left.at(row, i); });
  const std::vector<double> columns =
      lines_of(n, k, [&](int column, int i) { return right.at(i, column); });
  const float keep = *static_cast<const float*>(beta);
  for (int column = 0; column < n; ++column)
    for (int row = 0; row < m; ++row) {
      double sum = 0.0;
      const double *const a_row = rows.data() + static_cast<size_t>(row) * k,
                          *const b_column = columns.data() + static_cast<size_t>(column) * k;
      for (int i = 0; i < k; ++i) sum += a_row[i] * b_column[i];
      auto result =
          static_cast<float>(static_cast<double>(*static_cast<const float*>(alpha)) * sum);
      if (keep != 0.0F) result += keep * out.at(row, column);
      const int64_t place = out.place(row, column);
      if (c_type == CUDA_R_32F)
        static_cast<float*>(c)[place] = result;
      else if (c_type == CUDA_R_16F)
        static_cast<__half*>(c)[place] = __float2half_rn(result);
      else
        static_cast<__nv_bfloat16*>(c)[place] = __float2bfloat16_rn(result);
    }
  return CUBLAS_STATUS_SUCCESS;
}
