#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/quantized_format.h"
#include "base/round_up.h"

namespace ftrun {

/// StorageFormat says how elements of a state are stored. Code that needs a size in bytes calls
/// bytes(); the dtype alone does not determine it.
struct StorageFormat {
  DType dtype = DType::kF32;
  /// The quantized format, if the state is stored as records of bytes (U8) instead of elements.
  QuantizedFormat quantized = {};
  /// The number of neighboring elements that share one stored element: the block size if the
  /// stored elements are scales, else 1.
  int64_t block = 1;

  /// Returns the bytes of `elements` contiguous elements that begin at the start of a block
  /// (kTensorBlock).
  int64_t bytes(int64_t elements) const {
    return stored_bytes(dtype, quantized, divide_up(elements, block));
  }
  bool operator==(const StorageFormat&) const = default;
};

}  // namespace ftrun
