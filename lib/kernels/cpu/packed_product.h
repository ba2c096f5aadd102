#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "base/packed_values.h"
#include "kernels/cpu/panels.h"

// Products with packed weights: a panel of the weight is unpacked at a time, which is multiplied as one of a weight of
// the activations' type would be.
namespace ftrun::cpu {

/// A packed matrix with rows of `columns` elements.
struct PackedMatrix {
  const PackedFormat& format;
  const std::byte* records;
  int64_t columns;

  /// out[i] = element `position` + i, row by row, in fp32.
  void unpack(int64_t position, int64_t count, float* out) const {
    const int64_t before = std::min(count, (format.block - position % format.block) % format.block);
    unpack_values(format, records, position, {out, static_cast<size_t>(before)});
    const int64_t whole = (count - before) / format.block * format.block;
    for (int64_t i = before; i < before + whole; i += format.block) unpack_block(packed_block(format, records, position + i), out + i);
    const int64_t rest = before + whole;
    unpack_values(format, records, position + rest, {out + rest, static_cast<size_t>(count - rest)});
  }

  /// The same, rounded to S, as U: S itself or the type S is computed with.
  template <class S, class U>
  void unpack_as(int64_t position, int64_t count, U* out) const {
    if constexpr (std::is_same_v<U, float> && std::is_same_v<S, float>) {
      unpack(position, count, out);
    } else {
      std::array<float, kPackedRecord> some;
      std::array<S, kPackedRecord> rounded;
      for (int64_t i = 0; i < count; i += kPackedRecord) {
        const int64_t n = std::min(kPackedRecord, count - i);
        unpack(position + i, n, some.data());
        if constexpr (kIsNarrow<S>) {
          vector_kernels<S>().narrow(some.data(), std::is_same_v<U, S> ? reinterpret_cast<S*>(out + i) : rounded.data(), n);
          if constexpr (!std::is_same_v<U, S>) vector_kernels<S>().widen(rounded.data(), out + i, n);
        } else {
          std::copy_n(some.data(), n, out + i);
        }
      }
    }
  }

 private:
  void unpack_block(const PackedBlock& block, float* out) const {
    if (format.kind == PackedFormat::Kind::kNf4)
      flat_kernels().unpack_nf4(reinterpret_cast<const uint8_t*>(block.codes), kNf4Values.data(), block.scale, out, format.block);
    else
      flat_kernels().unpack_int8(reinterpret_cast<const int8_t*>(block.codes), block.scale, kInt8Step, out, format.block);
  }
};

/// c[m,n] = [c +] a op(w) [+ bias]; Product::b is not read.
template <class S>
class PackedProduct {
 public:
  using T = Compute<S>;

  PackedProduct(const OpCall& call, const Product<S, S>& p, const PackedMatrix& weight)
      : p_(p),
        weight_(weight),
        place_(packed_product_workspace(p.shape.m, p.shape.n, p.shape.k, sizeof(S), sizeof(S))),
        a_(p.a, p.lda(), false, panel(call, place_.a)),
        b_(panel(call, place_.b)),
        c_(panel(call, place_.c)) {}

  void run() {
    if constexpr (std::is_same_v<S, BFloat16>) direct_ = multiplies_bf16();
    for (int64_t column = 0; column < p_.shape.n; column += place_.columns)
      for (int64_t row = 0; row < p_.shape.m; row += place_.rows)
        block(row, column, std::min(place_.rows, p_.shape.m - row), std::min(place_.columns, p_.shape.n - column));
  }

 private:
  static T* panel(const OpCall& call, int64_t offset) { return offset < 0 ? nullptr : call.workspace<T>(offset); }

  void block(int64_t row, int64_t column, int64_t rows, int64_t columns) {
    S* const out = p_.c + row * p_.ldc() + column;
    if constexpr (kIsNarrow<S>) {
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

  void multiply(int64_t row, int64_t column, int64_t rows, int64_t columns, bool add, T* out, int64_t stride) {
    for (int64_t k = 0; k < p_.shape.k; k += place_.depth) {
      const int64_t depth = std::min(place_.depth, p_.shape.k - k);
      const Gemm shape{Transpose::kNo, p_.shape.transpose_b, rows, columns, depth};
      const double beta = add || k > 0 ? 1.0 : 0.0;
      if constexpr (std::is_same_v<S, BFloat16>)
        if (direct_) {
          auto* const panel = reinterpret_cast<BFloat16*>(b_);
          const int64_t ldb = unpack_block(k, column, depth, columns, panel);
          gemm(shape, a_.stored(row, k), a_.stride(), panel, ldb, beta, out, stride);
          continue;
        }
      const int64_t ldb = unpack_block(k, column, depth, columns, b_);
      const Wide<T> a = a_.at(row, k, rows, depth);
      gemm(shape, a.data, a.stride, b_, ldb, beta, out, stride);
    }
  }

  /// The block of op(w) that starts there, as w is stored; returns the elements of a row. Kept until another one is asked for.
  template <class U>
  int64_t unpack_block(int64_t row, int64_t column, int64_t rows, int64_t columns, U* to) {
    if (p_.shape.transpose_b == Transpose::kYes) {
      std::swap(row, column);
      std::swap(rows, columns);
    }
    const int64_t first = row * weight_.columns + column;
    if (first == held_) return columns;
    held_ = first;
    parallel_ranges(rows, std::max<int64_t>(kConversionGrain / columns, 1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) weight_.unpack_as<S>(first + r * weight_.columns, columns, to + r * columns);
    });
    return columns;
  }

  const Product<S, S>& p_;
  const PackedMatrix& weight_;
  ProductWorkspace place_;
  OperandBlocks<S> a_;
  T* b_;
  T* c_;
  /// First element of the block in the panel.
  int64_t held_ = -1;
  /// The library takes bf16 as it is.
  bool direct_ = false;
};

}  // namespace ftrun::cpu
