#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/vector_kernels.h"

namespace ftrun::cpu {

namespace {

template <class S>
void fill_rows(S* y, const S* row, int64_t rows, int64_t width) {
  parallel_ranges(rows, 64, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) std::copy_n(row, width, y + n * width);
  });
}

template <class S, class R>
void multiply(const OpCall& call, const Product<S, R>& p) {
  if constexpr (kIsNarrow<S> || kIsNarrow<R>) {
    PanelProduct<S, R>(call, p).run();
  } else {
    const Gemm& shape = p.shape;
    if (p.bias != nullptr) fill_rows(p.c, p.bias, shape.m, shape.n);
    gemm(shape, p.a, shape.transpose_a == Transpose::kYes ? shape.m : shape.k, p.b,
         shape.transpose_b == Transpose::kYes ? shape.k : shape.n,
         p.accumulate || p.bias != nullptr ? 1.0 : 0.0, p.c, shape.n);
  }
}

}  // namespace

template <class S>
void linear(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], inputs = call.in_dims(0)[1],
                outputs = call.in_dims(1)[0];
  multiply<S, S>(call, {.shape = {Transpose::kNo, Transpose::kYes, tokens, outputs, inputs},
                        .a = call.in<S>(0),
                        .b = call.in<S>(1),
                        .c = call.out<S>(0),
                        .bias = call.adds_bias() ? call.in<S>(2) : nullptr});
}

template <class S>
void linear_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1],
                inputs = call.in_dims(1)[1];
  multiply<S, S>(call, {.shape = {Transpose::kNo, Transpose::kNo, tokens, inputs, outputs},
                        .a = call.in<S>(0),
                        .b = call.in<S>(1),
                        .c = call.out<S>(0)});
}

template <class S>
void linear_wgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1],
                inputs = call.in_dims(1)[1];
  call.with_gradient<S>(0, [&]<class G>(G* dw) {
    multiply<S, G>(call, {.shape = {Transpose::kYes, Transpose::kNo, outputs, inputs, tokens},
                          .a = call.in<S>(0),
                          .b = call.in<S>(1),
                          .c = dw,
                          .accumulate = call.accumulate()});
  });
}

template <class S>
void bias_wgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const dy = call.in<S>(0);
  const auto& vec = vector_kernels<S>();
  auto* const partials = call.workspace<Compute<S>>();
  sum_row_blocks(tokens, width, partials, [&](int64_t first, int64_t rows, Compute<S>* sums) {
    vec.column_sums(dy + first * width, sums, rows, width);
  });
  call.with_gradient<S>(
      0, [&](auto* db) { add_partials(partials, tokens, width, width, db, call.accumulate()); });
}

FTRUN_FOR_STORAGE_TYPES(linear)
FTRUN_FOR_STORAGE_TYPES(linear_dgrad)
FTRUN_FOR_STORAGE_TYPES(linear_wgrad)
FTRUN_FOR_STORAGE_TYPES(bias_wgrad)

}  // namespace ftrun::cpu
