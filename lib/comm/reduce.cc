#include "comm/reduce.h"

#include <algorithm>
#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/error.h"

namespace ftrun {
namespace {

constexpr int64_t kBlock = 1024;  // elements added up at a time: stays in the first-level cache

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
struct Min {
  template <typename T>
  static T combine(T a, T b) {
    return b < a ? b : a;
  }
};

/// The type in which elements are combined.
template <typename T>
struct Wide {
  using type = T;
};
template <>
struct Wide<c10::BFloat16> {
  using type = float;
};
template <>
struct Wide<c10::Half> {
  using type = float;
};

template <typename T, typename Op>
void reduce_block(const void* const* inputs, int ranks, T* out, int64_t start, int64_t count) {
  using W = typename Wide<T>::type;
  W sum[kBlock];
  const T* first = static_cast<const T*>(inputs[0]) + start;
  for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<W>(first[i]);
  for (int rank = 1; rank < ranks; ++rank) {
    const T* next = static_cast<const T*>(inputs[rank]) + start;
    for (int64_t i = 0; i < count; ++i) sum[i] = Op::combine(sum[i], static_cast<W>(next[i]));
  }
  for (int64_t i = 0; i < count; ++i) out[start + i] = static_cast<T>(sum[i]);
}

/// Two ranks need no block between: each element is read before it is written.
template <typename T, typename Op>
void reduce_pair(const T* a, const T* b, T* out, int64_t count) {
  using W = typename Wide<T>::type;
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<T>(Op::combine(static_cast<W>(a[i]), static_cast<W>(b[i])));
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

template <typename T>
void reduce_by_op(ReduceOp op, const void* const* inputs, int ranks, void* out, int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_typed<T, Sum>(inputs, ranks, out, count);
    case ReduceOp::kMax:
      return reduce_typed<T, Max>(inputs, ranks, out, count);
    case ReduceOp::kMin:
      return reduce_typed<T, Min>(inputs, ranks, out, count);
  }
}

}  // namespace

void reduce_in_order(DType dtype, ReduceOp op, const void* const* inputs, int ranks, void* out,
                     int64_t count) {
  switch (dtype) {
    case DType::kF64:
      return reduce_by_op<double>(op, inputs, ranks, out, count);
    case DType::kF32:
      return reduce_by_op<float>(op, inputs, ranks, out, count);
    case DType::kBF16:
      return reduce_by_op<c10::BFloat16>(op, inputs, ranks, out, count);
    case DType::kF16:
      return reduce_by_op<c10::Half>(op, inputs, ranks, out, count);
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
