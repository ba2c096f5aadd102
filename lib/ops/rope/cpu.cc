#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/rope/rope.h"

namespace ftrun::cpu {

namespace {

/// Rotates neighboring elements (2i, 2i+1) of the first `rotated` elements of each head of one
/// token. `halves` has room for `rotated` elements: it holds the first elements of a head's pairs,
/// then the second ones.
template <class S>
void rotate_pairs(const S* from, S* to, const float* cosine, const float* sine, double sine_sign,
                  int64_t heads, int64_t size, int64_t rotated, std::vector<S>& halves) {
  const int64_t pairs = rotated / 2;
  S* const first = halves.data();
  S* const second = first + pairs;
  for (int64_t head = 0; head < heads; ++head, from += size, to += size) {
    for (int64_t i = 0; i < pairs; ++i) {
      first[i] = from[2 * i];
      second[i] = from[2 * i + 1];
    }
    vector_kernels<S>().rope(first, first, cosine, sine, sine_sign, 1, rotated, rotated);
    for (int64_t i = 0; i < pairs; ++i) {
      to[2 * i] = first[i];
      to[2 * i + 1] = second[i];
    }
  }
}

/// Rotates queries and keys, which are neighbors in a row, as H + K heads.
template <class S>
void rotate(const OpCall& call, double sine_sign) {
  const auto& attrs = call.attrs<RopeAttrs>();
  const int64_t heads = attrs.heads.query_heads + attrs.heads.kv_heads;
  const int64_t size = attrs.heads.head_size, all = heads * size;
  const int64_t width = all + attrs.heads.kv_heads * size;
  const int64_t table_width = call.in_dims(1)[1], rotated = 2 * attrs.angles_of(table_width);
  const S* const x = call.in<S>(0);
  const float* const table = call.in<float>(1);
  S* const y = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], 16, [&](int64_t begin, int64_t end) {
    std::vector<S> halves(attrs.pairs ? static_cast<size_t>(rotated) : 0);
    for (int64_t n = begin; n < end; ++n) {
      const float* const cosine = table + n * table_width + attrs.first_angle;
      const float* const sine = cosine + table_width / 2;
      const S* const from = x + n * width;
      S* const to = y + n * width;
      if (attrs.pairs)
        rotate_pairs(from, to, cosine, sine, sine_sign, heads, size, rotated, halves);
      else
        vec.rope(from, to, cosine, sine, sine_sign, heads, size, rotated);
      if (x == y) continue;
      if (rotated < size)
        for (int64_t head = 0; head < heads; ++head)
          std::copy_n(from + head * size + rotated, size - rotated, to + head * size + rotated);
      std::copy_n(from + all, width - all, to + all);
    }
  });
}

}  // namespace

template <class S>
void rope(const OpCall& call) {
  rotate<S>(call, 1.0);
}

template <class S>
void rope_dgrad(const OpCall& call) {
  rotate<S>(call, -1.0);
}

/// Computes the table of cosines and sines. An angle is a product of fp32 numbers, as in Hugging
/// Face's models when they were trained.
template <class S>
void rope_table(const OpCall& call) {
  const auto& angles = call.attrs<RopeTableAttrs>().angles;
  const auto half = static_cast<int64_t>(angles.size());
  const int32_t* const positions = call.in<int32_t>(0);
  float* const table = call.out<float>(0);
  parallel_ranges(call.in_dims(0)[0], 16, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* const cosine = table + n * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        const auto& [frequency, magnitude] = angles[static_cast<size_t>(i)];
        const double angle = static_cast<float>(positions[n]) * static_cast<float>(frequency);
        cosine[i] = static_cast<float>(magnitude * std::cos(angle));
        cosine[half + i] = static_cast<float>(magnitude * std::sin(angle));
      }
    }
  });
}

FTRUN_FOR_STORAGE_TYPES(rope_table)
FTRUN_FOR_STORAGE_TYPES(rope)
FTRUN_FOR_STORAGE_TYPES(rope_dgrad)

}  // namespace ftrun::cpu
