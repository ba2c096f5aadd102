#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/weight_conversion.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

std::vector<TensorSpec> mixed_specs() {
  return {{"b.weight", DType::kF32, {2, 3}}, {"a.weight", DType::kBF16, {4}},
          {"flags", DType::kBool, {3}},      {"step", DType::kI64, {}},
          {"a.bias", DType::kF32, {1}},      {"empty", DType::kF32, {0, 5}}};
}

std::vector<std::byte> some_bytes(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + static_cast<size_t>(seed)) % 2);
  return bytes;
}

size_t bytes_of(const TensorSpec& spec) {
  return static_cast<size_t>(checked_elements(spec.shape, "") * dtype_bytes(spec.dtype));
}

}  // namespace

TEST_CASE("a file that was written is read back, in the library's order") {
  const MemoryFolder folder;
  const std::string path = folder / "x.safetensors";
  SafetensorsWriter writer(posix_files(), path, mixed_specs(), {{"who", "test"}});
  std::vector<std::string> order;
  int seed = 0;
  for (const TensorSpec& spec : writer.tensors()) {
    order.push_back(spec.name);
    const auto bytes = some_bytes(bytes_of(spec), ++seed);
    const auto half = std::span(bytes).first(bytes.size() / 2);
    writer.append(spec.name, half);
    writer.append(spec.name, std::span(bytes).subspan(half.size()));
  }
  const WrittenFile written = writer.finish();
  REQUIRE(order ==
          std::vector<std::string>{"step", "a.bias", "b.weight", "empty", "a.weight", "flags"});

  const SafetensorsFile file(path);
  REQUIRE(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"who", "test"}});
  REQUIRE(file.tensors().size() == 6);
  seed = 0;
  size_t index = 0;
  for (const std::string& name : order) {
    const TensorView view = file.tensor(name);
    const auto expected = some_bytes(view.bytes.size(), ++seed);
    REQUIRE(std::equal(view.bytes.begin(), view.bytes.end(), expected.begin(), expected.end()));
    REQUIRE(xxh3(view.bytes.data(), view.bytes.size()) == written.tensor_xxh3[index++]);
  }
  REQUIRE(file.tensor("b.weight").shape == std::vector<int64_t>{2, 3});
  REQUIRE(file.at("empty").elements == 0);
  const std::string raw = read_text(path);
  REQUIRE(written.bytes == static_cast<int64_t>(raw.size()));
  REQUIRE(written.xxh3 == xxh3(raw.data(), raw.size()));
  REQUIRE(written.header_xxh3 == file.header_xxh3());
  REQUIRE((raw.size() - (8 + 6 * 4 + 4 + 8 + 3)) % 8 == 0);
}

TEST_CASE("a header is padded to 8 bytes and names PyTorch as its format") {
  const std::string header = safetensors_header({{"w", DType::kF32, {1}}}, {});
  REQUIRE(header.substr(8) ==
          "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[1],"
          "\"data_offsets\":[0,4]}}   ");
  REQUIRE(static_cast<unsigned char>(header[0]) == header.size() - 8);
}

TEST_CASE("a file without tensors is valid") {
  const MemoryFolder folder;
  SafetensorsWriter writer(posix_files(), folder / "none", {});
  writer.finish();
  REQUIRE(SafetensorsFile(folder / "none").tensors().empty());
}

TEST_CASE("a writer refuses data out of order, too much, too little, and bad names") {
  const MemoryFolder folder;
  const auto bytes = some_bytes(16, 1);
  const auto make = [&] {
    return SafetensorsWriter(posix_files(), folder / "x",
                             {{"a", DType::kF32, {2}}, {"b", DType::kF32, {1}}});
  };
  const auto problem = [](const std::function<void()>& action) {
    const std::string message = require_error(ExitCode::kBug, action);
    return message.substr(message.find(": ") + 2);
  };
  REQUIRE(problem([&] { make().append("b", bytes); }) == "data of tensor \"b\" came out of order");
  REQUIRE(problem([&] { make().append("a", bytes); }) == "tensor \"a\" got 16 bytes, 8 were left");
  REQUIRE(problem([&] { make().finish(); }) == "tensor \"a\" lacks 8 bytes");
  REQUIRE(problem([&] {
            SafetensorsWriter(posix_files(), folder / "x", {{"../a", DType::kF32, {}}});
          }) == "tensor name \"../a\" cannot be written: it reads as a path");
  REQUIRE(problem([&] {
            SafetensorsWriter(posix_files(), folder / "x",
                              {{"a", DType::kF32, {}}, {"a", DType::kF16, {}}});
          }) == "tensor \"a\" would be written twice");
}

TEST_CASE("an unknown tensor is refused with the nearest name") {
  const MemoryFolder folder;
  SafetensorsWriter writer(posix_files(), folder / "x", {{"model.norm.weight", DType::kF32, {0}}});
  writer.finish();
  const SafetensorsFile file(folder / "x");
  try {
    file.at("model.nrom.weight");
    FAIL("no error");
  } catch (const Error& error) {
    REQUIRE(error.message() == (folder / "x") + ": has no tensor \"model.nrom.weight\"");
    REQUIRE(error.remedy() == "use the nearest name: \"model.norm.weight\"");
  }
  REQUIRE(file.find("model") == nullptr);
}

TEST_CASE("conversion reads sources at any alignment") {
  std::vector<std::byte> bytes(1 + 3 * 2);
  const std::vector<uint16_t> halves{0x3c00, 0xc000, 0x0001};  // 1, -2, 2^-24 as F16
  std::memcpy(bytes.data() + 1, halves.data(), 6);
  std::vector<float> values(3);
  convert_to_f32(DType::kF16, bytes.data() + 1, values);
  REQUIRE(values == std::vector<float>{1.0F, -2.0F, 0x1p-24F});
  std::vector<uint16_t> out(3);
  convert_to_bf16(DType::kF16, bytes.data() + 1, out);
  REQUIRE(out == std::vector<uint16_t>{0x3f80, 0xc000, 0x3380});
}

}  // namespace ftrun::testing
