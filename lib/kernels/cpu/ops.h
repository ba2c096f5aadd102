#pragma once

#include "kernels/cpu/op_call.h"
#include "kernels/cpu/vector_kernels.h"

// The operations on the CPU (ops/KIND/cpu.cc) for activations of type S (float, double, BFloat16,
// Float16); operands are described in ops/KIND. 16-bit operands are widened to fp32, and each
// result is rounded once. Results have the same bits for any number of threads.
namespace ftrun::cpu {

#define FTRUN_OP(kind, name) \
  template <class S>         \
  void name(const OpCall& call);
#define FTRUN_COLLECTIVE(kind, name)
#include "ops/kinds.inc"

/// Instantiates an operation for the types that activations may have.
#define FTRUN_FOR_STORAGE_TYPES(operation)               \
  template void operation<float>(const OpCall& call);    \
  template void operation<double>(const OpCall& call);   \
  template void operation<BFloat16>(const OpCall& call); \
  template void operation<Float16>(const OpCall& call);

}  // namespace ftrun::cpu
