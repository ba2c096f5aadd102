#include "graph/builder.h"

#include <utility>

#include "base/error.h"
#include "graph/check_graph.h"
#include "graph/derive.h"
#include "graph/op_workspace.h"

namespace ftrun {

GraphBuilder::GraphBuilder(std::string name, int64_t tokens, int64_t sequence_length,
                           const ModelDtypes& dtypes)
    : tokens_(tokens),
      sequence_length_(sequence_length),
      statistics_dtype_(dtypes.compute == DType::kF64 ? DType::kF64 : DType::kF32) {
  require(tokens > 0 && sequence_length > 0 && tokens % sequence_length == 0,
          "the tokens fill whole sequences");
  graph_.name = std::move(name);
  graph_.dtypes = dtypes;
}

ValueId GraphBuilder::add_value(std::string name, DType dtype, Dims dims, ValueRole role,
                                Port port) {
  graph_.values.push_back({std::move(name), dtype, std::move(dims), role, port, -1});
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId GraphBuilder::add_temporary(const std::string& name, Dims dims) {
  return add_value(name, graph_.dtypes.compute, std::move(dims), ValueRole::kTemp);
}

void GraphBuilder::emit(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out,
                        OpAttrs attrs) {
  Op op{kind, std::move(in), std::move(out), std::move(attrs), -1};
  const int64_t scratch = workspace_bytes(graph_, op);
  if (scratch > 0)
    op.workspace =
        add_value(cat(op_name(kind), ".workspace"), DType::kU8, {scratch}, ValueRole::kWorkspace);
  graph_.forward.push_back(std::move(op));
}

ValueId GraphBuilder::input(Port port, DType dtype, Dims dims, std::string name) {
  return add_value(std::move(name), dtype, std::move(dims), ValueRole::kInput, port);
}

ValueId GraphBuilder::param(std::string name, Dims dims) {
  return add_value(std::move(name), graph_.dtypes.compute, std::move(dims), ValueRole::kParam);
}

ValueId GraphBuilder::fp32_param(std::string name, Dims dims) {
  return add_value(std::move(name), statistics_dtype_, std::move(dims), ValueRole::kParam);
}

ValueId GraphBuilder::linear_weight(std::string name, Dims dims) {
  const ValueId weight = param(std::move(name), std::move(dims));
  graph_.values[static_cast<size_t>(weight)].quantized = graph_.dtypes.quantized;
  return weight;
}

ValueId GraphBuilder::add_weight_gradient(ValueId weight) {
  const ValueId grad = add_value("d_" + graph_.at(weight).name, graph_.dtypes.gradients,
                                 Dims(graph_.at(weight).dims), ValueRole::kParamGrad);
  graph_.values[static_cast<size_t>(weight)].grad = grad;
  return grad;
}

void GraphBuilder::output(ValueId value, Port port) {
  Value& v = graph_.values[static_cast<size_t>(value)];
  require(v.role == ValueRole::kTemp || v.role == ValueRole::kOutput,
          "outputs are made by the layer");
  v.role = ValueRole::kOutput;
  v.port = port;
}

LayerGraph GraphBuilder::finish(bool with_backward, const RecomputePolicy& recompute) {
  if (with_backward) derive_backward(graph_, recompute);
  check_graph(graph_);
  return std::move(graph_);
}

}  // namespace ftrun
