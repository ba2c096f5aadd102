#include "ops/head_norm/head_norm.h"

#include <algorithm>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/vector_kernels.h"

namespace ftrun::cpu {

namespace {

constexpr int64_t kNormedTokenGrain = 16;

/// NormedHeads is a qkv row whose first H + K heads, the queries' and the keys', are normalised.
struct NormedHeads {
  explicit NormedHeads(const HeadAttrs& attrs)
      : count(attrs.query_heads + attrs.kv_heads),
        size(attrs.head_size),
        queries(attrs.query_heads * size),
        values(count * size),
        width(values + attrs.kv_heads * size) {}
  int64_t count, size;
  /// Elements of all query heads, the first value's place in a row, and the elements of a row.
  int64_t queries, values, width;

  /// Returns the weights of head h.
  template <class S>
  const S* weight(const S* wq, const S* wk, int64_t h) const {
    const int64_t at = h * size;
    return at < queries ? wq + at : wk + (at - queries);
  }
};

}  // namespace

template <class S>
void head_norm(const OpCall& call) {
  const auto& attrs = call.attrs<HeadAttrs>();
  const NormedHeads heads(attrs);
  const S* const qkv = call.in<S>(0);
  const S* const wq = call.in<S>(1);
  const S* const wk = call.in<S>(2);
  S* const out = call.out<S>(0);
  Stat<S>* const mean = call.out<Stat<S>>(1);
  Stat<S>* const rstd = call.out<Stat<S>>(2);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kNormedTokenGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const x = qkv + n * heads.width;
      S* const y = out + n * heads.width;
      for (int64_t h = 0; h < heads.count; ++h) {
        const int64_t at = h * heads.size, statistic = n * heads.count + h;
        vec.layer_norm(x + at, heads.weight(wq, wk, h), nullptr, y + at, mean + statistic,
                       rstd + statistic, 1, heads.size, attrs.epsilon);
      }
      if (x != y) std::copy(x + heads.values, x + heads.width, y + heads.values);
    }
  });
}

template <class S>
void head_norm_dgrad(const OpCall& call) {
  const NormedHeads heads(call.attrs<HeadAttrs>());
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const mean = call.in<Stat<S>>(2);
  const Stat<S>* const rstd = call.in<Stat<S>>(3);
  const S* const wq = call.in<S>(4);
  const S* const wk = call.in<S>(5);
  S* const dqkv = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kNormedTokenGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t token = n * heads.width;
      for (int64_t h = 0; h < heads.count; ++h) {
        const int64_t at = token + h * heads.size, statistic = n * heads.count + h;
        vec.layer_norm_dgrad(dy + at, qkv + at, mean + statistic, rstd + statistic,
                             heads.weight(wq, wk, h), nullptr, dqkv + at, 1, heads.size);
      }
      if (dy != dqkv)
        std::copy(dy + token + heads.values, dy + token + heads.width,
                  dqkv + token + heads.values);
    }
  });
}

template <class S>
void head_norm_wgrad(const OpCall& call) {
  const NormedHeads heads(call.attrs<HeadAttrs>());
  const int64_t tokens = call.in_dims(0)[0];
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const mean = call.in<Stat<S>>(2);
  const Stat<S>* const rstd = call.in<Stat<S>>(3);
  auto* const partials = call.workspace<Compute<S>>();
  const auto& vec = vector_kernels<S>();
  // Heads stand in a row as their weights stand in a partial sum.
  sum_row_blocks(tokens, heads.values, partials,
                 [&](int64_t first, int64_t rows, Compute<S>* sums) {
                   for (int64_t n = first; n < first + rows; ++n)
                     for (int64_t h = 0; h < heads.count; ++h) {
                       const int64_t at = n * heads.width + h * heads.size;
                       const int64_t statistic = n * heads.count + h;
                       vec.layer_norm_wgrad(dy + at, qkv + at, mean + statistic, rstd + statistic,
                                            sums + h * heads.size, nullptr, 1, heads.size);
                     }
                 });
  for (const size_t i : {size_t{0}, size_t{1}})
    call.with_gradient<S>(i, [&](auto* dw) {
      const int64_t first = i == 0 ? 0 : heads.queries;
      const int64_t width = i == 0 ? heads.queries : heads.values - heads.queries;
      add_partials(partials + first, tokens, width, heads.values, dw, call.accumulate());
    });
}

FTRUN_FOR_STORAGE_TYPES(head_norm)
FTRUN_FOR_STORAGE_TYPES(head_norm_dgrad)
FTRUN_FOR_STORAGE_TYPES(head_norm_wgrad)

}  // namespace ftrun::cpu
