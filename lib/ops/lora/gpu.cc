#include "kernels/cuda/ops.h"
#include "ops/lora/lora.h"

namespace ftrun::cuda {

void run_lora_up(const Operation& op, const KernelLibraries& libraries) {
  const int64_t tokens = op.in_dims(0)[0], outputs = op.in_dims(0)[1];
  const std::vector<LoraPart> parts = lora_parts(op.graph(), op.op());
  op.copy_to_result(0, tokens * outputs);
  for (size_t p = 0; p < parts.size(); ++p)
    libraries.matmul.run({.transpose_b = true,
                          .m = tokens,
                          .n = parts[p].columns,
                          .k = parts[p].rank,
                          .a = op.element(op.in(1), parts[p].first_h_column),
                          .b = op.in(2 + p),
                          .c = op.element(op.out(0), parts[p].first_column),
                          .alpha = static_cast<float>(parts[p].scale),
                          .beta = 1.0F,
                          .a_stride = total_lora_rank(parts),
                          .c_stride = outputs,
                          .dtype = op.dtype(),
                          .out_dtype = op.dtype()},
                         op.stream());
}

void run_lora_up_dgrad(const Operation& op, const KernelLibraries& libraries) {
  const std::vector<LoraPart> parts = lora_parts(op.graph(), op.op());
  for (size_t p = 0; p < parts.size(); ++p)
    libraries.matmul.run({.m = op.in_dims(0)[0],
                          .n = parts[p].rank,
                          .k = parts[p].columns,
                          .a = op.element(op.in(0), parts[p].first_column),
                          .b = op.in(1 + p),
                          .c = op.element(op.out(0), parts[p].first_h_column),
                          .alpha = static_cast<float>(parts[p].scale),
                          .a_stride = op.in_dims(0)[1],
                          .c_stride = total_lora_rank(parts),
                          .dtype = op.dtype(),
                          .out_dtype = op.dtype()},
                         op.stream());
}

void run_lora_up_wgrad(const Operation& op, const KernelLibraries& libraries) {
  const std::vector<LoraPart> parts = lora_parts(op.graph(), op.op());
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto [db, dtype] = op.gradient(p);
    libraries.matmul.run({.transpose_a = true,
                          .m = parts[p].columns,
                          .n = parts[p].rank,
                          .k = op.in_dims(0)[0],
                          .a = op.element(op.in(0), parts[p].first_column),
                          .b = op.element(op.in(1), parts[p].first_h_column),
                          .c = db,
                          .alpha = static_cast<float>(parts[p].scale),
                          .beta = op.accumulates() ? 1.0F : 0.0F,
                          .a_stride = op.in_dims(0)[1],
                          .b_stride = total_lora_rank(parts),
                          .dtype = op.dtype(),
                          .out_dtype = dtype},
                         op.stream());
  }
}

}  // namespace ftrun::cuda
