#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/swiglu/swiglu.h"

namespace ftrun::cpu {

template <class S>
void swiglu(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1] / 2;
  const S* const gu = call.in<S>(0);
  S* const s = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(tokens, 4, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const gate = gu + n * 2 * width;
      vec.swiglu(gate, gate + width, s + n * width, width);
    }
  });
}

template <class S>
void swiglu_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], width = call.in_dims(0)[1];
  const S* const ds = call.in<S>(0);
  const S* const gu = call.in<S>(1);
  S* const dgu = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(tokens, 4, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const S* const gate = gu + n * 2 * width;
      S* const dgate = dgu + n * 2 * width;
      vec.swiglu_dgrad(ds + n * width, gate, gate + width, dgate, dgate + width, width);
    }
  });
}

FTRUN_FOR_STORAGE_TYPES(swiglu)
FTRUN_FOR_STORAGE_TYPES(swiglu_dgrad)

}  // namespace ftrun::cpu
