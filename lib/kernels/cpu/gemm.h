#pragma once

#include <cstdint>

namespace ftrun {

enum class Transpose : uint8_t { kNo, kYes };

/// Row-major c[m,n] = op(a) op(b) + beta c, through LibTorch's BLAS and its threads. op(a) is
/// [m,k], op(b) is [k,n]; lda, ldb, ldc are the row strides of a, b, c as they are stored. With
/// beta 0 c is not read.
struct Gemm {
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};
template <class S>
void gemm(const Gemm& shape, const S* a, int64_t lda, const S* b, int64_t ldb, double beta, S* c,
          int64_t ldc);

}  // namespace ftrun
