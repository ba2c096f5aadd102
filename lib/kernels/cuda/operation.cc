#include "kernels/cuda/operation.h"

#include "kernels/cuda/check.h"
#include "kernels/operand_address.h"
#include "kernels/working_dtype.h"

namespace ftrun::cuda {

namespace {

bool computes(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace

Operation::Operation(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
                     const KernelContext& context, cudaStream_t stream)
    : graph_(graph),
      op_(op),
      storage_(storage),
      context_(context),
      stream_(stream),
      dtype_(working_dtype(graph, op)) {
  if (!computes(dtype_))
    throw Error(ExitCode::kUnsupported,
                cat("the CUDA kernels compute in F32, BF16 and F16, not ", dtype_name(dtype_), " (",
                    op_name(op.kind), ")"),
                "train in bf16, fp16 or fp32");
}

Operation::Gradient Operation::gradient(size_t i) const {
  const DType dtype = graph_.at(op_.out.at(i)).dtype;
  if (!computes(dtype))
    throw Error(ExitCode::kUnsupported,
                cat("the CUDA kernels keep gradients in F32, BF16 and F16, not ", dtype_name(dtype),
                    " (", op_name(op_.kind), ")"),
                "train in bf16, fp16 or fp32");
  return {address(op_.out.at(i), dtype), dtype};
}

void Operation::copy_to_result(size_t in, int64_t elements) const {
  if (this->in(in) == out(0)) return;
  check(cudaMemcpyAsync(out(0), this->in(in), static_cast<size_t>(elements * dtype_bytes(dtype_)),
                        cudaMemcpyDefault, stream_),
        "copying what an operation adds to");
}

void* Operation::address(ValueId id, DType dtype) const {
  return operand_address(graph_, op_, storage_, id, dtype);
}

}  // namespace ftrun::cuda
