#include "base/error.h"
#include "kernels/cpu/op_call.h"
#include "kernels/cpu/ops.h"
#include "kernels/kernels.h"
#include "kernels/operand_address.h"
#include "kernels/working_dtype.h"
#include "ops/kinds.h"

namespace ftrun {

namespace {

[[noreturn]] void refuse_collective(const OpCall& call) {
  bug(cat(op_name(call.op().kind), " has no kernel"));
}

template <class S>
void run_as(const OpCall& call) {
  switch (call.op().kind) {
#define FTRUN_OP(kind, name) \
  case OpKind::kind:         \
    return cpu::name<S>(call);
#define FTRUN_COLLECTIVE(kind, name) \
  case OpKind::kind:                 \
    refuse_collective(call);
#include "ops/kinds.inc"
  }
  bug("unknown operation kind");
}

}  // namespace

void* OpCall::address(ValueId id, DType dtype) const {
  return operand_address(graph_, op_, storage_, id, dtype);
}

void run_op(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
            const KernelContext& context) {
  const OpCall call(graph, op, storage, context);
  switch (const DType dtype = working_dtype(graph, op)) {
    case DType::kF32:
      return run_as<float>(call);
    case DType::kF64:
      return run_as<double>(call);
    case DType::kBF16:
      return run_as<BFloat16>(call);
    case DType::kF16:
      return run_as<Float16>(call);
    default:
      throw Error(ExitCode::kUnsupported,
                  cat("the CPU kernels do not support activations in ", dtype_name(dtype), " (",
                      op_name(op.kind), ")"),
                  "train in fp32, bf16 or fp16");
  }
}

}  // namespace ftrun
