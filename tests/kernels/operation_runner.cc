#include "operation_runner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/quantized_values.h"
#include "graph/op_workspace.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {

namespace {

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kPattern{0xFF};  // a NaN in every floating-point type

/// The number of bits of the significand, including the leading 1; the exponent of the smallest
/// normal number; and the largest number.
struct Format {
  int precision;
  int least_exponent;
  double largest;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {8, -126, 0x1.FEp127};
    case DType::kF16:
      return {11, -14, 65504.0};
    case DType::kF32:
      return {24, -126, 0x1.FFFFFEp127};
    default:
      return {53, -1022, std::numeric_limits<double>::max()};
  }
}

/// Returns std::ilogb(v) for normal numbers, -1023 for smaller ones. The library's function would
/// take a fifth of the tests' time.
int exponent_of(double v) {
  return static_cast<int>(std::bit_cast<uint64_t>(v) >> 52 & 0x7FF) - 1023;
}

/// Returns 2^exponent, for exponents of normal numbers.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Returns a hash of `x`: splitmix64 (Steele, Lea, Flood 2014).
uint64_t hash_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

uint16_t bits_of(double v, DType dtype) {
  if (dtype == DType::kBF16)
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(v)) >> 16);
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  if (std::isnan(v)) return 0x7E00;
  if (std::isinf(v)) return sign | 0x7C00;
  const double size = std::abs(v);
  if (size < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<int>(size * 0x1p24));
  const int exponent = exponent_of(size);
  const int fraction = static_cast<int>(size * power_of_two(10 - exponent)) - 1024;
  return static_cast<uint16_t>(sign | (exponent + 15) << 10 | fraction);
}

double number_of(uint16_t bits, DType dtype) {
  if (dtype == DType::kBF16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 31)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  return exponent == 0 ? sign * fraction * 0x1p-24
                       : sign * (1024 + fraction) * power_of_two(exponent - 25);
}

Array random_array(std::vector<int64_t> dims, uint64_t seed) {
  Array array{std::move(dims), {}};
  array.data.resize(static_cast<size_t>(element_count(array.dims)));
  for (size_t i = 0; i < array.data.size(); ++i) {
    // The numbers are multiples of 2^-23, which are exact in fp32 too.
    const auto bits = static_cast<int64_t>(hash_bits(seed * 1000003 + i) >> 40);
    array.data[i] = static_cast<double>(bits - (1 << 23)) / (1 << 23);
  }
  return array;
}

double rounded(double v, DType dtype) {
  if (!std::isfinite(v) || v == 0.0 || dtype == DType::kF64) return v;
  const Format format = format_of(dtype);
  const int exponent = std::max(exponent_of(v), format.least_exponent);
  const double step = power_of_two(exponent - format.precision + 1);
  const double nearest = std::nearbyint(v / step) * step;
  return std::abs(nearest) > format.largest ? std::copysign(INFINITY, v) : nearest;
}

Array rounded(Array array, DType dtype) {
  for (double& v : array.data) v = rounded(v, dtype);
  return array;
}

OracleCase round_to_stored(OracleCase c, DType dtype) {
  for (size_t i = 0; i < c.inputs.size(); ++i)
    if (c.kind != OpKind::kRope || i == 0) c.inputs[i] = rounded(c.inputs[i], dtype);
  c.gradient = rounded(c.gradient, dtype);
  c.second_gradient = rounded(c.second_gradient, dtype);
  return c;
}

double unit_roundoff(DType dtype) {
  return std::ldexp(1.0, -format_of(dtype).precision);
}

OperationRunner::Memory OperationRunner::allocate(int64_t size) {
  Memory memory;
  const auto total = static_cast<size_t>(size + 2 * kGuardBytes + 64);
  memory.bytes = std::make_unique<std::byte[]>(total);
  std::fill_n(memory.bytes.get(), total, kPattern);
  auto address = reinterpret_cast<uintptr_t>(memory.bytes.get()) + kGuardBytes;
  address = (address + 63) / 64 * 64;
  memory.begin = reinterpret_cast<std::byte*>(address);
  memory.size = size;
  return memory;
}

void OperationRunner::require_intact(const Memory& memory) {
  const auto intact = [](std::byte b) { return b == kPattern; };
  REQUIRE(std::all_of(memory.begin - kGuardBytes, memory.begin, intact));
  REQUIRE(
      std::all_of(memory.begin + memory.size, memory.begin + memory.size + kGuardBytes, intact));
}

ValueId OperationRunner::add(std::vector<int64_t> dims, DType dtype,
                             const QuantizedFormat& quantized) {
  Value value;
  value.name = cat("v", graph_.values.size());
  value.dtype = dtype;
  value.quantized = quantized;
  value.dims = std::move(dims);
  memory_.push_back(allocate(value.bytes()));
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId OperationRunner::input(const Array& array, DType dtype) {
  const ValueId id = add(array.dims, dtype);
  std::byte* const to = memory_.back().begin;
  for (size_t i = 0; i < array.data.size(); ++i) {
    if (dtype == DType::kF64)
      reinterpret_cast<double*>(to)[i] = array.data[i];
    else if (is_narrow(dtype))
      reinterpret_cast<uint16_t*>(to)[i] = bits_of(rounded(array.data[i], dtype), dtype);
    else
      reinterpret_cast<float*>(to)[i] = static_cast<float>(array.data[i]);
  }
  return id;
}

QuantizedArray quantized_array(const Array& matrix, const QuantizedFormat& format) {
  const std::vector<float> values(matrix.data.begin(), matrix.data.end());
  QuantizationScales scales(format, static_cast<int64_t>(values.size()), matrix.dims[1]);
  scales.add(values);
  REQUIRE(scales.finish());
  QuantizedArray quantized{std::vector<std::byte>(static_cast<size_t>(
                               format.bytes(static_cast<int64_t>(values.size())))),
                           matrix};
  quantize_values(format, scales, 0, values, 0, quantized.records.data());
  std::vector<float> numbers(values.size());
  dequantize_values(format, quantized.records.data(), 0, numbers);
  quantized.numbers.data.assign(numbers.begin(), numbers.end());
  return quantized;
}

ValueId OperationRunner::quantized(const Array& matrix, const QuantizedFormat& format) {
  const QuantizedArray made = quantized_array(matrix, format);
  const ValueId id = add(matrix.dims, dtype_, format);
  std::copy(made.records.begin(), made.records.end(), memory_.back().begin);
  return id;
}

ValueId OperationRunner::ints(const std::vector<int32_t>& values) {
  const ValueId id = add({static_cast<int64_t>(values.size())}, DType::kI32);
  std::memcpy(memory_.back().begin, values.data(), values.size() * sizeof(int32_t));
  return id;
}

ValueId OperationRunner::output(std::vector<int64_t> dims, DType dtype) {
  return add(std::move(dims), dtype);
}

void OperationRunner::run(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
                          OpAttrs attrs, bool accumulate) {
  Op op{kind, std::move(in), std::move(out), std::move(attrs), -1};
  const int64_t scratch = workspace_bytes(graph_, op);
  if (scratch > 0) op.workspace = add({scratch}, DType::kU8);
  std::vector<void*> storage;
  for (const Memory& memory : memory_) storage.push_back(memory.begin);
  const KernelContext context{accumulate, &scalars, layer, first_token};
  run_op(graph_, op, storage, context);
  for (const Memory& memory : memory_) require_intact(memory);
}

void OperationRunner::copy_twice(ValueId from, ValueId to) {
  const Memory& one = memory_[static_cast<size_t>(from)];
  std::byte* const begin = memory_[static_cast<size_t>(to)].begin;
  for (const int64_t at : {int64_t{0}, one.size})
    std::memcpy(begin + at, one.begin, static_cast<size_t>(one.size));
}

Array OperationRunner::read(ValueId id) const {
  const Value& value = graph_.at(id);
  Array array{value.dims, std::vector<double>(static_cast<size_t>(element_count(value.dims))),
              value.dtype};
  const std::byte* const from = memory_[static_cast<size_t>(id)].begin;
  for (size_t i = 0; i < array.data.size(); ++i)
    array.data[i] = value.dtype == DType::kF64 ? reinterpret_cast<const double*>(from)[i]
                    : is_narrow(value.dtype)
                        ? number_of(reinterpret_cast<const uint16_t*>(from)[i], value.dtype)
                        : static_cast<double>(reinterpret_cast<const float*>(from)[i]);
  return array;
}

std::vector<std::byte> OperationRunner::bits(ValueId id) const {
  const Memory& memory = memory_[static_cast<size_t>(id)];
  return {memory.begin, memory.begin + memory.size};
}

double relative_error(const Array& actual, const Array& expected) {
  if (actual.dims != expected.dims) return std::numeric_limits<double>::infinity();
  const double roundoff = is_narrow(actual.dtype) ? unit_roundoff(actual.dtype) : 0.0;
  const double least = actual.dtype == DType::kF16 ? 0x1p-25 : 0.0;
  double largest = 0.0, difference = 0.0;
  for (size_t i = 0; i < expected.data.size(); ++i) {
    if (!std::isfinite(actual.data[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(expected.data[i]));
    const double explained = std::max(roundoff * std::abs(expected.data[i]), least);
    difference = std::max(difference, std::abs(actual.data[i] - expected.data[i]) - explained);
  }
  return largest > 0.0 ? difference / largest : difference;
}

double tolerance(DType dtype) {
  return dtype == DType::kF64 ? 1e-10 : 1e-5;
}

}  // namespace ftrun::testing
