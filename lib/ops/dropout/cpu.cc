#include "kernels/dropout_mask.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/dropout/dropout.h"

namespace ftrun {

/// Makes the key of dropout. Its bits differ from the key of stochastic rounding for the same seed
/// and step.
uint64_t dropout_key(uint64_t seed, int64_t step) {
  return splitmix64(splitmix64(splitmix64(seed) + 1) ^ static_cast<uint64_t>(step));
}

namespace cpu {
namespace {

/// Computes y = x minus the result of dropout, rounded as dropout rounds it; y may be x.
template <class S>
void dropped_part(const S* x, S* y, const DropoutRow& row, int64_t first_column, int64_t count) {
  constexpr int64_t kRoom = 256;
  std::array<S, kRoom> kept;
  std::array<Compute<S>, kRoom> rest, kept_wide;
  for (int64_t first = 0; first < count; first += kRoom) {
    const int64_t some = std::min(kRoom, count - first);
    vector_kernels<S>().dropout(x + first, kept.data(), row, first_column + first, some);
    widen_elements(x + first, rest.data(), some);
    widen_elements(kept.data(), kept_wide.data(), some);
    for (size_t i = 0; i < static_cast<size_t>(some); ++i) rest[i] -= kept_wide[i];
    narrow_elements(rest.data(), y + first, some);
  }
}

}  // namespace

template <class S>
void dropout(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const x = call.in<S>(0);
  S* const y = call.out<S>(0);
  const auto& attrs = call.attrs<DropoutAttrs>();
  const uint32_t least_kept = least_kept_bits(attrs);
  const double scale = dropout_scale(attrs);
  const uint64_t key = call.scalars().dropout_key;
  const auto& vec = vector_kernels<S>();
  parallel_ranges(tokens, 4, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t token = dropout_token_index(n, attrs.sequence_length, attrs.sequence_padding);
      const uint64_t row_key =
          dropout_row_key(key, call.layer(), attrs.site, call.first_token() + token);
      for (int64_t i = 0; i < width;) {
        const int64_t column = attrs.first_column + i;
        const int64_t count =
            std::min(width - i, kColumnsPerDropoutKey - column % kColumnsPerDropoutKey);
        const DropoutKeys keys = dropout_keys(row_key, column);
        const int64_t at = n * width + i;
        if (attrs.returns_dropped_part)
          dropped_part(x + at, y + at, {keys.low, keys.high, least_kept, scale}, column, count);
        else
          vec.dropout(x + at, y + at, {keys.low, keys.high, least_kept, scale}, column, count);
        i += count;
      }
    }
  });
}

FTRUN_FOR_STORAGE_TYPES(dropout)

}  // namespace cpu

}  // namespace ftrun
