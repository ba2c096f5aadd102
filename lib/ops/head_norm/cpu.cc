#include "ops/head_norm/head_norm.h"

#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/qkv_row.h"
#include "kernels/cpu/vector_kernels.h"

namespace ftrun::cpu {

namespace {

/// Returns the weights of head h.
template <class S>
const S* weight_of(const QkvRow& row, const S* wq, const S* wk, int64_t h) {
  return h < row.query_heads ? wq + h * row.head_size : wk + (h - row.query_heads) * row.head_size;
}

}  // namespace

template <class S>
void head_norm(const OpCall& call) {
  const auto& attrs = call.attrs<HeadAttrs>();
  const QkvRow row(attrs);
  const S* const qkv = call.in<S>(0);
  const S* const wq = call.in<S>(1);
  const S* const wk = call.in<S>(2);
  S* const out = call.out<S>(0);
  Stat<S>* const mean = call.out<Stat<S>>(1);
  Stat<S>* const rstd = call.out<Stat<S>>(2);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kQkvRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const x = qkv + n * row.row_size;
      S* const y = out + n * row.row_size;
      for (int64_t h = 0; h < row.normed_heads; ++h) {
        const int64_t at = h * row.head_size, statistic = n * row.normed_heads + h;
        vec.layer_norm(x + at, weight_of(row, wq, wk, h), nullptr, y + at, mean + statistic,
                       rstd + statistic, 1, row.head_size, attrs.epsilon);
      }
      row.copy_values(x, y);
    }
  });
}

template <class S>
void head_norm_dgrad(const OpCall& call) {
  const QkvRow row(call.attrs<HeadAttrs>());
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const mean = call.in<Stat<S>>(2);
  const Stat<S>* const rstd = call.in<Stat<S>>(3);
  const S* const wq = call.in<S>(4);
  const S* const wk = call.in<S>(5);
  S* const dqkv = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kQkvRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t token = n * row.row_size;
      for (int64_t h = 0; h < row.normed_heads; ++h) {
        const int64_t at = token + h * row.head_size, statistic = n * row.normed_heads + h;
        vec.layer_norm_dgrad(dy + at, qkv + at, mean + statistic, rstd + statistic,
                             weight_of(row, wq, wk, h), nullptr, dqkv + at, 1, row.head_size);
      }
      row.copy_values(dy + token, dqkv + token);
    }
  });
}

template <class S>
void head_norm_wgrad(const OpCall& call) {
  const QkvRow row(call.attrs<HeadAttrs>());
  const int64_t tokens = call.in_dims(0)[0];
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const mean = call.in<Stat<S>>(2);
  const Stat<S>* const rstd = call.in<Stat<S>>(3);
  auto* const partials = call.workspace<Compute<S>>();
  const auto& vec = vector_kernels<S>();
  // The weights in a partial sum have the same order as the heads in a row.
  sum_row_blocks(tokens, row.value_offset, partials,
                 [&](int64_t first, int64_t rows, Compute<S>* sums) {
                   for (int64_t n = first; n < first + rows; ++n)
                     for (int64_t h = 0; h < row.normed_heads; ++h) {
                       const int64_t at = n * row.row_size + h * row.head_size;
                       const int64_t statistic = n * row.normed_heads + h;
                       vec.layer_norm_wgrad(dy + at, qkv + at, mean + statistic, rstd + statistic,
                                            sums + h * row.head_size, nullptr, 1, row.head_size);
                     }
                 });
  for (const size_t i : {size_t{0}, size_t{1}})
    call.with_gradient<S>(i, [&](auto* dw) {
      const int64_t first = i == 0 ? 0 : row.key_offset;
      const int64_t width = i == 0 ? row.key_offset : row.value_offset - row.key_offset;
      add_partials(partials + first, tokens, width, row.value_offset, dw, call.accumulates());
    });
}

FTRUN_FOR_STORAGE_TYPES(head_norm)
FTRUN_FOR_STORAGE_TYPES(head_norm_dgrad)
FTRUN_FOR_STORAGE_TYPES(head_norm_wgrad)

}  // namespace ftrun::cpu
