#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ftrun {

/// The number of elements of a record, the smallest part of a tensor that is quantized separately:
/// a shard never cuts a record (kTensorBlock).
inline constexpr int64_t kQuantizedRecord = 256;

/// QuantizationType is the kind of numbers in which frozen weights are stored.
enum class QuantizationType : uint8_t {
  kNone,
  // 4-bit NormalFloat (Dettmers et al. 2023, "QLoRA"), a scale for each `block` of
  // the whole tensor's elements
  kNf4,
  kInt8,  // 8 bits, a scale for each row of the whole tensor
};

/// QuantizedFormat describes how frozen weights are quantized and how they lie in memory: as one
/// record after another. Each record holds the codes of 256 elements and everything that is needed
/// to dequantize them, so that any part of a tensor can be read by itself.
struct QuantizedFormat {
  QuantizationType type = QuantizationType::kNone;
  /// Elements that share a scale. For kNf4: 64, 128 or 256. For kInt8: the elements of a row for
  /// which a record holds the row's scale.
  int64_t block = 64;
  /// Says whether scales are 8-bit codes themselves (kNf4 only): each 256 neighboring codes share
  /// a scale, and all codes share an offset.
  bool double_quantized = false;
  /// Says whether records hold the decoded scales (F32) instead of their codes. This is used if the
  /// codes of one record would have different scales. The numbers are the same.
  bool holds_scales = false;

  explicit operator bool() const { return type != QuantizationType::kNone; }
  bool operator==(const QuantizedFormat&) const = default;

  /// Returns the number of scales in a record.
  int64_t scales() const { return kQuantizedRecord / block; }
  /// Returns whether records hold codes of scales, with the numbers that decode them.
  bool holds_scale_codes() const { return double_quantized && !holds_scales; }
  /// Returns the byte offset in a record of its scales or their codes, which follow the elements'
  /// codes.
  int64_t scales_offset() const {
    return type == QuantizationType::kNf4 ? kQuantizedRecord / 2 : kQuantizedRecord;
  }
  int64_t record_bytes() const;
  /// Returns the bytes of `elements` elements from the beginning of a record, in whole records.
  int64_t bytes(int64_t elements) const {
    return (elements + kQuantizedRecord - 1) / kQuantizedRecord * record_bytes();
  }
};

/// Offsets in the last bytes of a record that holds codes of scales: the codes (4, some unused),
/// their scale and their offset (both F32).
inline constexpr int64_t kScaleOfScalesOffset = 4, kScaleOffsetOffset = 8, kScaleCodesBytes = 12;

/// Returns the bytes of `elements` elements of a dtype or, if they are quantized, of the records
/// that hold them, counted from the beginning of a record.
inline int64_t stored_bytes(DType dtype, const QuantizedFormat& quantized, int64_t elements) {
  return quantized ? quantized.bytes(elements) : elements * dtype_bytes(dtype);
}

}  // namespace ftrun
