#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kernels.h"

namespace ftrun {

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>)
    return DType::kF64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::kF32;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return DType::kBF16;
  else if constexpr (std::is_same_v<T, Float16>)
    return DType::kF16;
  else {
    static_assert(std::is_same_v<T, int32_t>);
    return DType::kI32;
  }
}

/// OpCall is an operation with the addresses of its operands: the argument of a kernel.
class OpCall {
 public:
  OpCall(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
         const KernelContext& context)
      : graph_(graph), op_(op), storage_(storage), context_(context) {}

  const LayerGraph& graph() const { return graph_; }
  const Op& op() const { return op_; }
  bool has_in(size_t i) const { return i < op_.in.size(); }
  bool has_out(size_t i) const { return i < op_.out.size(); }
  const Dims& in_dims(size_t i) const { return graph_.at(op_.in.at(i)).dims; }
  const Dims& out_dims(size_t i) const { return graph_.at(op_.out.at(i)).dims; }

  /// Returns the address of an operand. Throws Error(kBug) when the operand has another type or no
  /// storage.
  template <class T>
  const T* in(size_t i) const {
    return static_cast<const T*>(address(op_.in.at(i), dtype_of<T>()));
  }
  template <class T>
  T* out(size_t i) const {
    return static_cast<T*>(address(op_.out.at(i), dtype_of<T>()));
  }
  /// Returns the format of a quantized operand; records() returns its records.
  const QuantizedFormat& quantized(size_t i) const { return graph_.at(op_.in.at(i)).quantized; }
  const std::byte* records(size_t i) const {
    return static_cast<const std::byte*>(address(op_.in.at(i), DType::kU8));
  }
  /// Calls f(address) with the gradient of a parameter in its own type: F32, BF16 or F16,
  /// independently of the activations' type S (F64 if S is double).
  template <class S, class F>
  void with_gradient(size_t i, F f) const {
    if constexpr (std::is_same_v<Compute<S>, double>) {
      f(out<double>(i));
    } else {
      switch (graph_.at(op_.out.at(i)).dtype) {
        case DType::kBF16:
          return f(out<BFloat16>(i));
        case DType::kF16:
          return f(out<Float16>(i));
        default:
          return f(out<float>(i));
      }
    }
  }
  /// Returns the operation's scratch from a byte offset on.
  template <class T>
  T* workspace(int64_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(address(op_.workspace, DType::kU8)) +
                                offset);
  }

  template <class A>
  const A& attrs() const {
    return op_.attrs.get<A>();
  }
  bool accumulates() const { return context_.accumulate; }
  int64_t layer() const { return context_.layer; }
  int64_t first_token() const { return context_.first_token; }
  const StepScalars& scalars() const {
    require(context_.scalars != nullptr, "step scalars are given");
    return *context_.scalars;
  }

 private:
  void* address(ValueId id, DType dtype) const;

  const LayerGraph& graph_;
  const Op& op_;
  std::span<void* const> storage_;
  const KernelContext& context_;
};

}  // namespace ftrun
