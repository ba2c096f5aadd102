#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "graph/layer_graph.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kernels.h"
#include "oracle.h"

namespace ftrun::test {

/// Returns numbers from a counter-based generator, about uniform in [-1, 1); the same for the same
/// seed.
Array random_array(std::vector<int64_t> dims, uint64_t seed);

/// Returns the nearest number (ties to even) that the dtype holds.
double rounded(double v, DType dtype);
Array rounded(Array array, DType dtype);
/// Returns the case with the inputs and gradients that kernels get whose activations have that
/// dtype.
OracleCase stored(OracleCase c, DType dtype);
/// Returns the largest relative error of rounding to a dtype's normal numbers: 2^-8 for BF16.
double unit_roundoff(DType dtype);
inline bool is_narrow(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16;
}

/// Returns the bits of a number that a 16-bit dtype holds; number_of() returns the number again.
uint16_t bits_of(double v, DType dtype);
double number_of(uint16_t bits, DType dtype);

/// Rig is storage of hand-made values and operations on it. Outputs and scratch start as NaN
/// patterns, and bytes around every value are watched: a kernel that writes outside, or reads
/// memory that was not written, shows.
class Rig {
 public:
  explicit Rig(DType dtype) : dtype_(dtype) {}

  ValueId input(const Array& array) { return input(array, dtype_); }
  ValueId input(const Array& array, DType dtype);
  /// Adds a matrix, quantized as `format` says; for kernels it is one of the rig's dtype.
  ValueId packed(const Array& matrix, const PackedFormat& format);
  ValueId ints(const std::vector<int32_t>& values);
  ValueId output(std::vector<int64_t> dims) { return output(std::move(dims), dtype_); }
  ValueId output(std::vector<int64_t> dims, DType dtype);
  /// Adds an rstd or lse.
  ValueId statistic(std::vector<int64_t> dims) {
    return output(std::move(dims), dtype_ == DType::kF64 ? DType::kF64 : DType::kF32);
  }

  void run(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
           OpAttrs attrs = NoAttrs{}, bool accumulate = false);

  /// Computes the result of an all-gather of two equal ranks from a value.
  void copy_twice(ValueId from, ValueId to);

  Array read(ValueId id) const;
  /// Returns the raw bytes, for comparing results bit by bit.
  std::vector<std::byte> bits(ValueId id) const;

  StepScalars scalars;
  /// The numbers of KernelContext.
  int64_t layer = 0, first_token = 0;

 private:
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    std::byte* begin = nullptr;
    int64_t size = 0;
  };
  ValueId add(std::vector<int64_t> dims, DType dtype, const PackedFormat& packed = {});
  static Memory allocate(int64_t size);
  static void require_intact(const Memory& memory);

  DType dtype_;
  LayerGraph graph_;
  std::vector<Memory> memory_;
};

/// Returns the largest difference relative to the largest expected number, less what one rounding
/// to a 16-bit dtype explains; infinite when shapes differ or a number is not finite.
double relative_error(const Array& actual, const Array& expected);
/// Returns the tolerance for the rounding of intermediate numbers: 1e-10 in fp64, and 1e-5 where
/// arithmetic is fp32.
double tolerance(DType dtype);

/// Runs `body` for each dtype of activations. The CTest entry decides the instruction set:
/// `kernels` is held to AVX2; those named after another need it.
template <class Body>
void for_each_backend(Body body) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) body(dtype);
}

/// Runs for_each_backend only with fp32: for operations that know their dtypes themselves.
template <class Body>
void for_each_isa(Body body) {
  for_each_backend([&](DType dtype) {
    if (dtype == DType::kF32) body();
  });
}

/// PackedArray is a matrix [O,I] as records, with the decoded numbers.
struct PackedArray {
  std::vector<std::byte> records;
  Array numbers;
};
PackedArray pack(const Array& matrix, const PackedFormat& format);

inline std::vector<float> floats(int64_t count, uint64_t seed) {
  const Array array = random_array({count}, seed);
  return {array.data.begin(), array.data.end()};
}

inline Array plus(Array a, const Array& addend) {
  for (size_t i = 0; i < a.data.size(); ++i) a.data[i] += addend.data[i];
  return a;
}

}  // namespace ftrun::test
