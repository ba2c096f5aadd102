#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
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

}  // namespace

template <class S>
void linear(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], inputs = call.in_dims(0)[1],
                outputs = call.in_dims(1)[0];
  S* const y = call.out<S>(0);
  const bool bias = call.has_in(2);
  if (bias) fill_rows(y, call.in<S>(2), tokens, outputs);
  gemm({Transpose::kNo, Transpose::kYes, tokens, outputs, inputs}, call.in<S>(0), inputs,
       call.in<S>(1), inputs, bias ? 1.0 : 0.0, y, outputs);
}

template <class S>
void linear_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1],
                inputs = call.in_dims(1)[1];
  gemm({Transpose::kNo, Transpose::kNo, tokens, inputs, outputs}, call.in<S>(0), outputs,
       call.in<S>(1), inputs, 0.0, call.out<S>(0), inputs);
}

template <class S>
void linear_wgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1],
                inputs = call.in_dims(1)[1];
  gemm({Transpose::kYes, Transpose::kNo, outputs, inputs, tokens}, call.in<S>(0), outputs,
       call.in<S>(1), inputs, call.accumulate() ? 1.0 : 0.0, call.out<S>(0), inputs);
}

template <class S>
void bias_wgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const dy = call.in<S>(0);
  const auto& vec = vector_kernels<S>();
  S* const partials = call.workspace<S>();
  sum_row_blocks(tokens, width, partials, [&](int64_t first, int64_t rows, S* sums) {
    vec.column_sums(dy + first * width, sums, rows, width);
  });
  add_partials(partials, tokens, width, width, call.out<S>(0), call.accumulate());
}

template void linear<float>(const OpCall&);
template void linear<double>(const OpCall&);
template void linear_dgrad<float>(const OpCall&);
template void linear_dgrad<double>(const OpCall&);
template void linear_wgrad<float>(const OpCall&);
template void linear_wgrad<double>(const OpCall&);
template void bias_wgrad<float>(const OpCall&);
template void bias_wgrad<double>(const OpCall&);

}  // namespace ftrun::cpu
