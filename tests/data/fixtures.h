#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "temporary_folder.h"
#include "thrown_error.h"

namespace ftrun::testing {

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::string bytes_of(T value) {
  return bytes_of(std::vector<T>{value});
}

inline std::string raw_u16(const std::vector<int>& ids) {
  return bytes_of(std::vector<uint16_t>(ids.begin(), ids.end()));
}

/// Returns 0, 1, ..., n-1 as uint16.
inline std::string counting_u16(int n) {
  std::vector<int> ids(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ids[static_cast<size_t>(i)] = i;
  return raw_u16(ids);
}

/// MegatronIndex is a Megatron index in which a test may falsify every field.
struct MegatronIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t code = 8;
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers, documents;
  std::string tail;

  /// Makes an index with one sequence per document, as the writers do.
  explicit MegatronIndex(const std::vector<int32_t>& document_lengths, int item = 2)
      : lengths(document_lengths), documents{0} {
    int64_t at = 0;
    for (const int32_t length : lengths) {
      pointers.push_back(at);
      at += int64_t{length} * item;
      documents.push_back(static_cast<int64_t>(pointers.size()));
    }
  }
  std::string bytes() const {
    return magic + bytes_of(version) + bytes_of(code) + bytes_of<uint64_t>(lengths.size()) +
           bytes_of<uint64_t>(documents.size()) + bytes_of(lengths) + bytes_of(pointers) +
           bytes_of(documents) + tail;
  }
};

/// Returns a mask file: bit i says whether token i is trained on.
inline std::string mask_bytes(const std::vector<int>& trained) {
  std::string bits((trained.size() + 7) / 8, '\0');
  for (size_t i = 0; i < trained.size(); ++i)
    if (trained[i] != 0) bits[i / 8] = static_cast<char>(bits[i / 8] | (1 << (i % 8)));
  return std::string("FTRMASK\0", 8) + bytes_of<uint64_t>(1) + bytes_of<uint64_t>(trained.size()) +
         bits;
}

}  // namespace ftrun::testing
