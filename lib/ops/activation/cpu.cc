#include "ops/activation/activation.h"

#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"

namespace ftrun::cpu {

template <class S>
void activation(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const x = call.in<S>(0);
  S* const y = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  const Activation kind = activation_of(call.op());
  parallel_ranges(tokens, 4, [&](int64_t begin, int64_t end) {
    vec.activation(kind, x + begin * width, y + begin * width, (end - begin) * width);
  });
}

template <class S>
void activation_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const dy = call.in<S>(0);
  const S* const x = call.in<S>(1);
  S* const dx = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  const Activation kind = activation_of(call.op());
  parallel_ranges(tokens, 4, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width;
    vec.activation_dgrad(kind, dy + at, x + at, dx + at, (end - begin) * width);
  });
}

template <class S>
void gated_activation(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1] / 2;
  const S* const gu = call.in<S>(0);
  S* const s = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  const Activation kind = activation_of(call.op());
  parallel_ranges(tokens, 4, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const gate = gu + n * 2 * width;
      vec.gated_activation(kind, gate, gate + width, s + n * width, width);
    }
  });
}

template <class S>
void gated_activation_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const ds = call.in<S>(0);
  const S* const gu = call.in<S>(1);
  S* const dgu = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  const Activation kind = activation_of(call.op());
  parallel_ranges(tokens, 4, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const gate = gu + n * 2 * width;
      S* const dgate = dgu + n * 2 * width;
      vec.gated_activation_dgrad(kind, ds + n * width, gate, gate + width, dgate, dgate + width,
                                 width);
    }
  });
}

FTRUN_FOR_STORAGE_TYPES(activation)
FTRUN_FOR_STORAGE_TYPES(activation_dgrad)
FTRUN_FOR_STORAGE_TYPES(gated_activation)
FTRUN_FOR_STORAGE_TYPES(gated_activation_dgrad)

}  // namespace ftrun::cpu
