#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/layer_graph.h"
#include "graph/recompute.h"

namespace ftrun {

/// GraphBuilder builds the forward list of a layer. The caller adds values, then operations in
/// order, by calling the functions of ops/KIND, which infer the shapes of results and check every
/// operand. finish() derives the backward lists.
class GraphBuilder {
 public:
  /// Begins an empty graph; `tokens` is N of every activation.
  GraphBuilder(std::string name, int64_t tokens, int64_t sequence_length,
               const ModelDtypes& dtypes = {});

  ValueId input(Port port, DType dtype, Dims dims, std::string name);
  ValueId param(std::string name, Dims dims);
  /// Adds a parameter that kernels read in fp32 where layers compute in 16 bits.
  ValueId fp32_param(std::string name, Dims dims);
  /// Adds the weight of a linear layer, quantized if the graph's weights are
  /// (ModelDtypes::quantized).
  ValueId linear_weight(std::string name, Dims dims);

  // The functions of ops/KIND emit operations with the members below, which check operands and make
  // results.

  int64_t tokens() const { return tokens_; }
  int64_t sequence_length() const { return sequence_length_; }
  const ModelDtypes& dtypes() const { return graph_.dtypes; }
  /// Returns the dtype of rstd and lse, which are never kept in 16 bits.
  DType statistics_dtype() const { return statistics_dtype_; }
  const Value& at(ValueId id) const { return graph_.at(id); }
  ValueId add_value(std::string name, DType dtype, Dims dims, ValueRole role,
                    Port port = Port::kNone);
  /// Adds a temporary of the activations' dtype.
  ValueId add_temporary(const std::string& name, Dims dims);
  /// Adds the gradient of a parameter that the forward list computes.
  ValueId add_weight_gradient(ValueId weight);
  /// Appends an operation and declares its scratch memory.
  void emit(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out, OpAttrs attrs = {});

  void output(ValueId value, Port port);

  /// Checks and returns the graph; `with_backward` first derives input_grad, weight_grad and
  /// backward (derive_backward()).
  LayerGraph finish(bool with_backward, const RecomputePolicy& recompute = {});

 private:
  LayerGraph graph_;
  int64_t tokens_;
  int64_t sequence_length_;
  DType statistics_dtype_;
};

}  // namespace ftrun
