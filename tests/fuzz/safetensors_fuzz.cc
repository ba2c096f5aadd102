#include <span>

#include "checkpoint/safetensors.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return ftrun::fuzz::judge([&] {
    const auto file = std::as_bytes(std::span(data, size));
    const ftrun::SafetensorsHeader header = ftrun::parse_safetensors(file, "f.safetensors");
    for (const ftrun::StoredTensor& tensor : header.tensors) {
      const int64_t begin = header.data_offset + tensor.begin, end = header.data_offset + tensor.end;
      ftrun::require(begin <= end && end <= static_cast<int64_t>(size), "an admitted tensor lies in its file");
      int sum = 0;
      for (int64_t at = begin; at < end; ++at) sum += static_cast<int>(file[static_cast<size_t>(at)]);
      ftrun::require(sum >= 0, "bytes are read");
    }
  });
}
