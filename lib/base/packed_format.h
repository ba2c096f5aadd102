#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ftrun {

/// Elements of a record, the smallest part that is packed by itself: a shard never cuts it
/// (kTensorBlock).
inline constexpr int64_t kPackedRecord = 256;

/// PackedKind is the quantization of packed weights.
enum class PackedKind : uint8_t {
  kNone,
  // 4-bit NormalFloat (Dettmers et al. 2023, "QLoRA"), a scale for each `block` of
  // the whole tensor's elements
  kNf4,
  kInt8,  // 8 bits, a scale for each row of the whole tensor
};

/// PackedFormat says how weights that do not train are quantized, and how they lie in memory: one
/// record after another, each with codes of 256 elements and all that unpacking them takes, so that
/// any part of a tensor can be read by itself.
struct PackedFormat {
  PackedKind kind = PackedKind::kNone;
  /// kNf4: neighbouring elements with one scale: 64, 128 or 256. kInt8: neighbours of a row for
  /// which a record holds the row's scale.
  int64_t block = 64;
  /// kNf4: says whether scales are 8-bit codes themselves, 256 neighbouring ones with a scale and
  /// all with an offset.
  bool double_quantized = false;
  /// Records hold the scales (F32) that those codes stand for: used where one record's
  /// codes would have different scales. The numbers are the same.
  bool holds_scales = false;

  explicit operator bool() const { return kind != PackedKind::kNone; }
  bool operator==(const PackedFormat&) const = default;

  /// Returns the number of scales in a record.
  int64_t scales() const { return kPackedRecord / block; }
  /// Says whether records hold codes of scales, and what unpacks those.
  bool holds_scale_codes() const { return double_quantized && !holds_scales; }
  /// Returns the byte of a record at which its scales or their codes begin: after the elements'
  /// codes.
  int64_t scales_offset() const {
    return kind == PackedKind::kNf4 ? kPackedRecord / 2 : kPackedRecord;
  }
  int64_t record_bytes() const;
  /// Returns the bytes of `elements` from the beginning of a record: whole records.
  int64_t bytes(int64_t elements) const {
    return (elements + kPackedRecord - 1) / kPackedRecord * record_bytes();
  }
};

/// Bytes of a record that holds codes of scales: those (4, some unused), their scale and their
/// offset (F32 both).
inline constexpr int64_t kScaleOfScalesOffset = 4, kScaleOffsetOffset = 8, kScaleCodesBytes = 12;

/// Returns the bytes of `elements` of a dtype; where they are packed, from the beginning of a
/// record.
inline int64_t stored_bytes(DType dtype, const PackedFormat& packed, int64_t elements) {
  return packed ? packed.bytes(elements) : elements * dtype_bytes(dtype);
}

}  // namespace ftrun
