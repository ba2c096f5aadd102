#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/quantized_matmul.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/dora/dora.h"
#include "ops/dora/workspace.h"

namespace ftrun::cpu {
namespace {

/// The number of columns that are scaled at a time.
constexpr int64_t kScaledColumns = 256;

/// Divides by a row's length. A row of zeros has no direction; its result is 0, and it stays zero.
template <class T>
T divide_by_length(T numerator, T squared_length) {
  return squared_length == 0 ? T{0} : numerator / std::sqrt(squared_length);
}

/// ColumnFactors computes the factors of the columns of a linear layer's results, from operands 1
/// (squared lengths) and 2 (magnitudes).
template <class S>
class ColumnFactors {
 public:
  using T = Compute<S>;
  explicit ColumnFactors(const OpCall& call)
      : parts_(call.attrs<DoraAttrs>().parts),
        squares_(call.in<T>(1)),
        magnitudes_(call.in<T>(2)) {}

  /// Reads the factors of columns [first, first + count).
  void read(int64_t first, int64_t count, T* out) const {
    std::fill_n(out, count, T{1});
    int64_t before = 0;
    for (const DoraAttrs::ScaledColumns& part : parts_) {
      const int64_t begin = std::max(first, part.first_column),
                    end = std::min(first + count, part.first_column + part.columns);
      const int64_t index = before + begin - part.first_column;
      for (int64_t i = begin; i < end; ++i)
        out[i - first] =
            divide_by_length(magnitudes_[index + i - begin], squares_[index + i - begin]);
      before += part.columns;
    }
  }

 private:
  const std::vector<DoraAttrs::ScaledColumns>& parts_;
  const T* squares_;
  const T* magnitudes_;
};

/// Scales the columns of operand 0, [N,O], by their factors, and adds the bias; null: none.
template <class S>
void scale_columns(const OpCall& call, const S* bias) {
  using T = Compute<S>;
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const from = call.in<S>(0);
  S* const to = call.out<S>(0);
  const ColumnFactors<S> columns(call);
  parallel_ranges(tokens, 32, [&](int64_t begin, int64_t end) {
    std::array<T, kScaledColumns> factors, biases, row;
    biases.fill(T{0});
    for (int64_t first = 0; first < width; first += kScaledColumns) {
      const int64_t count = std::min(kScaledColumns, width - first);
      columns.read(first, count, factors.data());
      if (bias != nullptr) widen_elements(bias + first, biases.data(), count);
      for (int64_t n = begin; n < end; ++n) {
        widen_elements(from + n * width + first, row.data(), count);
        for (size_t i = 0; i < static_cast<size_t>(count); ++i)
          row[i] = row[i] * factors[i] + biases[i];
        narrow_elements(row.data(), to + n * width + first, count);
      }
    }
  });
}

/// Computes panel[rows, inputs] = rows of the weight, operand 0, with the values that
/// multiplications read.
template <class S>
void widen_weight_rows(const OpCall& call, int64_t first, int64_t rows, int64_t inputs,
                       Compute<S>* panel) {
  const int64_t grain = std::max<int64_t>(kConversionGrain / inputs, 1);
  if (const QuantizedFormat& format = call.quantized(0)) {
    const QuantizedMatrix matrix{format, call.records(0), inputs};
    return parallel_ranges(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        matrix.dequantize_as<S>((first + r) * inputs, inputs, panel + r * inputs);
    });
  }
  const S* const w = call.in<S>(0) + first * inputs;
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end) {
    widen_elements(w + begin * inputs, panel + begin * inputs, (end - begin) * inputs);
  });
}

/// Sums the squares of a row in double, so that the order of the sum does not change the fp32
/// result.
template <class T>
double squared_length(const T* row, int64_t count) {
  std::array<double, 8> sums{};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (size_t k = 0; k < sums.size(); ++k) {
      const auto value = static_cast<double>(row[i + static_cast<int64_t>(k)]);
      sums[k] += value * value;
    }
  for (; i < count; ++i) sums[0] += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace

/// Computes the squared length of each row of W + scale B A, panel by panel, so that the sum is
/// never in memory as a whole.
template <class S>
void dora_squared_lengths(const OpCall& call) {
  using T = Compute<S>;
  const int64_t inputs = call.in_dims(1)[1];
  const DoraWorkspace layout = dora_workspace(call.graph(), call.op());
  T *const panel = call.workspace<T>(layout.panel), *const scaled = call.workspace<T>(layout.b);
  const T* a = nullptr;
  if constexpr (kIsNarrow<S>) {
    T* const wide = call.workspace<T>(layout.a);
    widen_block(call.in<S>(1), inputs, call.in_dims(1)[0], inputs, wide);
    a = wide;
  } else {
    a = call.in<S>(1);
  }
  T* squares = call.out<T>(0);
  const std::vector<LoraPart> parts = lora_parts(call.graph(), call.op());
  for (size_t p = 0; p < parts.size(); ++p) {
    const LoraPart& part = parts[p];
    for (int64_t row = 0; row < part.columns; row += layout.rows) {
      const int64_t rows = std::min(layout.rows, part.columns - row);
      widen_weight_rows<S>(call, part.first_column + row, rows, inputs, panel);
      widen_elements(call.in<S>(2 + p) + row * part.rank, scaled, rows * part.rank);
      for (int64_t i = 0; i < rows * part.rank; ++i) scaled[i] *= static_cast<T>(part.scale);
      matmul({Transpose::kNo, Transpose::kNo, rows, inputs, part.rank}, scaled, part.rank,
             a + part.first_h_column * inputs, inputs, 1.0, panel, inputs);
      parallel_ranges(rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          squares[row + r] = static_cast<T>(squared_length(panel + r * inputs, inputs));
      });
    }
    squares += part.columns;
  }
}

template <class S>
void dora_scale(const OpCall& call) {
  scale_columns<S>(call,
                   call.has_in(3) && call.attrs<DoraAttrs>().adds_bias ? call.in<S>(3) : nullptr);
}

template <class S>
void dora_scale_dgrad(const OpCall& call) {
  scale_columns<S>(call, nullptr);
}

template <class S>
void dora_scale_wgrad(const OpCall& call) {
  using T = Compute<S>;
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1], all = call.out_dims(0)[0];
  const S *const dy = call.in<S>(0), *const z = call.in<S>(1);
  const T* const squares = call.in<T>(2);
  const auto& parts = call.attrs<DoraAttrs>().parts;
  const auto& vec = vector_kernels<S>();
  auto* const partials = call.workspace<T>();
  sum_row_blocks(tokens, all, partials, [&](int64_t first, int64_t rows, T* sums) {
    const Stat<S> one = 1;
    for (int64_t n = first; n < first + rows; ++n) {
      T* to = sums;
      for (const DoraAttrs::ScaledColumns& part : parts) {
        const int64_t at = n * width + part.first_column;
        vec.rms_norm_wgrad(dy + at, z + at, &one, to, 1, part.columns);
        to += part.columns;
      }
    }
    for (int64_t i = 0; i < all; ++i) sums[i] = divide_by_length(sums[i], squares[i]);
  });
  call.with_gradient<S>(
      0, [&](auto* dm) { add_partials(partials, tokens, all, all, dm, call.accumulates()); });
}

FTRUN_FOR_STORAGE_TYPES(dora_squared_lengths)
FTRUN_FOR_STORAGE_TYPES(dora_scale)
FTRUN_FOR_STORAGE_TYPES(dora_scale_dgrad)
FTRUN_FOR_STORAGE_TYPES(dora_scale_wgrad)

}  // namespace ftrun::cpu
