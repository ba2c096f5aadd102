#include "base/dtype.h"

#include <map>
#include <set>
#include <string>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

const std::map<std::string, int64_t> kSafetensorsTypes{
    {"F64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"I64", 8}, {"I32", 4},  {"I16", 2},
    {"U16", 2}, {"U8", 1},  {"I8", 1},   {"U32", 4}, {"U64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}};

TEST_CASE("every element type has safetensors' name and size, and is found by its name") {
  std::set<DType> found;
  for (const auto& [name, bytes] : kSafetensorsTypes) {
    INFO(name);
    const auto dtype = dtype_from_name(name);
    REQUIRE(dtype);
    CHECK(dtype_bytes(*dtype) == bytes);
    CHECK(dtype_name(*dtype) == name);
    found.insert(*dtype);
  }
  CHECK(found.size() == kSafetensorsTypes.size());
}

TEST_CASE("every enumerator of DType has the name of its type") {
  CHECK(dtype_name(DType::kF64) == "F64");
  CHECK(dtype_name(DType::kF32) == "F32");
  CHECK(dtype_name(DType::kBF16) == "BF16");
  CHECK(dtype_name(DType::kF16) == "F16");
  CHECK(dtype_name(DType::kI32) == "I32");
  CHECK(dtype_name(DType::kU16) == "U16");
  CHECK(dtype_name(DType::kBool) == "BOOL");
}

TEST_CASE("names that safetensors does not use are refused") {
  for (const char* name : {"", "f32", "FLOAT", "F8_E5M2", "F32 ", "BF"})
    CHECK_FALSE(dtype_from_name(name));
}

}  // namespace
}  // namespace ftrun
