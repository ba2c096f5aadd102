#include "checkpoint/quantized_weights.h"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/half_floats.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors_writer.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

/// RawTensor is a tensor as uninterpreted bytes.
struct RawTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
RawTensor float_tensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return {DType::kF32, shape, bytes_of(values)};
}
RawTensor code_tensor(DType dtype, const std::vector<int64_t>& shape,
                      const std::vector<uint8_t>& values) {
  return {dtype, shape, bytes_of(values)};
}

/// QuantizedFolder is a model folder with one file, which is written when the folder is opened.
struct QuantizedFolder {
  std::unique_ptr<MemoryFolder> root = std::make_unique<MemoryFolder>();
  std::string quantization;
  std::map<std::string, RawTensor> tensors;

  ModelFolder open() const {
    write_text(*root / "config.json",
               cat("{\"model_type\": \"llama\", \"quantization_config\": ", quantization, "}"));
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
    SafetensorsWriter writer(posix_files(), *root / "model.safetensors", specs);
    for (const TensorSpec& spec : writer.tensors())
      writer.append(spec.name, std::as_bytes(std::span(tensors.at(spec.name).bytes)));
    writer.finish();
    return ModelFolder(root->path());
  }
  std::string refusal() const {
    std::string text = require_bad_input([&] { open(); });
    const size_t at = text.find(root->path());
    return at == std::string::npos ? text : text.replace(at, root->path().size(), "FOLDER");
  }
};

std::vector<float> read_elements(const ModelFolder& folder, const std::string& name, int64_t begin,
                                 int64_t end) {
  std::vector<float> values(static_cast<size_t>(end - begin));
  folder.read_f32(name, begin, end, values);
  return values;
}

/// Returns a 3 x 5 fp8 matrix in blocks of 2 x 2, so that blocks at two edges are incomplete.
QuantizedFolder fp8_folder() {
  QuantizedFolder folder;
  folder.quantization = R"({"quant_method": "fp8", "weight_block_size": [2, 2]})";
  // 1, 2, -1.5, 448, 2^-9; 0, ...
  folder.tensors["a.weight"] = code_tensor(
      DType::kF8E4M3, {3, 5},
      {0x38, 0x40, 0xbc, 0x7e, 0x01, 0x00, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x3f});
  folder.tensors["a.weight_scale_inv"] = float_tensor({2, 3}, {1, 10, 0.5F, 2, 3, 4});
  folder.tensors["norm.weight"] = float_tensor({2}, {1, 2});
  return folder;
}

/// Returns bitsandbytes' tensors of a weight of 5 numbers in blocks of 4.
QuantizedFolder four_bit_folder() {
  QuantizedFolder folder;
  folder.quantization = R"({"quant_method": "bitsandbytes", "load_in_4bit": true})";
  std::vector<float> map(16);
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<float>(i) - 8;
  folder.tensors["a.weight"] = code_tensor(DType::kU8, {3, 1}, {0x9f, 0x08, 0x70});
  folder.tensors["a.weight.absmax"] = float_tensor({2}, {2, 0.5F});
  folder.tensors["a.weight.quant_map"] = float_tensor({16}, map);
  const std::string state = R"({"quant_type": "nf4", "blocksize": 4, "shape": [1, 5]})";
  folder.tensors["a.weight.quant_state.bitsandbytes__nf4"] = {
      DType::kU8, {static_cast<int64_t>(state.size())}, state};
  return folder;
}

}  // namespace

TEST_CASE("8-bit floats have the values of PyTorch's float8_e4m3fn") {
  CHECK(f32_from_e4m3(0x00) == 0);
  CHECK(std::signbit(f32_from_e4m3(0x80)));
  CHECK(f32_from_e4m3(0x01) == 0x1p-9F);  // the smallest subnormal number
  CHECK(f32_from_e4m3(0x07) == 7 * 0x1p-9F);
  CHECK(f32_from_e4m3(0x08) == 0x1p-6F);  // the smallest normal number
  CHECK(f32_from_e4m3(0x38) == 1);
  CHECK(f32_from_e4m3(0xb9) == -1.125F);
  CHECK(f32_from_e4m3(0x7e) == 448);  // the largest
  CHECK(std::isnan(f32_from_e4m3(0x7f)));
  CHECK(std::isnan(f32_from_e4m3(0xff)));
}

TEST_CASE("fp8 codes are multiplied by their block's scale, even if the edge cuts blocks") {
  const QuantizedFolder quantized = fp8_folder();
  const ModelFolder folder = quantized.open();
  CHECK(folder.names() == std::vector<std::string>{"a.weight", "norm.weight"});
  CHECK(folder.quantized_tensors() == 1);
  CHECK(folder.at("a.weight").dtype == DType::kBF16);
  CHECK(folder.at("a.weight").shape == std::vector<int64_t>{3, 5});
  const std::vector<float> expected{1,  2,    -15, 4480, 0x1p-10F, 0, 1,   10,
                                    10, 0.5F, 2,   2,    3,        3, 7.5F};
  CHECK(read_elements(folder, "a.weight", 0, 15) == expected);
  CHECK(read_elements(folder, "a.weight", 3, 11) ==
        std::vector<float>(expected.begin() + 3, expected.begin() + 11));
  std::vector<uint16_t> halves(2);
  folder.read_bf16("a.weight", 2, 4, halves);
  CHECK(halves == std::vector<uint16_t>{bf16_from_f32(-15), bf16_from_f32(4480)});
  folder.release("a.weight", 0, 15);
  CHECK_NOTHROW(folder.check_weight_dtype("a.weight"));
}

TEST_CASE("an fp8 matrix may have one scale, and numbers are rounded to bf16") {
  QuantizedFolder quantized = fp8_folder();
  quantized.quantization = R"({"quant_method": "fp8", "weight_block_size": null})";
  quantized.tensors["a.weight_scale_inv"] =
      float_tensor({}, {1.00390625F});  // halfway between two of bf16
  const ModelFolder folder = quantized.open();
  CHECK(read_elements(folder, "a.weight", 0, 3) == std::vector<float>{1, 2, -1.5078125F});
}

TEST_CASE("fp8 matrices whose parts are missing or do not fit are refused") {
  QuantizedFolder quantized = fp8_folder();
  quantized.tensors["a.weight_scale_inv"] = float_tensor({3}, {1, 2, 3});
  CHECK(quantized.refusal() ==
        "FOLDER/model.safetensors: tensor \"a.weight_scale_inv\" has 3 scales, but a matrix of [3, "
        "5] in blocks of 2 x 2 has 6");
  quantized.tensors["a.weight_scale_inv"] = code_tensor(DType::kU8, {2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(quantized.refusal() ==
        "FOLDER/model.safetensors: tensor \"a.weight_scale_inv\" holds U8, scales must be F32, "
        "BF16 or F16");
  quantized.tensors.erase("a.weight_scale_inv");
  CHECK(quantized.refusal() ==
        "FOLDER/model.safetensors: tensor \"a.weight\" holds codes, but their "
        "\"a.weight_scale_inv\" is missing");
  quantized = fp8_folder();
  quantized.tensors["a.weight"].shape = {15};
  CHECK(
      quantized.refusal() ==
      "FOLDER/model.safetensors: tensor \"a.weight\" holds F8_E4M3 in the shape [15], but a matrix "
      "was expected");
  quantized.quantization = R"({"quant_method": "fp8", "weight_block_size": [0, 128]})";
  CHECK(quantized.refusal() ==
        "FOLDER/config.json: quantization_config.weight_block_size must be two sizes, such as "
        "[128, 128]");
}

TEST_CASE(
    "4-bit codes are indices into the folder's table, the first of a byte in its upper half") {
  const QuantizedFolder quantized = four_bit_folder();
  const ModelFolder folder = quantized.open();
  CHECK(folder.names() == std::vector<std::string>{"a.weight"});
  CHECK(folder.at("a.weight").shape == std::vector<int64_t>{1, 5});
  // Codes 9, 15, 0, 8 | 7.
  CHECK(read_elements(folder, "a.weight", 0, 5) == std::vector<float>{2, 14, -16, 0, -0.5F});
  CHECK(read_elements(folder, "a.weight", 3, 5) == std::vector<float>{0, -0.5F});
  folder.release("a.weight", 0, 5);
}

TEST_CASE("scales of 4-bit codes may be 8-bit codes themselves") {
  QuantizedFolder quantized = four_bit_folder();
  std::vector<float> map(256, 0);
  map[3] = 0.25F;
  map[200] = -0.5F;
  quantized.tensors["a.weight.absmax"] = code_tensor(DType::kU8, {2}, {3, 200});
  quantized.tensors["a.weight.nested_quant_map"] = float_tensor({256}, map);
  quantized.tensors["a.weight.nested_absmax"] = float_tensor({2}, {4, 2});
  const std::string state =
      R"({"blocksize": 4, "shape": [1, 5], "nested_blocksize": 1, "nested_offset": 3.0})";
  quantized.tensors["a.weight.quant_state.bitsandbytes__nf4"] = {
      DType::kU8, {static_cast<int64_t>(state.size())}, state};
  // The scales are 0.25 * 4 + 3 and -0.5 * 2 + 3.
  CHECK(read_elements(quantized.open(), "a.weight", 0, 5) == std::vector<float>{4, 28, -32, 0, -2});
  quantized.tensors["a.weight.nested_absmax"] = float_tensor({1}, {4});
  CHECK(quantized.refusal() ==
        "FOLDER/model.safetensors: tensor \"a.weight.nested_quant_map\" has 256 numbers and 1 "
        "scales; 256 and 2 were expected");
}

TEST_CASE("4-bit matrices whose parts do not fit are refused") {
  QuantizedFolder quantized = four_bit_folder();
  quantized.tensors["a.weight"] = code_tensor(DType::kU8, {2, 1}, {0x9f, 0x08});
  CHECK(quantized.refusal() ==
        "FOLDER/model.safetensors: tensor \"a.weight\" has 2 bytes of codes, but a matrix of [1, "
        "5] has 3");
  quantized = four_bit_folder();
  quantized.tensors["a.weight.absmax"] = float_tensor({1}, {2});
  CHECK(quantized.refusal() ==
        "FOLDER/model.safetensors: tensor \"a.weight.absmax\" has 1 scale, but 5 codes in blocks "
        "of 4 have 2");
  quantized = four_bit_folder();
  quantized.tensors["a.weight.quant_map"] = float_tensor({2}, {2, 1});
  CHECK(quantized.refusal() ==
        "FOLDER/model.safetensors: tensor \"a.weight\" has a quant_map of 2 numbers, but 16 were "
        "expected");
  for (const char* state :
       {R"({"blocksize": 0, "shape": [1, 5]})", R"({"blocksize": 4, "shape": [1, -5]})",
        R"({"blocksize": 4, "shape": [9007199254740992, 9007199254740992]})", "[]", "{"}) {
    INFO(state);
    quantized = four_bit_folder();
    quantized.tensors["a.weight.quant_state.bitsandbytes__nf4"] = {
        DType::kU8, {static_cast<int64_t>(std::strlen(state))}, state};
    CHECK(quantized.refusal().starts_with("FOLDER/model.safetensors: "));
  }
}

TEST_CASE("8-bit rows are codes times their row's largest magnitude over 127") {
  QuantizedFolder quantized;
  quantized.quantization = R"({"quant_method": "bitsandbytes", "load_in_8bit": true})";
  quantized.tensors["a.weight"] = code_tensor(DType::kI8, {2, 2}, {127, 0x81, 0, 127});
  quantized.tensors["a.SCB"] = float_tensor({2}, {3, 5});
  quantized.tensors["a.weight_format"] = code_tensor(DType::kU8, {}, {0});
  CHECK(quantized.open().names() == std::vector<std::string>{"a.weight"});
  CHECK(read_elements(quantized.open(), "a.weight", 0, 4) == std::vector<float>{3, -3, 0, 5});
  quantized.tensors["a.SCB"] = float_tensor({1}, {3});
  CHECK(quantized.refusal() ==
        "FOLDER/model.safetensors: tensor \"a.weight\" holds I8 in the shape [2, 2], and its SCB "
        "has 1 row");
}

TEST_CASE("codes without a quantization_config are refused as weights") {
  QuantizedFolder quantized = fp8_folder();
  quantized.quantization = "null";
  const ModelFolder folder = quantized.open();
  CHECK(folder.quantized_tensors() == 0);
  CHECK(require_bad_input([&] {
          folder.check_weight_dtype("a.weight");
        }).find("holds F8_E4M3, but weights must be F32, BF16 or F16") != std::string::npos);
}

}  // namespace ftrun::testing
