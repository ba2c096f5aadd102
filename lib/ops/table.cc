#include <array>

#include "graph/op_spec.h"
#include "ops/kinds.h"

namespace ftrun {

const OpSpec& op_spec(OpKind kind) {
  static constexpr std::array<const OpSpec*, kOpKinds> kSpecs{
#define FTRUN_OP(kind, name) &specs::name,
#define FTRUN_COLLECTIVE(kind, name) &specs::name,
#include "ops/kinds.inc"
  };
  return *kSpecs[static_cast<size_t>(kind)];
}

}  // namespace ftrun
