#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/op_call.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/linear/workspace.h"

// The classes of this header multiply matrices that are stored in 16 bits. Blocks are widened into
// fp32 panels, which are multiplied at fp32 speed, except where bf16 is multiplied without widening
// (matmul_libraries.h). Results are rounded once.
namespace ftrun::cpu {

template <class S>
inline constexpr bool kIsNarrow = !std::is_same_v<S, Compute<S>>;

/// Widens to[i] = from[i] to Compute<S>.
template <class S>
void widen_elements(const S* from, Compute<S>* to, int64_t count) {
  if constexpr (kIsNarrow<S>)
    vector_kernels<S>().widen(from, to, count);
  else
    std::copy_n(from, count, to);
}

/// Rounds to[i] = from[i] to the type S.
template <class S>
void narrow_elements(const Compute<S>* from, S* to, int64_t count) {
  if constexpr (kIsNarrow<S>)
    vector_kernels<S>().narrow(from, to, count);
  else
    std::copy_n(from, count, to);
}

/// The minimum number of elements in one task of a conversion.
inline constexpr int64_t kConversionGrain = 1 << 14;

/// StridedRows describes rows of a matrix that are `stride` elements apart.
template <class T>
struct StridedRows {
  const T* data;
  int64_t stride;
};

/// Copies to[rows,columns] = the block of `from` that starts there, widened.
template <class S>
void widen_block(const S* from, int64_t stride, int64_t rows, int64_t columns, Compute<S>* to) {
  const auto& vec = vector_kernels<S>();
  const int64_t grain = std::max<int64_t>(kConversionGrain / columns, 1);
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      vec.widen(from + row * stride, to + row * columns, columns);
  });
}

/// Adds or copies to[rows,columns] = [to +] from, rounded to R.
template <class R>
void narrow_block(const Compute<R>* from, int64_t rows, int64_t columns, bool accumulate, R* to,
                  int64_t stride) {
  const auto& vec = vector_kernels<R>();
  const int64_t grain = std::max<int64_t>(kConversionGrain / columns, 1);
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      vec.add_partials(from + row * columns, 1, 0, to + row * stride, columns, accumulate);
  });
}

/// OperandBlocks provides the blocks of an operand that a matrix multiplication reads. A narrow
/// block is widened into a panel, which keeps it until another block is requested; a wide operand
/// is read in place.
template <class S>
class OperandBlocks {
 public:
  /// Reads rows that are stored `stride` elements apart; with `transposed` the rows of the operand
  /// are columns there.
  OperandBlocks(const S* data, int64_t stride, bool transposed, Compute<S>* panel)
      : data_(data), stride_(stride), transposed_(transposed), panel_(panel) {}

  /// Returns the block that starts there, in its stored type.
  const S* stored(int64_t row, int64_t column) const {
    return data_ + (transposed_ ? column * stride_ + row : row * stride_ + column);
  }
  /// Returns a block of any size, for a library that reads the stored type.
  StridedRows<S> as_stored(int64_t row, int64_t column, int64_t, int64_t) const {
    return {stored(row, column), stride_};
  }
  static constexpr bool kInPlace = true;

  StridedRows<Compute<S>> at(int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const S* const block = stored(row, column);
    if (transposed_) std::swap(rows, columns);
    if constexpr (!kIsNarrow<S>) {
      return {block, stride_};
    } else {
      if (block != widened_) widen_block(block, stride_, rows, columns, panel_);
      widened_ = block;
      return {panel_, columns};
    }
  }

 private:
  const S* data_;
  int64_t stride_;
  bool transposed_;
  Compute<S>* panel_;
  const S* widened_ = nullptr;
};

/// MatmulOperands holds the matrices of one multiplication c[m,n] = [c +] op(a) op(b) [+ bias].
template <class S, class R>
struct MatmulOperands {
  MatmulShape shape;
  const S* a = nullptr;
  const S* b = nullptr;
  R* c = nullptr;
  /// The number of elements from one stored row to the next; 0: rows are contiguous.
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  bool accumulate = false;
  /// The bias [n], added to every row. Must be null with `accumulate`.
  const S* bias = nullptr;

  int64_t lda() const {
    return a_stride > 0 ? a_stride : shape.transpose_a == Transpose::kYes ? shape.m : shape.k;
  }
  int64_t ldb() const {
    return b_stride > 0 ? b_stride : shape.transpose_b == Transpose::kYes ? shape.k : shape.n;
  }
  int64_t ldc() const { return c_stride > 0 ? c_stride : shape.n; }
};

/// PanelMatmul computes one multiplication through the panels of the operation's workspace. Blocks
/// provides the blocks of b, as OperandBlocks does.
template <class S, class R, class Blocks = OperandBlocks<S>>
class PanelMatmul {
 public:
  using T = Compute<S>;
  static_assert(std::is_same_v<T, Compute<R>>);

  /// Takes the function that makes the blocks of b from their panel.
  template <class MakeBlocks>
  PanelMatmul(const OpCall& call, const MatmulOperands<S, R>& p, MakeBlocks blocks)
      : p_(p),
        workspace_layout_(matmul_workspace(p.shape.m, p.shape.n, p.shape.k, sizeof(S), sizeof(R),
                                           !Blocks::kInPlace)),
        a_(p.a, p.lda(), p.shape.transpose_a == Transpose::kYes, panel(call, workspace_layout_.a)),
        b_(blocks(panel(call, workspace_layout_.b))),
        c_(panel(call, workspace_layout_.c)) {}

  PanelMatmul(const OpCall& call, const MatmulOperands<S, R>& p)
      : PanelMatmul(call, p, [&p](T* panel) {
          return Blocks(p.b, p.ldb(), p.shape.transpose_b == Transpose::kYes, panel);
        }) {}

  void run() {
    if constexpr (std::is_same_v<S, BFloat16>) {
      direct_ = multiplies_bf16();
      if constexpr (!kIsNarrow<R>)
        if (direct_) return block(0, 0, p_.shape.m, p_.shape.n);
    }
    for (int64_t column = 0; column < p_.shape.n; column += workspace_layout_.columns)
      for (int64_t row = 0; row < p_.shape.m; row += workspace_layout_.rows)
        block(row, column, std::min(workspace_layout_.rows, p_.shape.m - row),
              std::min(workspace_layout_.columns, p_.shape.n - column));
  }

 private:
  static T* panel(const OpCall& call, int64_t offset) {
    return offset < 0 ? nullptr : call.workspace<T>(offset);
  }

  void block(int64_t row, int64_t column, int64_t rows, int64_t columns) {
    R* const out = p_.c + row * p_.ldc() + column;
    if constexpr (kIsNarrow<R>) {
      fill_bias(column, rows, columns, c_, columns);
      multiply(row, column, rows, columns, p_.bias != nullptr, c_, columns);
      narrow_block(c_, rows, columns, p_.accumulate, out, p_.ldc());
    } else {
      fill_bias(column, rows, columns, out, p_.ldc());
      multiply(row, column, rows, columns, p_.accumulate || p_.bias != nullptr, out, p_.ldc());
    }
  }

  void fill_bias(int64_t column, int64_t rows, int64_t columns, T* out, int64_t stride) {
    if (p_.bias == nullptr) return;
    vector_kernels<S>().widen(p_.bias + column, out, columns);
    for (int64_t row = 1; row < rows; ++row) std::copy_n(out, columns, out + row * stride);
  }

  void multiply(int64_t row, int64_t column, int64_t rows, int64_t columns, bool add, T* out,
                int64_t stride) {
    const int64_t max_depth = direct_ && Blocks::kInPlace ? p_.shape.k : workspace_layout_.depth;
    for (int64_t k = 0; k < p_.shape.k; k += max_depth) {
      const int64_t depth = std::min(max_depth, p_.shape.k - k);
      const auto multiply_blocks = [&](const auto& a, const auto& b) {
        matmul({p_.shape.transpose_a, p_.shape.transpose_b, rows, columns, depth}, a.data, a.stride,
               b.data, b.stride, add || k > 0 ? 1.0 : 0.0, out, stride);
      };
      if constexpr (std::is_same_v<S, BFloat16>)
        if (direct_) {
          multiply_blocks(a_.as_stored(row, k, rows, depth),
                          b_.as_stored(k, column, depth, columns));
          continue;
        }
      multiply_blocks(a_.at(row, k, rows, depth), b_.at(k, column, depth, columns));
    }
  }

  const MatmulOperands<S, R>& p_;
  MatmulWorkspace workspace_layout_;
  OperandBlocks<S> a_;
  Blocks b_;
  T* c_;
  /// Says whether the library reads the operands in their stored type.
  bool direct_ = false;
};

}  // namespace ftrun::cpu
