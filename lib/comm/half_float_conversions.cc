#include "comm/half_float_conversions.h"

#include <immintrin.h>

#include "base/half_floats.h"

// FMA is not enabled: the compiler could then contract a multiplication and an addition of the
// scalar conversions, which would round once instead of twice.
#define FTRUN_AVX2 __attribute__((target("avx2,f16c")))

namespace ftrun {
namespace {

constexpr int64_t kLanes = 8;

void widen_f16_scalar(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = f32_from_f16(from[i]);
}
void narrow_f16_scalar(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = f16_from_f32(from[i]);
}
void widen_bf16_scalar(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = f32_from_bf16(from[i]);
}
void narrow_bf16_scalar(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = bf16_from_f32(from[i]);
}

FTRUN_AVX2 __m128i load_16(const uint16_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
FTRUN_AVX2 void store_16(uint16_t* to, __m128i bits) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
}
FTRUN_AVX2 __m256 nan_lanes(__m256 x) {
  return _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
}

FTRUN_AVX2 void widen_f16_avx2(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(load_16(from + i)));
  widen_f16_scalar(from + i, to + i, count - i);
}

FTRUN_AVX2 void narrow_f16_avx2(const float* from, uint16_t* to, int64_t count) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256 x = _mm256_loadu_ps(from + i);
    // The conversion instruction would keep the upper bits of a NaN's payload, so NaNs are replaced
    // before it.
    const __m256 plain = _mm256_or_ps(_mm256_and_ps(x, sign), quiet);
    const __m256 value = _mm256_blendv_ps(x, plain, nan_lanes(x));
    store_16(to + i, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  narrow_f16_scalar(from + i, to + i, count - i);
}

FTRUN_AVX2 void widen_bf16_avx2(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i words = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(from + i)), 16);
    _mm256_storeu_ps(to + i, _mm256_castsi256_ps(words));
  }
  widen_bf16_scalar(from + i, to + i, count - i);
}

FTRUN_AVX2 void narrow_bf16_avx2(const float* from, uint16_t* to, int64_t count) {
  const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7FFF);
  const __m256i quiet = _mm256_set1_epi32(0x7FC0);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256 x = _mm256_loadu_ps(from + i);
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, half));
    const __m256i rounded = _mm256_srli_epi32(sum, 16);
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan_lanes(x)));
    store_16(to + i,
             _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  narrow_bf16_scalar(from + i, to + i, count - i);
}

constexpr HalfFloatConversions kScalar{widen_f16_scalar, narrow_f16_scalar, widen_bf16_scalar,
                                       narrow_bf16_scalar};
constexpr HalfFloatConversions kAvx2{widen_f16_avx2, narrow_f16_avx2, widen_bf16_avx2,
                                     narrow_bf16_avx2};

}  // namespace

const HalfFloatConversions& scalar_half_float_conversions() {
  return kScalar;
}

const HalfFloatConversions& half_float_conversions() {
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return avx2 ? kAvx2 : kScalar;
}

}  // namespace ftrun
