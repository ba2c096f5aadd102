#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ftrun {

/// DType lists the element types, named as in safetensors.
// The numbers of kF64 to kBool occur in records of other processes, so new types come last.
enum class DType : uint8_t {
  kF64,
  kF32,
  kBF16,
  kF16,
  kI64,
  kI32,
  kI16,
  kU16,
  kU8,
  kI8,
  kU32,
  kU64,
  kBool,
  kF8E4M3
};

int64_t dtype_bytes(DType dtype);
/// Returns safetensors' name of a dtype: "F32", "BF16", ...
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace ftrun
