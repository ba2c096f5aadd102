#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/norm/norm.h"

namespace ftrun::cpu {

namespace {

constexpr int64_t kRowGrain = 16;

template <class S>
void norm_rows(const OpCall& call, const S* x, const S* r, const S* w, S* sum, S* y,
               Stat<S>* rstd) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const auto& attrs = call.attrs<NormAttrs>();
  const auto& vec = vector_kernels<S>();
  parallel_ranges(tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width;
    vec.rms_norm(x + at, r == nullptr ? nullptr : r + at, w, sum == nullptr ? nullptr : sum + at,
                 y + at, rstd + begin, end - begin, width, attrs.epsilon, attrs.weight_offset);
  });
}

}  // namespace

template <class S>
void rms_norm(const OpCall& call) {
  norm_rows<S>(call, call.in<S>(0), nullptr, call.in<S>(1), nullptr, call.out<S>(0),
               call.out<Stat<S>>(1));
}

template <class S>
void add_rms_norm(const OpCall& call) {
  norm_rows<S>(call, call.in<S>(0), call.in<S>(1), call.in<S>(2), call.out<S>(0), call.out<S>(1),
               call.out<Stat<S>>(2));
}

template <class S>
void rms_norm_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const dy = call.in<S>(0);
  const S* const x = call.in<S>(1);
  const Stat<S>* const rstd = call.in<Stat<S>>(2);
  const S* const w = call.in<S>(3);
  const S* const e = call.has_in(4) ? call.in<S>(4) : nullptr;
  S* const dx = call.out<S>(0);
  const double offset = call.attrs<NormAttrs>().weight_offset;
  const auto& vec = vector_kernels<S>();
  parallel_ranges(tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width;
    vec.rms_norm_dgrad(dy + at, x + at, rstd + begin, w, e == nullptr ? nullptr : e + at, dx + at,
                       end - begin, width, offset);
  });
}

template <class S>
void rms_norm_wgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const dy = call.in<S>(0);
  const S* const x = call.in<S>(1);
  const Stat<S>* const rstd = call.in<Stat<S>>(2);
  auto* const partials = call.workspace<Compute<S>>();
  const auto& vec = vector_kernels<S>();
  sum_row_blocks(tokens, width, partials, [&](int64_t first, int64_t rows, Compute<S>* sums) {
    vec.rms_norm_wgrad(dy + first * width, x + first * width, rstd + first, sums, rows, width);
  });
  call.with_gradient<S>(
      0, [&](auto* dw) { add_partials(partials, tokens, width, width, dw, call.accumulates()); });
}

template <class S>
void layer_norm(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const x = call.in<S>(0);
  const S* const w = call.has_in(1) ? call.in<S>(1) : nullptr;
  const S* const b = call.has_in(2) ? call.in<S>(2) : nullptr;
  S* const y = call.out<S>(0);
  Stat<S>* const mean = call.out<Stat<S>>(1);
  Stat<S>* const rstd = call.out<Stat<S>>(2);
  const double epsilon = call.attrs<NormAttrs>().epsilon;
  const auto& vec = vector_kernels<S>();
  parallel_ranges(tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width;
    vec.layer_norm(x + at, w, b, y + at, mean + begin, rstd + begin, end - begin, width, epsilon);
  });
}

template <class S>
void layer_norm_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const dy = call.in<S>(0);
  const S* const x = call.in<S>(1);
  const Stat<S>* const mean = call.in<Stat<S>>(2);
  const Stat<S>* const rstd = call.in<Stat<S>>(3);
  const S* const w = call.has_in(4) ? call.in<S>(4) : nullptr;
  const S* const e = call.has_in(5) ? call.in<S>(5) : nullptr;
  S* const dx = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width;
    vec.layer_norm_dgrad(dy + at, x + at, mean + begin, rstd + begin, w,
                         e == nullptr ? nullptr : e + at, dx + at, end - begin, width);
  });
}

template <class S>
void layer_norm_wgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const bool has_bias = call.has_out(1);
  const int64_t sum_width = has_bias ? 2 * width : width;
  const S* const dy = call.in<S>(0);
  const S* const x = call.in<S>(1);
  const Stat<S>* const mean = call.in<Stat<S>>(2);
  const Stat<S>* const rstd = call.in<Stat<S>>(3);
  auto* const partials = call.workspace<Compute<S>>();
  const auto& vec = vector_kernels<S>();
  sum_row_blocks(tokens, sum_width, partials, [&](int64_t first, int64_t rows, Compute<S>* sums) {
    vec.layer_norm_wgrad(dy + first * width, x + first * width, mean + first, rstd + first, sums,
                         has_bias ? sums + width : nullptr, rows, width);
  });
  for (size_t i = 0; call.has_out(i); ++i)
    call.with_gradient<S>(i, [&](auto* gradient) {
      add_partials(partials + static_cast<int64_t>(i) * width, tokens, width, sum_width, gradient,
                   call.accumulates());
    });
}

FTRUN_FOR_STORAGE_TYPES(rms_norm)
FTRUN_FOR_STORAGE_TYPES(add_rms_norm)
FTRUN_FOR_STORAGE_TYPES(rms_norm_dgrad)
FTRUN_FOR_STORAGE_TYPES(rms_norm_wgrad)
FTRUN_FOR_STORAGE_TYPES(layer_norm)
FTRUN_FOR_STORAGE_TYPES(layer_norm_dgrad)
FTRUN_FOR_STORAGE_TYPES(layer_norm_wgrad)

}  // namespace ftrun::cpu
