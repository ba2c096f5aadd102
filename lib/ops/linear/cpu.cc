#include "kernels/cpu/multiply.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/partial_gradient.h"
#include "kernels/cpu/quantized_matmul.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/linear/linear.h"

namespace ftrun::cpu {

namespace {

/// Computes the multiplication `p` with operand 1 as b: a weight with rows of `columns` elements,
/// quantized or not.
template <class S>
void multiply_by_weight(const OpCall& call, MatmulOperands<S, S> p, int64_t columns) {
  if (const QuantizedFormat& format = call.quantized(1))
    return multiply_quantized<S>(call, p, {format, call.records(1), columns});
  p.b = call.in<S>(1);
  multiply(call, p);
}

}  // namespace

template <class S>
void linear(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], inputs = call.in_dims(0)[1],
                outputs = call.in_dims(1)[0];
  multiply_by_weight<S>(call,
                        {.shape = {Transpose::kNo, Transpose::kYes, tokens, outputs, inputs},
                         .a = call.in<S>(0),
                         .c = call.out<S>(0),
                         .bias = adds_bias(call.op()) ? call.in<S>(2) : nullptr},
                        inputs);
}

template <class S>
void linear_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1],
                inputs = call.in_dims(1)[1];
  const bool adds = call.has_in(2);
  if (adds) copy_rows(call.in<S>(2), call.out<S>(0), tokens, inputs);
  multiply_by_weight<S>(call,
                        {.shape = {Transpose::kNo, Transpose::kNo, tokens, inputs, outputs},
                         .a = call.in<S>(0),
                         .c = call.out<S>(0),
                         .accumulate = adds},
                        inputs);
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
                          .accumulate = call.accumulates()});
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
      0, [&](auto* db) { add_partials(partials, tokens, width, width, db, call.accumulates()); });
}

FTRUN_FOR_STORAGE_TYPES(linear)
FTRUN_FOR_STORAGE_TYPES(linear_dgrad)
FTRUN_FOR_STORAGE_TYPES(linear_wgrad)
FTRUN_FOR_STORAGE_TYPES(bias_wgrad)

}  // namespace ftrun::cpu
