#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/qk_norm/qk_norm.h"

namespace ftrun::cpu {

namespace {

constexpr int64_t kHeadGrain = 16;

/// Heads is the parts of a qkv row: H query heads, K key heads, K value heads of d elements.
struct Heads {
  explicit Heads(const HeadAttrs& attrs)
      : q(attrs.query_heads),
        k(attrs.kv_heads),
        size(attrs.head_size),
        keys(q * size),
        values(keys + k * size),
        width(values + k * size) {}
  int64_t q, k, size;
  /// Offsets of the first key and value in a row; elements of a row.
  int64_t keys, values, width;
};

}  // namespace

template <class S>
void qk_norm(const OpCall& call) {
  const auto& attrs = call.attrs<HeadAttrs>();
  const Heads h(attrs);
  const S* const qkv = call.in<S>(0);
  const S* const wq = call.in<S>(1);
  const S* const wk = call.in<S>(2);
  S* const out = call.out<S>(0);
  Stat<S>* const rstd = call.out<Stat<S>>(1);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kHeadGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const x = qkv + n * h.width;
      S* const y = out + n * h.width;
      Stat<S>* const r = rstd + n * (h.q + h.k);
      vec.rms_norm(x, nullptr, wq, nullptr, y, r, h.q, h.size, attrs.epsilon, attrs.weight_offset);
      vec.rms_norm(x + h.keys, nullptr, wk, nullptr, y + h.keys, r + h.q, h.k, h.size,
                   attrs.epsilon, attrs.weight_offset);
      if (x != y) std::copy(x + h.values, x + h.width, y + h.values);
    }
  });
}

template <class S>
void qk_norm_dgrad(const OpCall& call) {
  const auto& attrs = call.attrs<HeadAttrs>();
  const Heads h(attrs);
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const rstd = call.in<Stat<S>>(2);
  const S* const wq = call.in<S>(3);
  const S* const wk = call.in<S>(4);
  S* const dqkv = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kHeadGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t q = n * h.width, k = q + h.keys;
      const Stat<S>* const r = rstd + n * (h.q + h.k);
      vec.rms_norm_dgrad(dy + q, qkv + q, r, wq, nullptr, dqkv + q, h.q, h.size,
                         attrs.weight_offset);
      vec.rms_norm_dgrad(dy + k, qkv + k, r + h.q, wk, nullptr, dqkv + k, h.k, h.size,
                         attrs.weight_offset);
      if (dy != dqkv) std::copy(dy + q + h.values, dy + q + h.width, dqkv + q + h.values);
    }
  });
}

template <class S>
void qk_norm_wgrad(const OpCall& call) {
  const Heads h(call.attrs<HeadAttrs>());
  const int64_t tokens = call.in_dims(0)[0];
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const rstd = call.in<Stat<S>>(2);
  auto* const partials = call.workspace<Compute<S>>();
  const auto& vec = vector_kernels<S>();
  sum_row_blocks(tokens, 2 * h.size, partials, [&](int64_t first, int64_t rows, Compute<S>* sums) {
    for (int64_t n = first; n < first + rows; ++n) {
      const int64_t q = n * h.width, k = q + h.keys;
      const Stat<S>* const r = rstd + n * (h.q + h.k);
      vec.rms_norm_wgrad(dy + q, qkv + q, r, sums, h.q, h.size);
      vec.rms_norm_wgrad(dy + k, qkv + k, r + h.q, sums + h.size, h.k, h.size);
    }
  });
  for (const size_t i : {size_t{0}, size_t{1}})
    call.with_gradient<S>(i, [&](auto* dw) {
      const Compute<S>* const first = partials + static_cast<int64_t>(i) * h.size;
      add_partials(first, tokens, h.size, 2 * h.size, dw, call.accumulate());
    });
}

FTRUN_FOR_STORAGE_TYPES(qk_norm)
FTRUN_FOR_STORAGE_TYPES(qk_norm_dgrad)
FTRUN_FOR_STORAGE_TYPES(qk_norm_wgrad)

}  // namespace ftrun::cpu
