#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"
#include "base/round_up.h"
#include "graph/storage.h"

namespace ftrun {

/// OffsetAllocator assigns aligned offsets, one after another, to the parts of an operation's
/// scratch.
class OffsetAllocator {
 public:
  int64_t reserve(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += round_up(bytes, kStorageAlignment);
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

/// Returns whether elements have 16 bits. Kernels compute with them in 32 bits.
inline bool is_narrow(int64_t element_bytes) {
  return element_bytes < dtype_bytes(DType::kF32);
}

/// Returns the size in bytes of the type in which kernels compute with elements of this size:
/// 16-bit elements are computed in 32 bits.
inline int64_t wide_bytes(int64_t element_bytes) {
  return std::max(element_bytes, dtype_bytes(DType::kF32));
}

}  // namespace ftrun
