#pragma once

#include <cstdint>

#include "kernels/cpu/vector_kernels.h"

namespace ftrun {

enum class Transpose : uint8_t { kNo, kYes };

/// MatmulShape holds the shape of a matrix multiplication op(a) op(b): op(a) is [m,k], op(b) is
/// [k,n]. op() transposes a matrix if its flag says so.
struct MatmulShape {
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

/// Computes c[m,n] = op(a) op(b) + beta c with the library in use (matmul_libraries.h). All
/// matrices are row-major; lda, ldb, ldc are the row strides of a, b, c as they are stored. If beta
/// is 0, c is not read. c is cut into tiles (matmul_tiles()). LibTorch's threads take them one by
/// one, and the library multiplies each on one thread, so the result has the same bits for any
/// number of threads.
template <class S>
void matmul(const MatmulShape& shape, const S* a, int64_t lda, const S* b, int64_t ldb, double beta,
            S* c, int64_t ldc);

/// Returns whether a library multiplies bf16 without widening, which is much faster than fp32. CPUs
/// with instructions for it can; on others widening to fp32 is faster.
bool multiplies_bf16();
/// Multiplies bf16 operands: the products of their elements are exact and summed in fp32. Subnormal
/// numbers count as 0.
void matmul(const MatmulShape& shape, const BFloat16* a, int64_t lda, const BFloat16* b,
            int64_t ldb, double beta, float* c, int64_t ldc);

/// The maximum number of rows and columns of a tile.
inline constexpr int64_t kMaxMatmulTile = 512;

/// MatmulTiles describes how c[m,n] is cut: every tile but the last ones is [rows,columns]. It
/// depends only on the shape. At least eight tiles keep eight threads busy; tiles are as large as
/// this permits, up to kMaxMatmulTile, because a library packs its operands again for each.
struct MatmulTiles {
  int64_t rows = 0;
  int64_t columns = 0;
};
MatmulTiles matmul_tiles(int64_t m, int64_t n);

}  // namespace ftrun
