#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "graph/layer_graph.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kernels.h"
#include "oracle.h"

namespace ftrun::testing {

/// Returns about uniform numbers in [-1, 1) from a counter-based generator; equal seeds give equal
/// numbers.
Array random_array(std::vector<int64_t> dims, uint64_t seed);

/// Returns the number that `dtype` can represent and that is nearest to `v`; ties to even.
double rounded(double v, DType dtype);
Array rounded(Array array, DType dtype);
/// Returns the case with its inputs and gradients rounded to the dtypes that kernels get when
/// activations have this dtype.
OracleCase round_to_stored(OracleCase c, DType dtype);
/// Returns the largest relative error of rounding to a dtype's normal numbers: 2^-8 for BF16.
double unit_roundoff(DType dtype);
inline bool is_narrow(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16;
}

/// Returns the bits of a number in a 16-bit dtype; number_of() is the inverse.
uint16_t bits_of(double v, DType dtype);
double number_of(uint16_t bits, DType dtype);

/// OperationRunner holds values that a test creates, and runs operations on them. Outputs and
/// scratch start as NaN patterns, and guard bytes surround every value, so that a kernel that
/// writes outside of a value or reads unwritten memory is found.
class OperationRunner {
 public:
  explicit OperationRunner(DType dtype) : dtype_(dtype) {}

  ValueId input(const Array& array) { return input(array, dtype_); }
  ValueId input(const Array& array, DType dtype);
  /// Adds a matrix that is quantized as `format` says; kernels see it as a matrix of the runner's
  /// dtype.
  ValueId quantized(const Array& matrix, const QuantizedFormat& format);
  ValueId ints(const std::vector<int32_t>& values);
  ValueId output(std::vector<int64_t> dims) { return output(std::move(dims), dtype_); }
  ValueId output(std::vector<int64_t> dims, DType dtype);
  /// Adds an output for statistics (rstd or lse).
  ValueId statistic(std::vector<int64_t> dims) {
    return output(std::move(dims), dtype_ == DType::kF64 ? DType::kF64 : DType::kF32);
  }

  void run(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
           OpAttrs attrs = NoAttrs{}, bool accumulate = false);

  /// Copies a value twice into `to`, as an all-gather of two ranks with equal parts would.
  void copy_twice(ValueId from, ValueId to);

  Array read(ValueId id) const;
  /// Returns the raw bytes, for an exact comparison.
  std::vector<std::byte> bits(ValueId id) const;

  StepScalars scalars;
  /// The layer and the first token in KernelContext.
  int64_t layer = 0, first_token = 0;

 private:
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    std::byte* begin = nullptr;
    int64_t size = 0;
  };
  ValueId add(std::vector<int64_t> dims, DType dtype, const QuantizedFormat& quantized = {});
  static Memory allocate(int64_t size);
  static void require_intact(const Memory& memory);

  DType dtype_;
  LayerGraph graph_;
  std::vector<Memory> memory_;
};

/// Returns the largest difference relative to the largest expected number, minus the error of one
/// rounding to a 16-bit dtype. Returns infinity if shapes differ or a number is not finite.
double relative_error(const Array& actual, const Array& expected);
/// Returns the tolerance for rounding of intermediate numbers: 1e-10 in fp64, and 1e-5 if the
/// arithmetic is fp32.
double tolerance(DType dtype);

/// Runs `body` for each dtype of activations. The CTest entry selects the instruction set: the
/// entry `kernels` uses AVX2, and those that are named after another set need that set.
template <class Body>
void for_each_dtype(Body body) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) body(dtype);
}

/// Runs `body` once per CTest entry, for operations that choose their own dtypes. The entry selects
/// the instruction set.
template <class Body>
void run_once_per_entry(Body body) {
  for_each_dtype([&](DType dtype) {
    if (dtype == DType::kF32) body();
  });
}

/// QuantizedArray is a matrix [O,I] in quantized records, and its decoded numbers.
struct QuantizedArray {
  std::vector<std::byte> records;
  Array numbers;
};
QuantizedArray quantized_array(const Array& matrix, const QuantizedFormat& format);

inline std::vector<float> random_floats(int64_t count, uint64_t seed) {
  const Array array = random_array({count}, seed);
  return {array.data.begin(), array.data.end()};
}

inline Array array_sum(Array a, const Array& addend) {
  for (size_t i = 0; i < a.data.size(); ++i) a.data[i] += addend.data[i];
  return a;
}

}  // namespace ftrun::testing
