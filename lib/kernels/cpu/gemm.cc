#include "kernels/cpu/gemm.h"

#include <limits>

#include "base/error.h"

// The BLAS inside libtorch_cpu (MKL, 32-bit integers).
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc);
void gemm_bf16bf16f32_(const char* transa, const char* transb, const int* m, const int* n,
                       const int* k, const float* alpha, const ftrun::BFloat16* a, const int* lda,
                       const ftrun::BFloat16* b, const int* ldb, const float* beta, float* c,
                       const int* ldc);
}

namespace ftrun {

namespace {

int blas_int(int64_t value) {
  require(value >= 0 && value <= std::numeric_limits<int>::max(), "matrix dimension fits BLAS");
  return static_cast<int>(value);
}

char letter(Transpose transpose) {
  return transpose == Transpose::kYes ? 'T' : 'N';
}

void blas(const char* ta, const char* tb, const int* m, const int* n, const int* k,
          const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
          const float* beta, float* c, const int* ldc) {
  sgemm_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void blas(const char* ta, const char* tb, const int* m, const int* n, const int* k,
          const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
          const double* beta, double* c, const int* ldc) {
  dgemm_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void blas(const char* ta, const char* tb, const int* m, const int* n, const int* k,
          const float* alpha, const BFloat16* a, const int* lda, const BFloat16* b, const int* ldb,
          const float* beta, float* c, const int* ldc) {
  gemm_bf16bf16f32_(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

// BLAS is column-major: a row-major matrix is its transpose there, and c^T = op(b)^T op(a)^T.
template <class S, class R>
void multiply(const Gemm& shape, const S* a, int64_t lda, const S* b, int64_t ldb, double beta,
              R* c, int64_t ldc) {
  const char left = letter(shape.transpose_b);
  const char right = letter(shape.transpose_a);
  const int m = blas_int(shape.n), n = blas_int(shape.m), k = blas_int(shape.k);
  const int left_stride = blas_int(ldb), right_stride = blas_int(lda), out_stride = blas_int(ldc);
  const R one = 1;
  const R add = static_cast<R>(beta);
  blas(&left, &right, &m, &n, &k, &one, b, &left_stride, a, &right_stride, &add, c, &out_stride);
}

}  // namespace

template <class S>
void gemm(const Gemm& shape, const S* a, int64_t lda, const S* b, int64_t ldb, double beta, S* c,
          int64_t ldc) {
  multiply(shape, a, lda, b, ldb, beta, c, ldc);
}

void gemm(const Gemm& shape, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb,
          double beta, float* c, int64_t ldc) {
  multiply(shape, a, lda, b, ldb, beta, c, ldc);
}

bool multiplies_bf16() {
  static const bool has_units = __builtin_cpu_supports("amx-bf16");
  return has_units && isa_in_use() == Isa::kAvx512;
}

template void gemm(const Gemm&, const float*, int64_t, const float*, int64_t, double, float*,
                   int64_t);
template void gemm(const Gemm&, const double*, int64_t, const double*, int64_t, double, double*,
                   int64_t);

}  // namespace ftrun
