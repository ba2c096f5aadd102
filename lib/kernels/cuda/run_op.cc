#include "kernels/cuda/run_op.h"

#include "base/error.h"
#include "kernels/cuda/ops.h"
#include "ops/kinds.h"

namespace ftrun::cuda {

namespace {

void prepare_operation(const LayerGraph& graph, const Op& op, const KernelLibraries& libraries) {
  switch (op.kind) {
#define FTRUN_OP(kind, name) \
  case OpKind::kind:         \
    return;
#define FTRUN_PREPARED_OP(kind, name) \
  case OpKind::kind:                  \
    return prepare_##name(graph, op, libraries);
#define FTRUN_COLLECTIVE(kind, name) \
  case OpKind::kind:                 \
    return;
#include "ops/kinds.inc"
  }
}

[[noreturn]] void refuse_collective(const Operation& op) {
  bug(cat(op_name(op.op().kind), " has no kernel"));
}

}  // namespace

void prepare(const LayerGraph& graph, const KernelLibraries& libraries) {
  for (const auto* list : {&graph.forward, &graph.backward})
    for (const Op& op : *list) prepare_operation(graph, op, libraries);
}

void run_operation(const Operation& op, const KernelLibraries& libraries) {
  switch (op.op().kind) {
#define FTRUN_OP(kind, name) \
  case OpKind::kind:         \
    return run_##name(op, libraries);
#define FTRUN_COLLECTIVE(kind, name) \
  case OpKind::kind:                 \
    refuse_collective(op);
#include "ops/kinds.inc"
  }
  bug("unknown operation kind");
}

bool run_pair(const Operation& first, const Operation& second) {
  switch (first.op().kind) {
#define FTRUN_OP(kind, name) \
  case OpKind::kind:         \
    break;
#define FTRUN_PAIRED_OP(kind, name) \
  case OpKind::kind:                \
    return run_pair_##name(first, second);
#define FTRUN_COLLECTIVE(kind, name) \
  case OpKind::kind:                 \
    break;
#include "ops/kinds.inc"
  }
  bug(cat(op_name(first.op().kind), " has no paired kernel"));
}

}  // namespace ftrun::cuda
