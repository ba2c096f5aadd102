#include "base/quantized_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/round_up.h"

namespace ftrun {
namespace {

constexpr int64_t kScalesPerScale = 256;

/// Computes the bounds between neighboring values, their mean as fp32 computes it. A number that
/// is equal to a bound belongs to the lower value.
template <size_t N>
std::array<float, N - 1> bounds_between(const std::array<float, N>& values) {
  std::array<float, N - 1> bounds;
  for (size_t i = 0; i + 1 < N; ++i) bounds[i] = (values[i] + values[i + 1]) / 2;
  return bounds;
}

/// Makes bitsandbytes' dynamic values: for e = 0..6 the centers of 2^e equal bins of [0.1, 1] times
/// 10^(e-6), with both signs; then 0 and 1. They are computed in fp32; bin edges are counted from
/// the nearer end and rounded once, as in bitsandbytes (torch.linspace).
std::array<float, 256> make_dynamic_values() {
  std::array<float, 256> values;
  size_t count = 0;
  for (int e = 0; e < 7; ++e) {
    const int bins = 1 << e;
    const float step = (1.0F - 0.1F) / static_cast<float>(bins),
                power = static_cast<float>(std::pow(10.0, e - 6));
    const auto edge = [&](int i) {
      return i < (bins + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1F)
                                : std::fma(-step, static_cast<float>(bins - i), 1.0F);
    };
    for (int i = 0; i < bins; ++i) {
      const float center = power * ((edge(i) + edge(i + 1)) / 2.0F);
      values[count++] = center;
      values[count++] = -center;
    }
  }
  values[count++] = 0;
  values[count++] = 1;
  require(count == values.size(), "a record has 256 values");
  std::sort(values.begin(), values.end());
  return values;
}

template <size_t N>
uint8_t code_of(float x, const std::array<float, N>& bounds) {
  return static_cast<uint8_t>(std::lower_bound(bounds.begin(), bounds.end(), x) - bounds.begin());
}

float safe_inverse(float largest) {
  return 1.0F / std::max(largest, 1e-38F);
}

/// Rounds to the nearest fp16 number, ties to even.
float round_to_fp16(float x) {
  if (!std::isfinite(x)) return x;  // rounding would change the bits of a NaN
  constexpr float kMinNormal = 0x1p-14F;
  if (std::abs(x) < kMinNormal) return std::nearbyint(x * 0x1p24F) * 0x1p-24F;
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto rounded = std::bit_cast<float>((bits + 0xfffU + ((bits >> 13) & 1U)) & ~0x1fffU);
  return std::abs(rounded) > 65504.0F ? std::copysign(HUGE_VALF, x) : rounded;
}

/// Computes the NF4 codes of a block's elements: an element's code is the number of bounds below
/// it.
void encode_nf4_block(const float* x, int64_t count, float inverse_scale, uint8_t* codes) {
  static const std::array<float, 15> kBounds = bounds_between(kNf4Values);
  std::array<float, kQuantizedRecord> scaled;
  std::array<int32_t, kQuantizedRecord> code{};
  for (int64_t i = 0; i < count; ++i) scaled[static_cast<size_t>(i)] = x[i] * inverse_scale;
  for (const float bound : kBounds)
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) code[i] += scaled[i] > bound ? 1 : 0;
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(code[static_cast<size_t>(i)]);
}

void write_float(std::byte* to, float value) {
  std::memcpy(to, &value, sizeof value);
}
float read_float(const std::byte* from) {
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

const std::array<float, 256>& dynamic_values() {
  static const std::array<float, 256> kValues = make_dynamic_values();
  return kValues;
}

QuantizationScales::QuantizationScales(const QuantizedFormat& format, int64_t elements,
                                       int64_t columns)
    : format_(format),
      elements_(elements),
      elements_per_scale_(format.type == QuantizationType::kInt8 ? columns : format.block),
      max_magnitudes_(static_cast<size_t>(divide_up(elements, elements_per_scale_))) {}

void QuantizationScales::add(std::span<const float> values) {
  const bool int8 = format_.type == QuantizationType::kInt8;
  for (size_t i = 0; i < values.size();) {
    float& largest = max_magnitudes_[static_cast<size_t>(index_of(added_elements_))];
    const int64_t count =
        std::min<int64_t>(elements_per_scale_ - added_elements_ % elements_per_scale_,
                          static_cast<int64_t>(values.size() - i));
    for (const float x : values.subspan(i, static_cast<size_t>(count))) {
      const float size = std::abs(int8 ? round_to_fp16(x) : x);
      if (size > largest || std::isnan(size)) largest = size;  // a NaN is kept
    }
    i += static_cast<size_t>(count);
    added_elements_ += count;
  }
}

bool QuantizationScales::finish() {
  require(added_elements_ == elements_, "all elements were added");
  if (!std::all_of(max_magnitudes_.begin(), max_magnitudes_.end(),
                   [](float x) { return std::isfinite(x); }))
    return false;
  if (!format_.double_quantized) return true;
  static const std::array<float, 255> kBounds = bounds_between(dynamic_values());
  double sum = 0;
  for (const float x : max_magnitudes_) sum += static_cast<double>(x);
  offset_ = static_cast<float>(sum / static_cast<double>(max_magnitudes_.size()));
  codes_.resize(max_magnitudes_.size());
  for (size_t first = 0; first < max_magnitudes_.size(); first += kScalesPerScale) {
    const size_t last = std::min(first + kScalesPerScale, max_magnitudes_.size());
    float largest = 0;
    for (size_t i = first; i < last; ++i)
      largest = std::max(largest, std::abs(max_magnitudes_[i] - offset_));
    scales_of_scales_.push_back(largest);
    for (size_t i = first; i < last; ++i)
      codes_[i] = code_of((max_magnitudes_[i] - offset_) * safe_inverse(largest), kBounds);
  }
  return true;
}

float QuantizationScales::scale(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  if (!format_.double_quantized) return max_magnitudes_[i];
  return dynamic_values()[codes_[i]] * scales_of_scales_[i / kScalesPerScale] + offset_;
}

QuantizationScales compute_quantization_scales(
    const QuantizedFormat& format, const QuantizedTensor& tensor, int64_t batch_elements,
    const std::function<std::span<const float>(int64_t begin, int64_t end)>& read) {
  QuantizationScales scales(format, tensor.elements, tensor.columns);
  for (int64_t at = 0; at < tensor.elements; at += batch_elements)
    scales.add(read(at, std::min(at + batch_elements, tensor.elements)));
  if (scales.finish()) return scales;
  throw Error(
      ExitCode::kBadInput,
      cat(tensor.name, ": holds a number that is not finite",
          format.type == QuantizationType::kInt8 ? " in fp16" : "", ", so it cannot be quantized"),
      "check the model's files");
}

void quantize_values(const QuantizedFormat& format, const QuantizationScales& scales,
                     int64_t element, std::span<const float> values, int64_t position,
                     std::byte* records) {
  const auto count = static_cast<int64_t>(values.size());
  require(position % format.block == 0, "a quantized range begins on a block");
  std::array<uint8_t, kQuantizedRecord> codes;
  for (int64_t i = 0; i < count; i += format.block) {
    const int64_t block_elements = std::min(format.block, count - i),
                  at = (position + i) % kQuantizedRecord;
    const int64_t index = scales.index_of(element + i);
    std::byte* const record = records + (position + i) / kQuantizedRecord * format.record_bytes();
    std::byte* const scale_data = record + format.scales_offset();
    const float largest = scales.max_magnitudes_[static_cast<size_t>(index)];
    if (format.type == QuantizationType::kNf4) {
      require((element + i) % format.block == 0, "a quantized block is one of the whole tensor");
      codes.fill(7);  // zero
      encode_nf4_block(values.data() + i, block_elements, safe_inverse(largest), codes.data());
      for (int64_t c = 0; c < block_elements; c += 2)
        record[(at + c) / 2] = static_cast<std::byte>(codes[static_cast<size_t>(c)] << 4 |
                                                      codes[static_cast<size_t>(c + 1)]);
    } else {
      require(scales.index_of(element + i + block_elements - 1) == index,
              "a quantized block lies in a row");
      const float steps = largest > 0 ? 127.0F / largest : 0;
      for (int64_t c = 0; c < block_elements; ++c)
        record[at + c] = static_cast<std::byte>(static_cast<int8_t>(
            std::nearbyint(round_to_fp16(values[static_cast<size_t>(i + c)]) * steps)));
    }
    const int64_t block = at / format.block;
    if (!format.holds_scale_codes()) {
      write_float(scale_data + block * static_cast<int64_t>(sizeof(float)), scales.scale(index));
      continue;
    }
    scale_data[block] = static_cast<std::byte>(scales.codes_[static_cast<size_t>(index)]);
    write_float(scale_data + kScaleOfScalesOffset,
                scales.scales_of_scales_[static_cast<size_t>(index / kScalesPerScale)]);
    write_float(scale_data + kScaleOffsetOffset, scales.offset_);
  }
}

QuantizedBlock find_quantized_block(const QuantizedFormat& format, const std::byte* records,
                                    int64_t position) {
  const std::byte* const record = records + position / kQuantizedRecord * format.record_bytes();
  const std::byte* const scale_data = record + format.scales_offset();
  const int64_t at = position % kQuantizedRecord, block = at / format.block;
  const std::byte* const codes = record + (format.type == QuantizationType::kNf4 ? at / 2 : at);
  if (!format.holds_scale_codes())
    return {codes, read_float(scale_data + block * static_cast<int64_t>(sizeof(float)))};
  return {codes, dynamic_values()[static_cast<size_t>(scale_data[block])] *
                         read_float(scale_data + kScaleOfScalesOffset) +
                     read_float(scale_data + kScaleOffsetOffset)};
}

void dequantize_values(const QuantizedFormat& format, const std::byte* records, int64_t position,
                       std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = position + static_cast<int64_t>(i), within = at % format.block;
    const QuantizedBlock block = find_quantized_block(format, records, at - within);
    if (format.type == QuantizationType::kNf4) {
      const auto pair = static_cast<uint8_t>(block.codes[within / 2]);
      out[i] = kNf4Values[within % 2 == 0 ? pair >> 4 : pair & 15] * block.scale;
    } else {
      out[i] =
          static_cast<float>(static_cast<int8_t>(block.codes[within])) * block.scale * kInt8Step;
    }
  }
}

}  // namespace ftrun
