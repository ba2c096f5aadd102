#include "checkpoint/quantized_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/half_floats.h"
#include "base/quantized_values.h"
#include "base/round_up.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {
namespace {

constexpr const char* kRemedy =
    "fetch the model again, or use the unquantized model, which the section quantization quantizes "
    "while loading";

[[noreturn]] void refuse_weight(const EncodedTensor& matrix, const std::string& what) {
  throw Error(ExitCode::kBadInput,
              cat(matrix.path, ": tensor \"", printable_text(matrix.info->name), "\" ", what),
              kRemedy);
}

/// Floats reads a tensor of scales as fp32 numbers, which represent bf16 and fp16 exactly.
class Floats {
 public:
  Floats() = default;
  explicit Floats(const EncodedTensor& stored)
      : dtype_(stored.info->dtype), bytes_(stored.bytes), size_(stored.info->elements) {
    if (!is_weight_dtype(dtype_))
      refuse_weight(stored, cat("holds ", dtype_name(dtype_), ", scales must be F32, BF16 or F16"));
  }

  int64_t size() const { return size_; }
  float operator[](int64_t index) const {
    float value = 0;
    convert_to_f32(dtype_, bytes_.data() + index * dtype_bytes(dtype_), {&value, 1});
    return value;
  }

 private:
  DType dtype_ = DType::kF32;
  std::span<const std::byte> bytes_;
  int64_t size_ = 0;
};

/// Reads the table of numbers into which codes are indices.
std::vector<float> read_table(const EncodedTensor& stored) {
  const Floats floats(stored);
  std::vector<float> values;
  for (int64_t i = 0; i < floats.size(); ++i) values.push_back(floats[i]);
  return values;
}

/// Finds a tensor that belongs to a matrix; throws an error if it is missing.
EncodedTensor require_companion(const EncodedTensor& matrix, const std::string& name,
                                const FindStoredTensor& find) {
  const std::optional<EncodedTensor> part = find(name);
  if (!part)
    refuse_weight(matrix, cat("holds codes, but their \"", printable_text(name), "\" is missing"));
  return *part;
}

StoredTensor represented_tensor(const EncodedTensor& matrix, std::vector<int64_t> shape) {
  StoredTensor info{.name = matrix.info->name, .dtype = DType::kBF16, .shape = std::move(shape)};
  info.elements = checked_elements(
      info.shape, cat(matrix.path, ": tensor \"", printable_text(info.name), "\": shape"));
  return info;
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> made{};
    for (size_t code = 0; code < made.size(); ++code)
      made[code] = f32_from_e4m3(static_cast<uint8_t>(code));
    return made;
  }();
  return values;
}

/// Fp8Blocks is a matrix of F8_E4M3 codes with one scale for each block of rows and columns.
class Fp8Blocks final : public QuantizedWeight {
 public:
  /// BlockShape describes how many rows and columns share a scale; 0: all of them.
  struct BlockShape {
    int64_t rows = 0;
    int64_t columns = 0;
  };

  Fp8Blocks(const EncodedTensor& matrix, const EncodedTensor& scales, BlockShape block)
      : QuantizedWeight(represented_tensor(matrix, matrix.info->shape)),
        codes_(matrix.bytes),
        scales_(scales) {
    const std::vector<int64_t>& shape = matrix.info->shape;
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1)
      refuse_weight(matrix, cat("holds F8_E4M3 in the shape ", shape_text(shape),
                                ", but a matrix was expected"));
    columns_ = shape[1];
    block_rows_ = scales_.size() == 1 || block.rows == 0 ? shape[0] : block.rows;
    block_columns_ = scales_.size() == 1 || block.columns == 0 ? columns_ : block.columns;
    blocks_a_row_ = divide_up(columns_, block_columns_);
    const int64_t blocks = divide_up(shape[0], block_rows_) * blocks_a_row_;
    if (scales_.size() != blocks)
      refuse_weight(scales, cat("has ", count_text(scales_.size(), "scale"), ", but a matrix of ",
                                shape_text(shape), " in blocks of ", block_rows_, " x ",
                                block_columns_, " has ", blocks));
  }

  std::pair<int64_t, int64_t> codes_of(int64_t begin, int64_t end) const override {
    return {begin, end};
  }

 protected:
  void read_exact(int64_t begin, int64_t end, float* out) const override {
    const std::array<float, 256>& values = e4m3_values();
    for (int64_t at = begin; at < end;) {
      const int64_t row = at / columns_, column = at % columns_;
      const int64_t in_block =
          std::min(block_columns_ - column % block_columns_, columns_ - column);
      const int64_t run = std::min(in_block, end - at);
      const float scale = scales_[row / block_rows_ * blocks_a_row_ + column / block_columns_];
      for (int64_t i = 0; i < run; ++i)
        *out++ = values[static_cast<size_t>(codes_[static_cast<size_t>(at + i)])] * scale;
      at += run;
    }
  }

 private:
  std::span<const std::byte> codes_;
  Floats scales_;
  int64_t columns_ = 0, block_rows_ = 0, block_columns_ = 0, blocks_a_row_ = 0;
};

/// Int8Rows is a matrix in bitsandbytes' 8-bit rows: a number is code * SCB / 127, where SCB is the
/// largest magnitude in its row.
class Int8Rows final : public QuantizedWeight {
 public:
  Int8Rows(const EncodedTensor& matrix, const EncodedTensor& scales)
      : QuantizedWeight(represented_tensor(matrix, matrix.info->shape)),
        codes_(matrix.bytes),
        scales_(scales) {
    const std::vector<int64_t>& shape = matrix.info->shape;
    if (shape.size() != 2 || shape[0] != scales_.size())
      refuse_weight(matrix, cat("holds I8 in the shape ", shape_text(shape), ", and its SCB has ",
                                count_text(scales_.size(), "row")));
    columns_ = shape[1];
  }

  std::pair<int64_t, int64_t> codes_of(int64_t begin, int64_t end) const override {
    return {begin, end};
  }

 protected:
  void read_exact(int64_t begin, int64_t end, float* out) const override {
    for (int64_t at = begin; at < end;) {
      const float scale = scales_[at / columns_];
      for (const int64_t last = std::min(end, (at / columns_ + 1) * columns_); at < last; ++at)
        *out++ = static_cast<float>(static_cast<int8_t>(codes_[static_cast<size_t>(at)])) * scale *
                 kInt8Step;
    }
  }

 private:
  std::span<const std::byte> codes_;
  Floats scales_;
  int64_t columns_ = 0;
};

/// FourBitBlocks is a matrix of bitsandbytes' 4-bit codes: two in a byte, the first one in the
/// upper half. Each code is an index into a table of 16 numbers, and the number is multiplied by
/// the scale of its block. Scales may be 8-bit codes themselves (double quantization): an index
/// into a table of 256 numbers, times a scale that 256 scales share, plus an offset.
class FourBitBlocks final : public QuantizedWeight {
 public:
  FourBitBlocks(const EncodedTensor& matrix, const nlohmann::json& state, const std::string& where,
                const FindStoredTensor& find)
      : QuantizedWeight(represented_tensor(matrix, shape_of(state, where))),
        codes_(matrix.bytes),
        stored_bytes_(dtype_bytes(matrix.info->dtype)),
        block_(json_int(state, "blocksize", where, 1)),
        values_(read_table(require_companion(matrix, matrix.info->name + ".quant_map", find))) {
    const EncodedTensor scales = require_companion(matrix, matrix.info->name + ".absmax", find);
    if (info().elements / 2 > std::ssize(codes_))
      refuse_weight(matrix, cat("has ", codes_.size(), " bytes of codes, too few for a matrix of ",
                                shape_text(info().shape)));
    const int64_t blocks = divide_up(info().elements, block_);
    if (values_.size() != 16)
      refuse_weight(matrix,
                    cat("has a quant_map of ", values_.size(), " numbers, but 16 were expected"));
    if (std::ssize(codes_) !=
        divide_up(divide_up(info().elements, 2), stored_bytes_) * stored_bytes_)
      refuse_weight(matrix, cat("has ", codes_.size(), " bytes of codes, but a matrix of ",
                                shape_text(info().shape), " has ", divide_up(info().elements, 2)));
    if (scales.info->elements != blocks)
      refuse_weight(scales, cat("has ", count_text(scales.info->elements, "scale"), ", but ",
                                info().elements, " codes in blocks of ", block_, " have ", blocks));
    if (scales.info->dtype == DType::kU8)
      read_nested(matrix, scales, state, where, find);
    else
      scales_ = Floats(scales);
  }

  std::pair<int64_t, int64_t> codes_of(int64_t begin, int64_t end) const override {
    return {begin / 2 / stored_bytes_, divide_up(divide_up(end, 2), stored_bytes_)};
  }

 protected:
  void read_exact(int64_t begin, int64_t end, float* out) const override {
    for (int64_t at = begin; at < end;) {
      const float scale = scale_of(at / block_);
      for (const int64_t last = std::min(end, (at / block_ + 1) * block_); at < last; ++at) {
        const auto pair = static_cast<uint8_t>(codes_[static_cast<size_t>(at / 2)]);
        *out++ = values_[at % 2 == 0 ? pair >> 4 : pair & 0xfU] * scale;
      }
    }
  }

 private:
  static std::vector<int64_t> shape_of(const nlohmann::json& state, const std::string& where) {
    std::vector<int64_t> shape;
    for (const nlohmann::json& size : json_array(state, "shape", where)) {
      const bool is_size =
          size.is_number_unsigned() && size.get<uint64_t>() <= static_cast<uint64_t>(kMaxJsonInt);
      if (!is_size)
        throw Error(ExitCode::kBadInput, cat(where, ": field \"shape\" must be a list of sizes"),
                    kRemedy);
      shape.push_back(size.get<int64_t>());
    }
    return shape;
  }

  void read_nested(const EncodedTensor& matrix, const EncodedTensor& scales,
                   const nlohmann::json& state, const std::string& where,
                   const FindStoredTensor& find) {
    const EncodedTensor map =
        require_companion(matrix, matrix.info->name + ".nested_quant_map", find);
    nested_codes_ = scales.bytes;
    nested_values_ = read_table(map);
    scales_ = Floats(require_companion(matrix, matrix.info->name + ".nested_absmax", find));
    nested_block_ = json_int(state, "nested_blocksize", where, 1);
    offset_ = static_cast<float>(json_number(state, "nested_offset", where));
    const int64_t blocks = divide_up(std::ssize(nested_codes_), nested_block_);
    if (nested_values_.size() != 256 || scales_.size() != blocks)
      refuse_weight(map, cat("has ", nested_values_.size(), " numbers and ", scales_.size(),
                             " scales; 256 and ", blocks, " were expected"));
  }

  float scale_of(int64_t block) const {
    if (nested_codes_.empty()) return scales_[block];
    const auto code = static_cast<size_t>(nested_codes_[static_cast<size_t>(block)]);
    return nested_values_[code] * scales_[block / nested_block_] + offset_;
  }

  std::span<const std::byte> codes_, nested_codes_;
  int64_t stored_bytes_ = 1, block_ = 1, nested_block_ = 1;
  Floats scales_;
  std::vector<float> values_, nested_values_;
  float offset_ = 0;
};

Fp8Blocks::BlockShape block_shape(const nlohmann::json& quantization, const std::string& path) {
  const auto size = quantization.find("weight_block_size");
  if (size == quantization.end() || size->is_null()) return {};
  const auto is_size = [](const nlohmann::json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() > 0 &&
           value.get<uint64_t>() <= (uint64_t{1} << 30);
  };
  if (!size->is_array() || size->size() != 2 || !is_size((*size)[0]) || !is_size((*size)[1]))
    throw Error(
        ExitCode::kBadInput,
        cat(path, ": quantization_config.weight_block_size must be two sizes, such as [128, 128]"),
        kRemedy);
  return {(*size)[0].get<int64_t>(), (*size)[1].get<int64_t>()};
}

/// Returns the name of the module whose weight the tensor is, with the final dot; "" for any other
/// tensor.
std::string module_of(const std::string& name) {
  constexpr std::string_view kWeight = "weight";
  return name.ends_with(".weight") ? name.substr(0, name.size() - kWeight.size()) : "";
}

using MakeMatrix = std::function<std::unique_ptr<QuantizedWeight>(const EncodedTensor& matrix)>;

void add_matrix(QuantizedWeights& weights, const FindStoredTensor& find, const std::string& name,
                std::initializer_list<std::string> companions, const MakeMatrix& make) {
  weights.matrices[name] = make(*find(name));
  for (const std::string& companion : companions)
    if (find(companion)) weights.companions.push_back(companion);
}

QuantizedWeights find_fp8(const nlohmann::json& quantization, const std::string& path,
                          const std::vector<std::string>& names, const FindStoredTensor& find) {
  const Fp8Blocks::BlockShape block = block_shape(quantization, path);
  QuantizedWeights weights;
  for (const std::string& name : names) {
    if (find(name)->info->dtype != DType::kF8E4M3) continue;
    const std::string module = module_of(name), scales = name + "_scale_inv";
    add_matrix(weights, find, name, {scales, module + "activation_scale", module + "input_scale"},
               [&](const EncodedTensor& matrix) {
                 return std::make_unique<Fp8Blocks>(matrix, require_companion(matrix, scales, find),
                                                    block);
               });
  }
  return weights;
}

/// Makes a 4-bit matrix from its codes and its quantization state, which is JSON in the bytes of a
/// tensor.
std::unique_ptr<QuantizedWeight> make_four_bit_matrix(const EncodedTensor& matrix,
                                                      const EncodedTensor& state,
                                                      const FindStoredTensor& find) {
  const std::string where = cat(state.path, ": ", printable_text(state.info->name));
  const std::string_view text(reinterpret_cast<const char*>(state.bytes.data()),
                              state.bytes.size());
  const nlohmann::json json = parse_json_strict(text, where);
  return std::make_unique<FourBitBlocks>(matrix, json, where, find);
}

QuantizedWeights find_bitsandbytes(const std::vector<std::string>& names,
                                   const FindStoredTensor& find) {
  QuantizedWeights weights;
  for (const std::string& name : names) {
    for (const char* type : {"nf4", "fp4"}) {
      const std::string state_name = cat(name, ".quant_state.bitsandbytes__", type);
      const std::optional<EncodedTensor> state = find(state_name);
      if (!state) continue;
      add_matrix(
          weights, find, name,
          {state_name, name + ".absmax", name + ".quant_map", name + ".nested_absmax",
           name + ".nested_quant_map"},
          [&](const EncodedTensor& matrix) { return make_four_bit_matrix(matrix, *state, find); });
    }
    const std::string module = module_of(name), rows = module + "SCB";
    if (!module.empty() && find(name)->info->dtype == DType::kI8)
      add_matrix(weights, find, name, {rows, module + "weight_format"},
                 [&](const EncodedTensor& matrix) {
                   return std::make_unique<Int8Rows>(matrix, require_companion(matrix, rows, find));
                 });
  }
  return weights;
}

}  // namespace

void QuantizedWeight::read(int64_t begin, int64_t end, std::span<float> out) const {
  require(begin >= 0 && begin <= end && end <= info_.elements && std::ssize(out) == end - begin,
          "the range lies inside the matrix, and `out` has its size");
  read_exact(begin, end, out.data());
  for (float& value : out) value = f32_from_bf16(bf16_from_f32(value));
}

QuantizedWeights find_quantized_weights(const std::string& config_json, const std::string& path,
                                        const std::vector<std::string>& names,
                                        const FindStoredTensor& find) {
  // A config.json that is not JSON is reported where it is read as the model's config.
  const nlohmann::json config =
      nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return {};
  const auto quantization = config.find("quantization_config");
  if (quantization == config.end() || !quantization->is_object()) return {};
  const auto method = quantization->find("quant_method");
  if (method != quantization->end() && *method == "fp8")
    return find_fp8(*quantization, path, names, find);
  if (method != quantization->end() && *method == "bitsandbytes")
    return find_bitsandbytes(names, find);
  return {};
}

}  // namespace ftrun
