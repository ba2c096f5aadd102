#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/round_up.h"
#include "kernels/cpu/matmul_libraries.h"
#include "kernels/cpu/parallel.h"

namespace ftrun {

namespace {

constexpr int64_t kMaxTile = kMaxMatmulTile, kMinTile = 64, kMinTiles = 8;
/// The sizes of tiles are multiples of it, so that they consist of whole vectors of the libraries'
/// kernels.
constexpr int64_t kTileUnit = 16;

int blas_int(int64_t value) {
  require(value >= 0 && value <= std::numeric_limits<int>::max(), "matrix dimension fits BLAS");
  return static_cast<int>(value);
}

/// Returns the length of each of `parts` equal parts; the last part may be shorter.
int64_t part_length(int64_t length, int64_t parts) {
  return divide_up(divide_up(length, parts), kTileUnit) * kTileUnit;
}

template <class S, class R>
void multiply(MatmulLibrary library, const MatmulShape& shape, const S* a, int64_t lda, const S* b,
              int64_t ldb, double beta, R* c, int64_t ldc) {
  const bool transpose_a = shape.transpose_a == Transpose::kYes;
  const bool transpose_b = shape.transpose_b == Transpose::kYes;
  const MatmulTiles tiles = matmul_tiles(shape.m, shape.n);
  const int64_t down = divide_up(shape.m, tiles.rows), across = divide_up(shape.n, tiles.columns);
  parallel_library_calls(down * across, [&](int64_t task) {
    const int64_t row = task % down * tiles.rows, column = task / down * tiles.columns;
    multiply_with(library, MatmulCall<S, R>{
                               .transpose_a = transpose_a,
                               .transpose_b = transpose_b,
                               .m = blas_int(std::min(tiles.rows, shape.m - row)),
                               .n = blas_int(std::min(tiles.columns, shape.n - column)),
                               .k = blas_int(shape.k),
                               .a = a + (transpose_a ? row : row * lda),
                               .lda = blas_int(lda),
                               .b = b + (transpose_b ? column * ldb : column),
                               .ldb = blas_int(ldb),
                               .beta = static_cast<R>(beta),
                               .c = c + row * ldc + column,
                               .ldc = blas_int(ldc),
                           });
  });
}

}  // namespace

MatmulTiles matmul_tiles(int64_t m, int64_t n) {
  int64_t down = divide_up(m, kMaxTile), across = divide_up(n, kMaxTile);
  while (down * across < kMinTiles) {
    const int64_t rows = m / down, columns = n / across;
    if (std::max(rows, columns) < 2 * kMinTile) break;
    (rows > columns ? down : across) *= 2;
  }
  return {part_length(m, down), part_length(n, across)};
}

template <class S>
void matmul(const MatmulShape& shape, const S* a, int64_t lda, const S* b, int64_t ldb, double beta,
            S* c, int64_t ldc) {
  const MatmulLibrary library =
      std::is_same_v<S, float> ? matmul_rule_in_use().fp32 : MatmulLibrary::kMkl;
  multiply(library, shape, a, lda, b, ldb, beta, c, ldc);
}

void matmul(const MatmulShape& shape, const BFloat16* a, int64_t lda, const BFloat16* b,
            int64_t ldb, double beta, float* c, int64_t ldc) {
  multiply(matmul_rule_in_use().bf16.value(), shape, a, lda, b, ldb, beta, c, ldc);
}

bool multiplies_bf16() {
  return isa_in_use() >= Isa::kAvx512 && matmul_rule_in_use().bf16.has_value();
}

template void matmul(const MatmulShape&, const float*, int64_t, const float*, int64_t, double,
                     float*, int64_t);
template void matmul(const MatmulShape&, const double*, int64_t, const double*, int64_t, double,
                     double*, int64_t);

}  // namespace ftrun
