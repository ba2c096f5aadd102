#include "rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun::test {

namespace {

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kPattern{0xFF};  // a NaN in fp32 and fp64

// splitmix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

Array random_array(std::vector<int64_t> dims, uint64_t seed) {
  Array array{std::move(dims), {}};
  array.data.resize(static_cast<size_t>(element_count(array.dims)));
  for (size_t i = 0; i < array.data.size(); ++i) {
    // Whole numbers of 2^-23: exact in fp32 too.
    const auto bits = static_cast<int64_t>(mix(seed * 1000003 + i) >> 40);
    array.data[i] = static_cast<double>(bits - (1 << 23)) / (1 << 23);
  }
  return array;
}

Rig::Memory Rig::allocate(int64_t size) {
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

void Rig::require_intact(const Memory& memory) {
  const auto intact = [](std::byte b) { return b == kPattern; };
  REQUIRE(std::all_of(memory.begin - kGuardBytes, memory.begin, intact));
  REQUIRE(
      std::all_of(memory.begin + memory.size, memory.begin + memory.size + kGuardBytes, intact));
}

ValueId Rig::add(std::vector<int64_t> dims, DType dtype) {
  Value value;
  value.name = cat("v", graph_.values.size());
  value.dtype = dtype;
  value.dims = std::move(dims);
  memory_.push_back(allocate(value.bytes()));
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId Rig::input(const Array& array, DType dtype) {
  const ValueId id = add(array.dims, dtype);
  std::byte* const to = memory_.back().begin;
  for (size_t i = 0; i < array.data.size(); ++i) {
    if (dtype == DType::kF64)
      reinterpret_cast<double*>(to)[i] = array.data[i];
    else
      reinterpret_cast<float*>(to)[i] = static_cast<float>(array.data[i]);
  }
  return id;
}

ValueId Rig::ints(const std::vector<int32_t>& values) {
  const ValueId id = add({static_cast<int64_t>(values.size())}, DType::kI32);
  std::memcpy(memory_.back().begin, values.data(), values.size() * sizeof(int32_t));
  return id;
}

ValueId Rig::output(std::vector<int64_t> dims, DType dtype) {
  return add(std::move(dims), dtype);
}

void Rig::run(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out, OpAttrs attrs,
              bool accumulate) {
  Op op{kind, std::move(in), std::move(out), std::move(attrs), -1};
  const int64_t scratch = workspace_bytes(graph_, op);
  if (scratch > 0) op.workspace = add({scratch}, DType::kU8);
  std::vector<void*> storage;
  for (const Memory& memory : memory_) storage.push_back(memory.begin);
  const KernelContext context{accumulate, &scalars};
  run_op(graph_, op, storage, context);
  for (const Memory& memory : memory_) require_intact(memory);
}

Array Rig::read(ValueId id) const {
  const Value& value = graph_.at(id);
  Array array{value.dims, std::vector<double>(static_cast<size_t>(element_count(value.dims)))};
  const std::byte* const from = memory_[static_cast<size_t>(id)].begin;
  for (size_t i = 0; i < array.data.size(); ++i)
    array.data[i] = value.dtype == DType::kF64
                        ? reinterpret_cast<const double*>(from)[i]
                        : static_cast<double>(reinterpret_cast<const float*>(from)[i]);
  return array;
}

std::vector<std::byte> Rig::bits(ValueId id) const {
  const Memory& memory = memory_[static_cast<size_t>(id)];
  return {memory.begin, memory.begin + memory.size};
}

double relative_error(const Array& actual, const Array& expected) {
  if (actual.dims != expected.dims) return std::numeric_limits<double>::infinity();
  double largest = 0.0, difference = 0.0;
  for (size_t i = 0; i < expected.data.size(); ++i) {
    if (!std::isfinite(actual.data[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(expected.data[i]));
    difference = std::max(difference, std::abs(actual.data[i] - expected.data[i]));
  }
  return largest > 0.0 ? difference / largest : difference;
}

double tolerance(DType dtype) {
  return dtype == DType::kF64 ? 1e-10 : 1e-5;
}

}  // namespace ftrun::test
