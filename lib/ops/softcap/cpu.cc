#include <algorithm>
#include <array>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/softcap/softcap.h"

namespace ftrun::cpu {

namespace {

/// Elements that a thread widens at a time.
constexpr int64_t kRoom = 1024;
constexpr int64_t kGrain = 16 * kRoom;

}  // namespace

template <class S>
void softcap(const OpCall& call) {
  using T = Compute<S>;
  const S* const x = call.in<S>(0);
  S* const y = call.out<S>(0);
  const double bound = call.attrs<SoftcapAttrs>().bound;
  const auto& vec = vector_kernels<T>();
  parallel_ranges(element_count(call.in_dims(0)), kGrain, [&](int64_t begin, int64_t end) {
    std::array<T, kRoom> room;
    for (int64_t at = begin; at < end; at += kRoom) {
      const int64_t count = std::min(kRoom, end - at);
      take_elements(x + at, room.data(), count);
      vec.cap_logits(room.data(), bound, count);
      put_elements(room.data(), y + at, count);
    }
  });
}

template <class S>
void softcap_dgrad(const OpCall& call) {
  using T = Compute<S>;
  const S* const dy = call.in<S>(0);
  const S* const y = call.in<S>(1);
  S* const dx = call.out<S>(0);
  const auto bound = static_cast<T>(call.attrs<SoftcapAttrs>().bound);
  parallel_ranges(element_count(call.in_dims(0)), kGrain, [&](int64_t begin, int64_t end) {
    std::array<T, kRoom> gradient, capped;
    for (int64_t at = begin; at < end; at += kRoom) {
      const int64_t count = std::min(kRoom, end - at);
      take_elements(dy + at, gradient.data(), count);
      take_elements(y + at, capped.data(), count);
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        const T tangent = capped[i] / bound;
        gradient[i] *= T{1} - tangent * tangent;
      }
      put_elements(gradient.data(), dx + at, count);
    }
  });
}

FTRUN_FOR_STORAGE_TYPES(softcap)
FTRUN_FOR_STORAGE_TYPES(softcap_dgrad)

}  // namespace ftrun::cpu
