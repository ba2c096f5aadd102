#include "comm/reduce.h"

#include <algorithm>

#include "base/error.h"
#include "comm/half_float_conversions.h"

namespace ftrun {
namespace {

constexpr int64_t kBlock = 1024;  // elements added up at a time, so that they stay in the L1 cache
constexpr int64_t kNarrowBlock = 512;  // the same for 16-bit floats, which are widened there

struct Sum {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Max {
  template <typename T>
  static T combine(T a, T b) {
    return a < b ? b : a;
  }
};
template <typename T, typename Op>
void reduce_block(const void* const* inputs, int ranks, T* out, int64_t start, int64_t count) {
  T sum[kBlock];
  const T* first = static_cast<const T*>(inputs[0]) + start;
  for (int64_t i = 0; i < count; ++i) sum[i] = first[i];
  for (int rank = 1; rank < ranks; ++rank) {
    const T* next = static_cast<const T*>(inputs[rank]) + start;
    for (int64_t i = 0; i < count; ++i) sum[i] = Op::combine(sum[i], next[i]);
  }
  for (int64_t i = 0; i < count; ++i) out[start + i] = sum[i];
}

/// Combines two inputs without an intermediate block, since each element is read before it is
/// written.
template <typename T, typename Op>
void reduce_pair(const T* a, const T* b, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = Op::combine(a[i], b[i]);
}

template <typename T, typename Op>
void reduce_typed(const void* const* inputs, int ranks, void* out, int64_t count) {
  T* result = static_cast<T*>(out);
  if (ranks == 2) {
    reduce_pair<T, Op>(static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]), result,
                       count);
    return;
  }
  for (int64_t start = 0; start < count; start += kBlock)
    reduce_block<T, Op>(inputs, ranks, result, start, std::min(kBlock, count - start));
}

using Widen = void (*)(const uint16_t* from, float* to, int64_t count);
using Narrow = void (*)(const float* from, uint16_t* to, int64_t count);

/// Combines 16-bit floats as fp32, block by block. All converters share one addition, so the result
/// has the same bits with each of them.
template <typename Op>
void reduce_narrow(Widen widen, Narrow narrow, const void* const* inputs, int ranks, void* out,
                   int64_t count) {
  float sum[kNarrowBlock], wide[kNarrowBlock];
  for (int64_t start = 0; start < count; start += kNarrowBlock) {
    const int64_t part = std::min(kNarrowBlock, count - start);
    widen(static_cast<const uint16_t*>(inputs[0]) + start, sum, part);
    for (int rank = 1; rank < ranks; ++rank) {
      widen(static_cast<const uint16_t*>(inputs[rank]) + start, wide, part);
      for (int64_t i = 0; i < part; ++i) sum[i] = Op::combine(sum[i], wide[i]);
    }
    narrow(sum, static_cast<uint16_t*>(out) + start, part);
  }
}

void reduce_narrow_by_op(Widen widen, Narrow narrow, ReduceOp op, const void* const* inputs,
                         int ranks, void* out, int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_narrow<Sum>(widen, narrow, inputs, ranks, out, count);
    case ReduceOp::kMax:
      return reduce_narrow<Max>(widen, narrow, inputs, ranks, out, count);
  }
}

template <typename T>
void reduce_by_op(ReduceOp op, const void* const* inputs, int ranks, void* out, int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_typed<T, Sum>(inputs, ranks, out, count);
    case ReduceOp::kMax:
      return reduce_typed<T, Max>(inputs, ranks, out, count);
  }
}

}  // namespace

void reduce_in_order(DType dtype, ReduceOp op, const void* const* inputs, int ranks, void* out,
                     int64_t count) {
  const HalfFloatConversions& conversions = half_float_conversions();
  switch (dtype) {
    case DType::kF64:
      return reduce_by_op<double>(op, inputs, ranks, out, count);
    case DType::kF32:
      return reduce_by_op<float>(op, inputs, ranks, out, count);
    case DType::kBF16:
      return reduce_narrow_by_op(conversions.widen_bf16, conversions.narrow_bf16, op, inputs, ranks,
                                 out, count);
    case DType::kF16:
      return reduce_narrow_by_op(conversions.widen_f16, conversions.narrow_f16, op, inputs, ranks,
                                 out, count);
    case DType::kI64:
      return reduce_by_op<int64_t>(op, inputs, ranks, out, count);
    case DType::kI32:
      return reduce_by_op<int32_t>(op, inputs, ranks, out, count);
    case DType::kI8:
      return reduce_by_op<int8_t>(op, inputs, ranks, out, count);
    case DType::kU8:
      return reduce_by_op<uint8_t>(op, inputs, ranks, out, count);
    default:
      bug(cat("type ", dtype_name(dtype), " cannot be reduced"));
  }
}

}  // namespace ftrun
