#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/add/add.h"

namespace ftrun::cpu {

template <class S>
void add(const OpCall& call) {
  const int64_t count = element_count(call.in_dims(0));
  const S* const a = call.in<S>(0);
  const S* const b = call.in<S>(1);
  S* const out = call.out<S>(0);
  const auto& vec = vector_kernels<S>();
  parallel_ranges(count, 16384, [&](int64_t begin, int64_t end) {
    vec.add(a + begin, b + begin, out + begin, end - begin);
  });
}

FTRUN_FOR_STORAGE_TYPES(add)

}  // namespace ftrun::cpu
