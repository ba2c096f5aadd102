#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/multiply.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"
#include "ops/lora/lora.h"
#include "ops/lora/workspace.h"

namespace ftrun::cpu {

namespace {

/// Computes to[N,J] = from, multiplied by the scale of each part; `to` may be `from`.
template <class S>
void scale_ranks(const S* from, S* to, int64_t tokens, int64_t width,
                 const std::vector<LoraPart>& parts) {
  using T = Compute<S>;
  constexpr int64_t kRoom = 256;
  parallel_ranges(tokens, 64, [&](int64_t begin, int64_t end) {
    std::array<T, kRoom> room;
    for (int64_t n = begin; n < end; ++n)
      for (const LoraPart& part : parts)
        for (int64_t first = 0; first < part.rank; first += kRoom) {
          const int64_t count = std::min(kRoom, part.rank - first),
                        at = n * width + part.first_h_column + first;
          widen_elements(from + at, room.data(), count);
          for (int64_t i = 0; i < count; ++i)
            room[static_cast<size_t>(i)] *= static_cast<T>(part.scale);
          narrow_elements(room.data(), to + at, count);
        }
  });
}

}  // namespace

template <class S>
void lora_up(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1],
                width = call.in_dims(1)[1];
  const std::vector<LoraPart> parts = lora_parts(call.graph(), call.op());
  S* const scaled = call.workspace<S>(lora_workspace(call.graph(), call.op()).scaled);
  copy_rows(call.in<S>(0), call.out<S>(0), tokens, outputs);
  scale_ranks(call.in<S>(1), scaled, tokens, width, parts);
  for (size_t p = 0; p < parts.size(); ++p)
    multiply<S, S>(
        call, {.shape = {Transpose::kNo, Transpose::kYes, tokens, parts[p].columns, parts[p].rank},
               .a = scaled + parts[p].first_h_column,
               .b = call.in<S>(2 + p),
               .c = call.out<S>(0) + parts[p].first_column,
               .a_stride = width,
               .c_stride = outputs,
               .accumulate = true});
}

template <class S>
void lora_up_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1],
                width = call.out_dims(0)[1];
  const std::vector<LoraPart> parts = lora_parts(call.graph(), call.op());
  S* const dh = call.out<S>(0);
  for (size_t p = 0; p < parts.size(); ++p)
    multiply<S, S>(
        call, {.shape = {Transpose::kNo, Transpose::kNo, tokens, parts[p].rank, parts[p].columns},
               .a = call.in<S>(0) + parts[p].first_column,
               .b = call.in<S>(1 + p),
               .c = dh + parts[p].first_h_column,
               .a_stride = outputs,
               .c_stride = width});
  scale_ranks(dh, dh, tokens, width, parts);
}

template <class S>
void lora_up_wgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1],
                width = call.in_dims(1)[1];
  const std::vector<LoraPart> parts = lora_parts(call.graph(), call.op());
  S* const scaled = call.workspace<S>(lora_workspace(call.graph(), call.op()).scaled);
  scale_ranks(call.in<S>(1), scaled, tokens, width, parts);
  for (size_t p = 0; p < parts.size(); ++p)
    call.with_gradient<S>(p, [&]<class G>(G* db) {
      multiply<S, G>(call, {.shape = {Transpose::kYes, Transpose::kNo, parts[p].columns,
                                      parts[p].rank, tokens},
                            .a = call.in<S>(0) + parts[p].first_column,
                            .b = scaled + parts[p].first_h_column,
                            .c = db,
                            .a_stride = outputs,
                            .b_stride = width,
                            .accumulate = call.accumulates()});
    });
}

FTRUN_FOR_STORAGE_TYPES(lora_up)
FTRUN_FOR_STORAGE_TYPES(lora_up_dgrad)
FTRUN_FOR_STORAGE_TYPES(lora_up_wgrad)

}  // namespace ftrun::cpu
