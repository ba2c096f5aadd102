#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/quantized_format.h"

namespace ftrun {

/// The 16 numbers of NF4 by their codes (Dettmers et al. 2023, appendix E), F32.
inline constexpr std::array<float, 16> kNf4Values{-1.0F,
                                                  -0.6961928009986877F,
                                                  -0.5250730514526367F,
                                                  -0.39491748809814453F,
                                                  -0.28444138169288635F,
                                                  -0.18477343022823334F,
                                                  -0.09105003625154495F,
                                                  0.0F,
                                                  0.07958029955625534F,
                                                  0.16093020141124725F,
                                                  0.24611230194568634F,
                                                  0.33791524171829224F,
                                                  0.44070982933044434F,
                                                  0.5626170039176941F,
                                                  0.7229568362236023F,
                                                  1.0F};

/// Returns the 256 numbers of bitsandbytes' signed dynamic 8-bit code, ascending.
const std::array<float, 256>& dynamic_values();

/// The step of int8 codes: code c in a row whose largest magnitude is m represents c m (1/127).
inline constexpr float kInt8Step = 7.874015718698502e-3F;

/// QuantizationScales computes the scales of a whole tensor, whose elements it gets once, in order.
/// A rank quantizes its part of the tensor with these scales, so the numbers do not depend on the
/// layout of the ranks. NF4 and double quantization are computed as in bitsandbytes, except for the
/// offset of scales, which is their mean summed in double precision.
class QuantizationScales {
 public:
  /// Begins the scales of a matrix with `columns` elements a row.
  QuantizationScales(const QuantizedFormat& format, int64_t elements, int64_t columns);

  /// Adds the next elements of the tensor.
  void add(std::span<const float> values);
  /// Completes the scales after the last element. Returns false if a number is not finite (for
  /// kInt8: not finite in fp16, to which bitsandbytes converts weights).
  bool finish();

 private:
  friend void quantize_values(const QuantizedFormat& format, const QuantizationScales& scales,
                              int64_t element, std::span<const float> values, int64_t position,
                              std::byte* records);
  int64_t index_of(int64_t element) const { return element / elements_per_scale_; }
  /// Returns the factor by which dequantizing multiplies.
  float scale(int64_t index) const;

  QuantizedFormat format_;
  int64_t elements_;
  int64_t elements_per_scale_;
  int64_t added_elements_ = 0;
  /// The largest magnitude of the elements of each scale.
  std::vector<float> max_magnitudes_;
  // The members below are used with double quantization only:
  std::vector<uint8_t> codes_;
  std::vector<float> scales_of_scales_;
  float offset_ = 0;
};

/// QuantizedTensor describes a matrix that is quantized.
struct QuantizedTensor {
  std::string name;
  int64_t elements = 0;
  /// Elements of a row.
  int64_t columns = 0;
};
/// Computes the scales of a tensor, reading `batch_elements` elements at a time. Throws
/// Error(kBadInput) with the tensor's name if a number is not finite.
QuantizationScales compute_quantization_scales(
    const QuantizedFormat& format, const QuantizedTensor& tensor, int64_t batch_elements,
    const std::function<std::span<const float>(int64_t begin, int64_t end)>& read);

/// Quantizes elements [element, element + values.size()) of the tensor as the elements from
/// `position` on of the rank's part, whose first record is at `records`. `element` and `position`
/// must be multiples of QuantizedFormat::block.
void quantize_values(const QuantizedFormat& format, const QuantizationScales& scales,
                     int64_t element, std::span<const float> values, int64_t position,
                     std::byte* records);

/// QuantizedBlock holds the address of a block's codes, and the factor by which dequantizing
/// multiplies them.
struct QuantizedBlock {
  const std::byte* codes = nullptr;
  float scale = 0;
};
/// Finds the block of `format.block` elements that begins at element `position`.
QuantizedBlock find_quantized_block(const QuantizedFormat& format, const std::byte* records,
                                    int64_t position);

/// Dequantizes elements: out[i] = element `position` + i, F32.
void dequantize_values(const QuantizedFormat& format, const std::byte* records, int64_t position,
                       std::span<float> out);

}  // namespace ftrun
