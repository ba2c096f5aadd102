#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "base/quantized_values.h"
#include "kernels/cpu/panels.h"

// The classes of this header multiply with quantized weights: one panel of the weight is
// dequantized at a time, and multiplied like a panel of a weight in the activations' type.
namespace ftrun::cpu {

/// QuantizedMatrix is a quantized matrix with rows of `columns` elements.
struct QuantizedMatrix {
  const QuantizedFormat& format;
  const std::byte* records;
  int64_t columns;

  /// Dequantizes out[i] = element `position` + i, row by row, in fp32.
  void dequantize(int64_t position, int64_t count, float* out) const {
    const int64_t before = std::min(count, (format.block - position % format.block) % format.block);
    dequantize_values(format, records, position, {out, static_cast<size_t>(before)});
    const int64_t whole = (count - before) / format.block * format.block;
    for (int64_t i = before; i < before + whole; i += format.block)
      dequantize_block(find_quantized_block(format, records, position + i), out + i);
    const int64_t rest = before + whole;
    dequantize_values(format, records, position + rest,
                      {out + rest, static_cast<size_t>(count - rest)});
  }

  /// Dequantizes `count` elements, rounded to S, into type U: S itself or Compute<S>.
  template <class S, class U>
  void dequantize_as(int64_t position, int64_t count, U* out) const {
    if constexpr (std::is_same_v<U, float> && std::is_same_v<S, float>) {
      dequantize(position, count, out);
    } else {
      std::array<float, kQuantizedRecord> some;
      std::array<S, kQuantizedRecord> rounded;
      for (int64_t i = 0; i < count; i += kQuantizedRecord) {
        const int64_t n = std::min(kQuantizedRecord, count - i);
        dequantize(position + i, n, some.data());
        if constexpr (kIsNarrow<S>) {
          vector_kernels<S>().narrow(
              some.data(), std::is_same_v<U, S> ? reinterpret_cast<S*>(out + i) : rounded.data(),
              n);
          if constexpr (!std::is_same_v<U, S>)
            vector_kernels<S>().widen(rounded.data(), out + i, n);
        } else {
          std::copy_n(some.data(), n, out + i);
        }
      }
    }
  }

 private:
  void dequantize_block(const QuantizedBlock& block, float* out) const {
    if (format.type == QuantizationType::kNf4)
      flat_kernels().dequantize_nf4(reinterpret_cast<const uint8_t*>(block.codes),
                                    kNf4Values.data(), block.scale, out, format.block);
    else
      flat_kernels().dequantize_int8(reinterpret_cast<const int8_t*>(block.codes), block.scale,
                                     kInt8Step, out, format.block);
  }
};

/// BlockDequantizer dequantizes the block of a quantized matrix that a matrix multiplication reads.
/// The panel keeps the block until another one is requested.
template <class S>
class BlockDequantizer {
 public:
  /// Reads `matrix`; with `transposed` the rows of the operand are columns of it.
  BlockDequantizer(const QuantizedMatrix& matrix, bool transposed, Compute<S>* panel)
      : matrix_(matrix), transposed_(transposed), panel_(panel) {}
  static constexpr bool kInPlace = false;

  StridedRows<Compute<S>> at(int64_t row, int64_t column, int64_t rows, int64_t columns) {
    return dequantized(row, column, rows, columns, panel_);
  }
  /// Dequantizes a block as S itself, into the same panel. A multiplication requests its blocks in
  /// one of the two forms only.
  StridedRows<S> as_stored(int64_t row, int64_t column, int64_t rows, int64_t columns) {
    return dequantized(row, column, rows, columns, reinterpret_cast<S*>(panel_));
  }

 private:
  template <class U>
  StridedRows<U> dequantized(int64_t row, int64_t column, int64_t rows, int64_t columns, U* to) {
    if (transposed_) {
      std::swap(row, column);
      std::swap(rows, columns);
    }
    const int64_t first = row * matrix_.columns + column;
    if (first == dequantized_first_) return {to, columns};
    dequantized_first_ = first;
    parallel_ranges(
        rows, std::max<int64_t>(kConversionGrain / columns, 1), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r)
            matrix_.dequantize_as<S>(first + r * matrix_.columns, columns, to + r * columns);
        });
    return {to, columns};
  }

  const QuantizedMatrix matrix_;
  bool transposed_;
  Compute<S>* panel_;
  /// The first element of the block in the panel; -1: the panel holds none.
  int64_t dequantized_first_ = -1;
};

/// Computes c[m,n] = [c +] a op(w) [+ bias]; MatmulOperands::b is not read.
template <class S>
void multiply_quantized(const OpCall& call, const MatmulOperands<S, S>& p,
                        const QuantizedMatrix& weight) {
  PanelMatmul<S, S, BlockDequantizer<S>>(call, p, [&](Compute<S>* panel) {
    return BlockDequantizer<S>(weight, p.shape.transpose_b == Transpose::kYes, panel);
  }).run();
}

}  // namespace ftrun::cpu
