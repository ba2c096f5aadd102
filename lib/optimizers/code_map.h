#pragma once

#include <cstdint>

namespace ftrun {

// This header is included by sources compiled for different instruction sets and for GPUs, so it
// has only constants and functions that run at compile time.

/// Number of neighboring elements of a tensor whose codes share a scale, which is the largest of
/// their absolute values.
inline constexpr int64_t kCodeBlock = 256;

inline constexpr int kCodes = 256;

/// DynamicCodeMap is the dynamic map of bitsandbytes (Dettmers et al. 2022, "8-bit Optimizers via
/// Block-wise Quantization"): [0.1, 1] in 2^e equal bins (2^(e+1) without negative numbers), their
/// centers times 10^(e-6), for e = 0...6; and 0 and 1.
struct DynamicCodeMap {
  /// The number that each code stands for, as a share of its block's scale, ascending.
  float values[kCodes] = {};
  /// The smallest share of each code but the first: the middle between its value and the next lower
  /// one; the middle itself belongs to the even code. Shares below 0 always have codes of values
  /// below 0, because bitsandbytes keeps the sign.
  float smallest_shares[kCodes] = {};
};

/// CodeLookupTable is a lookup table that gives a first guess of the code of a share. It sorts
/// shares into cells by their sign and the 15 bits after it, from 2^-23 on, and holds the code of
/// the smallest share of each cell. The shares of a cell have at most two different codes.
struct CodeLookupTable {
  static constexpr uint32_t kFirst = 104U << 7, kCells = 23 * 128 + 1;
  /// Cells of positive shares, then of negative ones. Kernels read a 4-byte word at a cell, so
  /// three bytes follow the last cell.
  uint8_t codes[2 * kCells + 3] = {};
};

namespace code_map_detail {

consteval float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// Returns the next larger float after `x`, which is not 0.
consteval float next_float(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  return float_of(x > 0 ? bits + 1 : bits - 1);
}

/// Returns torch.linspace(0.1, 1, bins + 1)[i] in fp32, rounded as fused multiply-adds round it.
consteval float bin_edge(int bins, int i) {
  const float step = (1.0F - 0.1F) / static_cast<float>(bins);
  const double from_below = static_cast<double>(0.1F) + static_cast<double>(step) * i;
  const double from_above = 1.0 - static_cast<double>(step) * (bins - i);
  return static_cast<float>(i < (bins + 1) / 2 ? from_below : from_above);
}

consteval int code_of(const DynamicCodeMap& map, float share) {
  int code = 0;
  for (int step = kCodes / 2; step > 0; step /= 2)
    if (share >= map.smallest_shares[code + step]) code += step;
  return code;
}

}  // namespace code_map_detail

consteval DynamicCodeMap make_code_map(bool has_negative) {
  using namespace code_map_detail;
  constexpr double kPowers[]{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  DynamicCodeMap map;
  const int zero = has_negative ? kCodes / 2 - 1 : 0;
  int above = zero, below = zero;
  for (int e = 0; e < 7; ++e) {
    const int bins = has_negative ? 1 << e : 2 << e;
    for (int i = 0; i < bins; ++i) {
      const float center = (bin_edge(bins, i) + bin_edge(bins, i + 1)) / 2.0F;
      map.values[++above] = static_cast<float>(kPowers[e]) * center;
      if (has_negative) map.values[--below] = -map.values[above];
    }
  }
  map.values[++above] = 1.0F;
  map.smallest_shares[0] = -__builtin_inff();
  for (int code = 1; code < kCodes; ++code) {
    const float halfway = (map.values[code - 1] + map.values[code]) * 0.5F;
    map.smallest_shares[code] = code % 2 == 0 ? halfway : next_float(halfway);
  }
  if (has_negative) map.smallest_shares[zero] = 0.0F;
  return map;
}

consteval CodeLookupTable make_code_lookup_table(const DynamicCodeMap& map) {
  using namespace code_map_detail;
  CodeLookupTable lookup;
  for (uint32_t cell = 0; cell < CodeLookupTable::kCells; ++cell) {
    const uint32_t first = (CodeLookupTable::kFirst + cell) << 16;
    const uint32_t last = first | 0xFFFF;
    lookup.codes[cell] = static_cast<uint8_t>(code_of(map, cell == 0 ? 0.0F : float_of(first)));
    lookup.codes[CodeLookupTable::kCells + cell] =
        static_cast<uint8_t>(code_of(map, -float_of(last)));
  }
  return lookup;
}

/// The code maps of first moments (signed) and of second moments, which are never negative.
inline constexpr DynamicCodeMap kSignedCodeMap = make_code_map(true),
                                kUnsignedCodeMap = make_code_map(false);

}  // namespace ftrun
