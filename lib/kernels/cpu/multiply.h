#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/op_call.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"

// The functions of this header multiply an operation's operands, for any storage types.
namespace ftrun::cpu {

/// Sets every row of y[rows,width] to `row`.
template <class S>
void fill_rows(S* y, const S* row, int64_t rows, int64_t width) {
  parallel_ranges(rows, 64, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) std::copy_n(row, width, y + n * width);
  });
}

/// Copies to[rows,width] = from; does nothing where they are the same.
template <class S>
void copy_rows(const S* from, S* to, int64_t rows, int64_t width) {
  if (from == to) return;
  parallel_ranges(rows, 64, [=](int64_t begin, int64_t end) {
    std::copy_n(from + begin * width, (end - begin) * width, to + begin * width);
  });
}

/// Computes the matrix multiplication `p`. Operands or a result in 16 bits are processed in panels
/// of the operation's scratch.
template <class S, class R>
void multiply(const OpCall& call, const MatmulOperands<S, R>& p) {
  if constexpr (kIsNarrow<S> || kIsNarrow<R>) {
    PanelMatmul<S, R>(call, p).run();
  } else {
    const MatmulShape& shape = p.shape;
    if (p.bias != nullptr) fill_rows(p.c, p.bias, shape.m, shape.n);
    matmul(shape, p.a, p.lda(), p.b, p.ldb(), p.accumulate || p.bias != nullptr ? 1.0 : 0.0, p.c,
           p.ldc());
  }
}

}  // namespace ftrun::cpu
