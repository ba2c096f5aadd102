#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/qkv_row.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/qk_norm/qk_norm.h"

namespace ftrun::cpu {

template <class S>
void qk_norm(const OpCall& call) {
  const auto& attrs = call.attrs<HeadAttrs>();
  const QkvRow row(attrs);
  const S* const qkv = call.in<S>(0);
  const S* const wq = call.in<S>(1);
  const S* const wk = call.in<S>(2);
  S* const out = call.out<S>(0);
  Stat<S>* const rstd = call.out<Stat<S>>(1);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kQkvRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const x = qkv + n * row.row_size;
      S* const y = out + n * row.row_size;
      Stat<S>* const r = rstd + n * row.normed_heads;
      vec.rms_norm(x, nullptr, wq, nullptr, y, r, row.query_heads, row.head_size, attrs.epsilon,
                   attrs.weight_offset);
      vec.rms_norm(x + row.key_offset, nullptr, wk, nullptr, y + row.key_offset,
                   r + row.query_heads, row.kv_heads, row.head_size, attrs.epsilon,
                   attrs.weight_offset);
      row.copy_values(x, y);
    }
  });
}

template <class S>
void qk_norm_dgrad(const OpCall& call) {
  const auto& attrs = call.attrs<HeadAttrs>();
  const QkvRow row(attrs);
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const rstd = call.in<Stat<S>>(2);
  const S* const wq = call.in<S>(3);
  const S* const wk = call.in<S>(4);
  S* const dqkv = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kQkvRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t q = n * row.row_size, k = q + row.key_offset;
      const Stat<S>* const r = rstd + n * row.normed_heads;
      vec.rms_norm_dgrad(dy + q, qkv + q, r, wq, nullptr, dqkv + q, row.query_heads, row.head_size,
                         attrs.weight_offset);
      vec.rms_norm_dgrad(dy + k, qkv + k, r + row.query_heads, wk, nullptr, dqkv + k, row.kv_heads,
                         row.head_size, attrs.weight_offset);
      row.copy_values(dy + q, dqkv + q);
    }
  });
}

template <class S>
void qk_norm_wgrad(const OpCall& call) {
  const QkvRow row(call.attrs<HeadAttrs>());
  const int64_t tokens = call.in_dims(0)[0];
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const rstd = call.in<Stat<S>>(2);
  auto* const partials = call.workspace<Compute<S>>();
  const auto& vec = vector_kernels<S>();
  sum_row_blocks(tokens, 2 * row.head_size, partials,
                 [&](int64_t first, int64_t rows, Compute<S>* sums) {
                   for (int64_t n = first; n < first + rows; ++n) {
                     const int64_t q = n * row.row_size, k = q + row.key_offset;
                     const Stat<S>* const r = rstd + n * row.normed_heads;
                     vec.rms_norm_wgrad(dy + q, qkv + q, r, sums, row.query_heads, row.head_size);
                     vec.rms_norm_wgrad(dy + k, qkv + k, r + row.query_heads, sums + row.head_size,
                                        row.kv_heads, row.head_size);
                   }
                 });
  for (const size_t i : {size_t{0}, size_t{1}})
    call.with_gradient<S>(i, [&](auto* dw) {
      const Compute<S>* const first = partials + static_cast<int64_t>(i) * row.head_size;
      add_partials(first, tokens, row.head_size, 2 * row.head_size, dw, call.accumulates());
    });
}

FTRUN_FOR_STORAGE_TYPES(qk_norm)
FTRUN_FOR_STORAGE_TYPES(qk_norm_dgrad)
FTRUN_FOR_STORAGE_TYPES(qk_norm_wgrad)

}  // namespace ftrun::cpu
