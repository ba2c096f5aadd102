#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "base/error.h"
#include "graph/layer_graph.h"
#include "kernels/kernels.h"

namespace ftrun::cuda {

/// Operation holds an operation, the addresses of its operands and the stream it runs on. It checks
/// the conditions on which the launchers rely: the dtypes, and that storage is given.
class Operation {
 public:
  Operation(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
            const KernelContext& context, cudaStream_t stream);

  const LayerGraph& graph() const { return graph_; }
  const Op& op() const { return op_; }
  cudaStream_t stream() const { return stream_; }
  /// Returns the dtype of the activations: F32, BF16 or F16.
  DType dtype() const { return dtype_; }
  bool has_in(size_t i) const { return i < op_.in.size(); }
  bool has_out(size_t i) const { return i < op_.out.size(); }
  const Dims& in_dims(size_t i) const { return graph_.at(op_.in.at(i)).dims; }
  const Dims& out_dims(size_t i) const { return graph_.at(op_.out.at(i)).dims; }

  /// Returns an operand of the activations' dtype.
  const void* in(size_t i) const { return address(op_.in.at(i), dtype_); }
  void* out(size_t i) const { return address(op_.out.at(i), dtype_); }
  /// Returns an operand of a fixed type: rstd, lse, tables (F32), tokens (I32), loss (F64).
  const float* floats_in(size_t i) const {
    return static_cast<const float*>(address(op_.in.at(i), DType::kF32));
  }
  float* floats_out(size_t i) const {
    return static_cast<float*>(address(op_.out.at(i), DType::kF32));
  }
  const int32_t* ints_in(size_t i) const {
    return static_cast<const int32_t*>(address(op_.in.at(i), DType::kI32));
  }
  double* doubles_out(size_t i) const {
    return static_cast<double*>(address(op_.out.at(i), DType::kF64));
  }
  /// Returns the format of a quantized operand; records() returns its records.
  const QuantizedFormat& quantized(size_t i) const { return graph_.at(op_.in.at(i)).quantized; }
  const void* records(size_t i) const { return address(op_.in.at(i), DType::kU8); }
  /// Gradient is a parameter's gradient, in its own dtype (F32, BF16 or F16).
  struct Gradient {
    void* data;
    DType dtype;
  };
  Gradient gradient(size_t i) const;

  /// Returns the address of element `index` of an operand of the activations' dtype.
  const void* element(const void* data, int64_t index) const {
    return static_cast<const std::byte*>(data) + index * dtype_bytes(dtype_);
  }
  void* element(void* data, int64_t index) const {
    return static_cast<std::byte*>(data) + index * dtype_bytes(dtype_);
  }
  /// Copies `elements` of operand `in` to result 0; does nothing where they are the same.
  void copy_to_result(size_t in, int64_t elements) const;

  /// Returns scratch from a byte offset on.
  template <class T>
  T* workspace(int64_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(address(op_.workspace, DType::kU8)) +
                                offset);
  }
  int64_t workspace_bytes() const { return graph_.at(op_.workspace).bytes(); }
  /// Throws if the plan was made for the CPU's kernels, whose workspace has another layout.
  void require_workspace(int64_t bytes) const {
    require(workspace_bytes() >= bytes, "the plan has the scratch of this device's kernels");
  }

  template <class A>
  const A& attrs() const {
    return op_.attrs.get<A>();
  }
  bool accumulates() const { return context_.accumulate; }
  int64_t layer() const { return context_.layer; }
  int64_t first_token() const { return context_.first_token; }
  /// Returns the step's scalars in device memory.
  const StepScalars* scalars() const {
    require(context_.scalars != nullptr, "step scalars are given");
    return context_.scalars;
  }

 private:
  void* address(ValueId id, DType dtype) const;

  const LayerGraph& graph_;
  const Op& op_;
  std::span<void* const> storage_;
  const KernelContext& context_;
  cudaStream_t stream_;
  DType dtype_;
};

}  // namespace ftrun::cuda
