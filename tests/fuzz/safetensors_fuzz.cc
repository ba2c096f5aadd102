#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/quantized_weights.h"
#include "checkpoint/safetensors.h"
#include "fuzz.h"

namespace {

/// Reads all matrices that the file stores as codes of one quantization.
void read_quantized(const ftrun::SafetensorsHeader& header, std::span<const std::byte> file,
                    const std::string& quantization) {
  std::map<std::string, const ftrun::StoredTensor*> tensors;
  std::vector<std::string> names;
  for (const ftrun::StoredTensor& tensor : header.tensors) {
    tensors[tensor.name] = &tensor;
    names.push_back(tensor.name);
  }
  const auto find = [&](const std::string& name) -> std::optional<ftrun::EncodedTensor> {
    const auto found = tensors.find(name);
    if (found == tensors.end()) return std::nullopt;
    const ftrun::StoredTensor& info = *found->second;
    const auto begin = static_cast<size_t>(header.data_offset + info.begin);
    return ftrun::EncodedTensor{
        &info, file.subspan(begin, static_cast<size_t>(info.end - info.begin)), "f.safetensors"};
  };
  const auto found = ftrun::find_quantized_weights(
      "{\"quantization_config\": " + quantization + "}", "config.json", names, find);
  for (const auto& [name, matrix] : found.matrices) {
    const int64_t elements = matrix->info().elements;
    std::vector<float> values(static_cast<size_t>(elements));
    matrix->read(0, elements, values);
    const auto [first, last] = matrix->codes_of(elements / 2, elements);
    ftrun::require(first <= last && last <= tensors.at(name)->elements,
                   "codes lie in their tensor");
  }
}

/// Reads the matrices as one quantization's codes; a file that is refused may be valid for another.
void try_quantized(const ftrun::SafetensorsHeader& header, std::span<const std::byte> file,
                   const std::string& quantization) {
  ftrun::fuzz::parse_or_abort([&] { read_quantized(header, file, quantization); });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return ftrun::fuzz::parse_or_abort([&] {
    const auto file = std::as_bytes(std::span(data, size));
    const ftrun::SafetensorsHeader header = ftrun::parse_safetensors(file, "f.safetensors");
    for (const ftrun::StoredTensor& tensor : header.tensors) {
      const int64_t begin = header.data_offset + tensor.begin,
                    end = header.data_offset + tensor.end;
      ftrun::require(begin <= end && end <= static_cast<int64_t>(size),
                     "an admitted tensor lies in its file");
      int sum = 0;
      for (int64_t at = begin; at < end; ++at)
        sum += static_cast<int>(file[static_cast<size_t>(at)]);
      ftrun::require(sum >= 0, "bytes are read");
    }
    try_quantized(header, file, R"({"quant_method": "fp8", "weight_block_size": [2, 3]})");
    try_quantized(header, file, R"({"quant_method": "bitsandbytes"})");
  });
}
