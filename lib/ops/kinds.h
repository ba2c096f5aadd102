#pragma once

#include <cstdint>

#include "graph/op.h"
#include "graph/op_spec.h"

namespace ftrun {

/// OpKind is the closed set of operations (ops/kinds.inc). Kinds ending in "Dgrad" compute
/// gradients of operands. Kinds ending in "Wgrad" add to (or overwrite, see
/// KernelContext::accumulate) gradients of parameters and write nothing else; those gradients have
/// the graph's gradient dtype (ModelDtypes). A forward kind without such a kind has a gradient of
/// other kinds, for example of its own (kScale), or none (kRopeTable); OpSpec::gradients of its
/// entry emits it.
enum class OpKind : uint8_t {
#define FTRUN_OP(kind, name) kind,
#define FTRUN_COLLECTIVE(kind, name) kind,
#include "ops/kinds.inc"
};

/// The number of kinds.
inline constexpr int kOpKinds = 0
#define FTRUN_OP(kind, name) +1
#define FTRUN_COLLECTIVE(kind, name) +1
#include "ops/kinds.inc"
    ;

/// The entries of the kinds, from ops/KIND/spec.cc.
namespace specs {
#define FTRUN_OP(kind, name) extern const OpSpec name;
#define FTRUN_COLLECTIVE(kind, name) extern const OpSpec name;
#include "ops/kinds.inc"
}  // namespace specs

}  // namespace ftrun
