#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "kernels/kernels.h"

namespace ftrun {

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>)
    return DType::kF64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::kF32;
  else {
    static_assert(std::is_same_v<T, int32_t>);
    return DType::kI32;
  }
}

/// An operation with the addresses of its operands: what a kernel gets.
class OpCall {
 public:
  OpCall(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
         const KernelContext& context)
      : graph_(graph), op_(op), storage_(storage), context_(context) {}

  OpKind kind() const { return op_.kind; }
  bool has_in(size_t i) const { return i < op_.in.size(); }
  const Dims& in_dims(size_t i) const { return graph_.at(op_.in.at(i)).dims; }
  const Dims& out_dims(size_t i) const { return graph_.at(op_.out.at(i)).dims; }

  /// Address of an operand. Error(kBug) when it has another type or no storage.
  template <class T>
  const T* in(size_t i) const {
    return static_cast<const T*>(address(op_.in.at(i), dtype_of<T>()));
  }
  template <class T>
  T* out(size_t i) const {
    return static_cast<T*>(address(op_.out.at(i), dtype_of<T>()));
  }
  /// Scratch of the operation from a byte offset on.
  template <class T>
  T* workspace(int64_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(address(op_.workspace, DType::kU8)) +
                                offset);
  }

  template <class A>
  const A& attrs() const {
    return std::get<A>(op_.attrs);
  }
  bool accumulate() const { return context_.accumulate; }
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
