#pragma once

#include <cstdint>

#include "kernels/cpu/vector_kernels.h"

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

/// Whether BLAS multiplies bf16 as it is stored, much faster than fp32: on processors with matrix
/// units for it (AMX), unless the kernels are held to AVX2. Elsewhere it is slower than to widen.
bool multiplies_bf16();
/// The same of bf16 operands: their products are exact and summed in fp32. Subnormal numbers count
/// as 0.
void gemm(const Gemm& shape, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb,
          double beta, float* c, int64_t ldc);

}  // namespace ftrun
