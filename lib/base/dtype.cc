#include "base/dtype.h"

#include <array>
#include <cstddef>

namespace ftrun {
namespace {
struct Row {
  DType dtype;
  int64_t bytes;
  std::string_view name;
};
constexpr std::array<Row, 14> kRows{{{DType::kF64, 8, "F64"},
                                     {DType::kF32, 4, "F32"},
                                     {DType::kBF16, 2, "BF16"},
                                     {DType::kF16, 2, "F16"},
                                     {DType::kI64, 8, "I64"},
                                     {DType::kI32, 4, "I32"},
                                     {DType::kI16, 2, "I16"},
                                     {DType::kU16, 2, "U16"},
                                     {DType::kU8, 1, "U8"},
                                     {DType::kI8, 1, "I8"},
                                     {DType::kU32, 4, "U32"},
                                     {DType::kU64, 8, "U64"},
                                     {DType::kBool, 1, "BOOL"},
                                     {DType::kF8E4M3, 1, "F8_E4M3"}}};
}  // namespace

int64_t dtype_bytes(DType dtype) {
  return kRows[static_cast<size_t>(dtype)].bytes;
}
std::string_view dtype_name(DType dtype) {
  return kRows[static_cast<size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

}  // namespace ftrun
