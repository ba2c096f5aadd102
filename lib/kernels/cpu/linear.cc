#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/packed_product.h"
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

/// Nothing where they are the same.
template <class S>
void copy_rows(const S* from, S* to, int64_t rows, int64_t width) {
  if (from == to) return;
  parallel_ranges(rows, 64, [=](int64_t begin, int64_t end) {
    std::copy_n(from + begin * width, (end - begin) * width, to + begin * width);
  });
}

template <class S, class R>
void multiply(const OpCall& call, const Product<S, R>& p) {
  if constexpr (kIsNarrow<S> || kIsNarrow<R>) {
    PanelProduct<S, R>(call, p).run();
  } else {
    const Gemm& shape = p.shape;
    if (p.bias != nullptr) fill_rows(p.c, p.bias, shape.m, shape.n);
    gemm(shape, p.a, p.lda(), p.b, p.ldb(), p.accumulate || p.bias != nullptr ? 1.0 : 0.0, p.c, p.ldc());
  }
}

/// The same with input 1 as b: a weight with rows of `columns` elements, packed or not.
template <class S>
void multiply_by_weight(const OpCall& call, Product<S, S> p, int64_t columns) {
  if (const PackedFormat& format = call.packed(1)) return multiply_packed<S>(call, p, {format, call.records(1), columns});
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
                         .bias = call.adds_bias() ? call.in<S>(2) : nullptr},
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
                          .accumulate = call.accumulate()});
  });
}

namespace {

/// to[N,J] = from with the scale of each part; `to` may be `from`.
template <class S>
void scale_ranks(const S* from, S* to, int64_t tokens, int64_t width, const std::vector<LoraPart>& parts) {
  using T = Compute<S>;
  constexpr int64_t kRoom = 256;
  parallel_ranges(tokens, 64, [&](int64_t begin, int64_t end) {
    std::array<T, kRoom> room;
    for (int64_t n = begin; n < end; ++n)
      for (const LoraPart& part : parts)
        for (int64_t first = 0; first < part.rank; first += kRoom) {
          const int64_t count = std::min(kRoom, part.rank - first), at = n * width + part.first_rank + first;
          take_elements(from + at, room.data(), count);
          for (int64_t i = 0; i < count; ++i) room[static_cast<size_t>(i)] *= static_cast<T>(part.scale);
          put_elements(room.data(), to + at, count);
        }
  });
}

}  // namespace

template <class S>
void lora_up(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1], width = call.in_dims(1)[1];
  const std::vector<LoraPart> parts = call.lora_parts();
  S* const scaled = call.workspace<S>(call.lora_workspace().scaled);
  copy_rows(call.in<S>(0), call.out<S>(0), tokens, outputs);
  scale_ranks(call.in<S>(1), scaled, tokens, width, parts);
  for (size_t p = 0; p < parts.size(); ++p)
    multiply<S, S>(call, {.shape = {Transpose::kNo, Transpose::kYes, tokens, parts[p].columns, parts[p].rank},
                          .a = scaled + parts[p].first_rank,
                          .b = call.in<S>(2 + p),
                          .c = call.out<S>(0) + parts[p].first_column,
                          .a_stride = width,
                          .c_stride = outputs,
                          .accumulate = true});
}

template <class S>
void lora_up_dgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1], width = call.out_dims(0)[1];
  const std::vector<LoraPart> parts = call.lora_parts();
  S* const dh = call.out<S>(0);
  for (size_t p = 0; p < parts.size(); ++p)
    multiply<S, S>(call, {.shape = {Transpose::kNo, Transpose::kNo, tokens, parts[p].rank, parts[p].columns},
                          .a = call.in<S>(0) + parts[p].first_column,
                          .b = call.in<S>(1 + p),
                          .c = dh + parts[p].first_rank,
                          .a_stride = outputs,
                          .c_stride = width});
  scale_ranks(dh, dh, tokens, width, parts);
}

template <class S>
void lora_up_wgrad(const OpCall& call) {
  const int64_t tokens = call.in_dims(0)[0], outputs = call.in_dims(0)[1], width = call.in_dims(1)[1];
  const std::vector<LoraPart> parts = call.lora_parts();
  S* const scaled = call.workspace<S>(call.lora_workspace().scaled);
  scale_ranks(call.in<S>(1), scaled, tokens, width, parts);
  for (size_t p = 0; p < parts.size(); ++p)
    call.with_gradient<S>(p, [&]<class G>(G* db) {
      multiply<S, G>(call, {.shape = {Transpose::kYes, Transpose::kNo, parts[p].columns, parts[p].rank, tokens},
                            .a = call.in<S>(0) + parts[p].first_column,
                            .b = scaled + parts[p].first_rank,
                            .c = db,
                            .a_stride = outputs,
                            .b_stride = width,
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
FTRUN_FOR_STORAGE_TYPES(lora_up)
FTRUN_FOR_STORAGE_TYPES(lora_up_dgrad)
FTRUN_FOR_STORAGE_TYPES(lora_up_wgrad)
FTRUN_FOR_STORAGE_TYPES(bias_wgrad)

}  // namespace ftrun::cpu
