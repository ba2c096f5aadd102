#pragma once

#include "graph/op.h"
#include "ops/activation/activations.h"

namespace ftrun {

class GraphBuilder;

// activation
//   in:  x[N,F]
//   out: y[N,F] = act(x)
// activation_dgrad
//   in:  dy[N,F], x[N,F]
//   out: dx[N,F] (out may be x)
// gated_activation (SwiGLU, GeGLU, ...: Shazeer 2020)
//   in:  gu[N,2F]: gate, then up
//   out: s[N,F] = act(gate) * up
// gated_activation_dgrad
//   in:  ds[N,F], gu[N,2F]
//   out: dgu[N,2F] (out may be gu)

/// ActivationAttrs holds the activation of an operation.
struct ActivationAttrs {
  Activation kind = Activation::kSilu;
  bool operator==(const ActivationAttrs&) const = default;
};

/// Returns the activation of an operation of one of these kinds.
inline Activation activation_of(const Op& op) {
  return op.attrs.get<ActivationAttrs>().kind;
}

namespace ops {
ValueId activation(GraphBuilder& g, ValueId x, Activation kind);
ValueId gated_activation(GraphBuilder& g, ValueId gate_up, Activation kind);
}  // namespace ops

}  // namespace ftrun
