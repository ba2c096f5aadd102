#include "ops/whole_qk_norm/whole_qk_norm.h"

#include <array>
#include <cmath>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/qkv_row.h"
#include "kernels/cpu/vector_kernels.h"

namespace ftrun::cpu {

namespace {

/// NormedPart is the part of a qkv row that one norm covers: all its queries, or all its keys.
struct NormedPart {
  int64_t first, count;
  /// The number of elements of the part on all ranks together.
  double elements;
};

/// NormedRow is a qkv row with the parts of it that norms cover.
struct NormedRow : QkvRow {
  explicit NormedRow(const WholeQkNormAttrs& attrs)
      : QkvRow(attrs.heads),
        parts{part(0, key_offset, attrs.ranks),
              part(key_offset, value_offset - key_offset, attrs.ranks)} {}
  static NormedPart part(int64_t first, int64_t count, int64_t ranks) {
    return {first, count, static_cast<double>(count * ranks)};
  }
  std::array<NormedPart, 2> parts;
};

}  // namespace

template <class S>
void qk_dots(const OpCall& call) {
  const NormedRow row(call.attrs<WholeQkNormAttrs>());
  const S* const a = call.in<S>(0);
  const S* const b = call.in<S>(1);
  const std::array<const S*, 2> weights{call.has_in(2) ? call.in<S>(2) : nullptr,
                                        call.has_in(3) ? call.in<S>(3) : nullptr};
  Stat<S>* const dots = call.out<Stat<S>>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kQkvRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      for (size_t i = 0; i < 2; ++i) {
        const NormedPart& part = row.parts[i];
        const int64_t at = n * row.row_size + part.first;
        dots[2 * n + static_cast<int64_t>(i)] =
            static_cast<Stat<S>>(vec.weighted_dot(a + at, b + at, weights[i], part.count));
      }
  });
}

template <class S>
void whole_qk_norm(const OpCall& call) {
  const auto& attrs = call.attrs<WholeQkNormAttrs>();
  const NormedRow row(attrs);
  const S* const qkv = call.in<S>(0);
  const Stat<S>* const squares = call.in<Stat<S>>(1);
  const std::array<const S*, 2> weights{call.in<S>(2), call.in<S>(3)};
  S* const out = call.out<S>(0);
  Stat<S>* const rstd = call.out<Stat<S>>(1);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kQkvRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const x = qkv + n * row.row_size;
      S* const y = out + n * row.row_size;
      for (size_t i = 0; i < 2; ++i) {
        const auto& [first, count, elements] = row.parts[i];
        const int64_t at = 2 * n + static_cast<int64_t>(i);
        const double mean = static_cast<double>(squares[at]) / elements;
        rstd[at] = static_cast<Stat<S>>(1.0 / std::sqrt(mean + attrs.heads.epsilon));
        vec.whole_norm(x + first, weights[i], y + first, static_cast<double>(rstd[at]), count);
      }
      row.copy_values(x, y);
    }
  });
}

template <class S>
void whole_qk_norm_dgrad(const OpCall& call) {
  const NormedRow row(call.attrs<WholeQkNormAttrs>());
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const rstd = call.in<Stat<S>>(2);
  const Stat<S>* const dots = call.in<Stat<S>>(3);
  const std::array<const S*, 2> weights{call.in<S>(4), call.in<S>(5)};
  S* const dqkv = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(call.in_dims(0)[0], kQkvRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t token = n * row.row_size;
      for (size_t i = 0; i < 2; ++i) {
        const auto& [first, count, elements] = row.parts[i];
        const int64_t at = 2 * n + static_cast<int64_t>(i), x = token + first;
        const auto r = static_cast<double>(rstd[at]);
        const double along = static_cast<double>(dots[at]) * r * r * r / elements;
        vec.whole_norm_dgrad(dy + x, qkv + x, weights[i], dqkv + x, r, along, count);
      }
      row.copy_values(dy + token, dqkv + token);
    }
  });
}

template <class S>
void whole_qk_norm_wgrad(const OpCall& call) {
  const NormedRow row(call.attrs<WholeQkNormAttrs>());
  const int64_t tokens = call.in_dims(0)[0];
  const S* const dy = call.in<S>(0);
  const S* const qkv = call.in<S>(1);
  const Stat<S>* const rstd = call.in<Stat<S>>(2);
  auto* const partials = call.workspace<Compute<S>>();
  const auto& vec = vector_kernels<S>();
  // The weights in a partial sum have the same order as the parts in a row.
  sum_row_blocks(tokens, row.value_offset, partials,
                 [&](int64_t begin, int64_t rows, Compute<S>* sums) {
                   for (int64_t n = begin; n < begin + rows; ++n)
                     for (size_t i = 0; i < 2; ++i) {
                       const NormedPart& part = row.parts[i];
                       const int64_t x = n * row.row_size + part.first;
                       vec.rms_norm_wgrad(dy + x, qkv + x, rstd + 2 * n + static_cast<int64_t>(i),
                                          sums + part.first, 1, part.count);
                     }
                 });
  for (size_t i = 0; i < 2; ++i)
    call.with_gradient<S>(i, [&](auto* dw) {
      const NormedPart& part = row.parts[i];
      add_partials(partials + part.first, tokens, part.count, row.value_offset, dw,
                   call.accumulates());
    });
}

FTRUN_FOR_STORAGE_TYPES(qk_dots)
FTRUN_FOR_STORAGE_TYPES(whole_qk_norm)
FTRUN_FOR_STORAGE_TYPES(whole_qk_norm_dgrad)
FTRUN_FOR_STORAGE_TYPES(whole_qk_norm_wgrad)

}  // namespace ftrun::cpu
