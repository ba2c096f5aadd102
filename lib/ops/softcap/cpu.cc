#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/softcap/softcap.h"

namespace ftrun::cpu {

template <class S>
void softcap(const OpCall& call) {
  const S* const x = call.in<S>(0);
  S* const y = call.out<S>(0);
  const double bound = call.attrs<SoftcapAttrs>().bound;
  const auto& vec = vector_kernels<S>();
  parallel_ranges(element_count(call.in_dims(0)), 16384, [&](int64_t begin, int64_t end) {
    vec.softcap(x + begin, y + begin, bound, end - begin);
  });
}

template <class S>
void softcap_dgrad(const OpCall& call) {
  const S* const dy = call.in<S>(0);
  const S* const y = call.in<S>(1);
  S* const dx = call.out<S>(0);
  const double bound = call.attrs<SoftcapAttrs>().bound;
  const auto& vec = vector_kernels<S>();
  parallel_ranges(element_count(call.in_dims(0)), 16384, [&](int64_t begin, int64_t end) {
    vec.softcap_dgrad(dy + begin, y + begin, dx + begin, bound, end - begin);
  });
}

FTRUN_FOR_STORAGE_TYPES(softcap)
FTRUN_FOR_STORAGE_TYPES(softcap_dgrad)

}  // namespace ftrun::cpu
