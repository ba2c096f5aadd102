#include "ops/scale/scale.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"

namespace ftrun::cpu {

template <class S>
void scale(const OpCall& call) {
  using T = Compute<S>;
  constexpr int64_t kRoom = 1024;
  const S* const x = call.in<S>(0);
  S* const y = call.out<S>(0);
  const T factor = static_cast<T>(call.attrs<ScaleAttrs>().factor);
  parallel_ranges(element_count(call.in_dims(0)), 16384, [&](int64_t begin, int64_t end) {
    std::array<T, kRoom> room;
    for (int64_t at = begin; at < end; at += kRoom) {
      const int64_t count = std::min(kRoom, end - at);
      widen_elements(x + at, room.data(), count);
      for (int64_t i = 0; i < count; ++i) room[static_cast<size_t>(i)] *= factor;
      narrow_elements(room.data(), y + at, count);
    }
  });
}

FTRUN_FOR_STORAGE_TYPES(scale)

}  // namespace ftrun::cpu
