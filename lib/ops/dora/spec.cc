#include "ops/dora/dora.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/offset_allocator.h"
#include "graph/op_parts.h"
#include "ops/dora/workspace.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void add_dora_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  for (const DoraAttrs::ScaledColumns& part : op.attrs.get<DoraAttrs>().parts)
    letters["O1+O2+O3"] += part.columns;
}

/// Counts the work of B A for each row, and of the square of the sum.
OpWork dora_squared_lengths_work(const LayerGraph& graph, const Op& op) {
  double elements = 0;
  for (const LoraPart& part : lora_parts(graph, op))
    elements += static_cast<double>(part.columns * (part.rank + 1));
  return OpPass{.flops = 2.0 * static_cast<double>(graph.at(op.in[0]).dims[1]) * elements,
                .bytes = operand_bytes(graph, op)};
}

int64_t dora_squared_lengths_workspace(const LayerGraph& graph, const Op& op) {
  return dora_workspace(graph, op).bytes;
}

int64_t dora_squared_lengths_gpu_workspace(const LayerGraph& graph, const Op& op) {
  const Value& down = graph.at(op.in[1]);
  const bool is_quantized = static_cast<bool>(graph.at(op.in[0]).quantized);
  const int64_t columns = max_columns(lora_parts(graph, op));
  return gpu_dora_workspace(columns, down.dims[1], dtype_bytes(down.dtype), is_quantized).bytes;
}

/// Emits the gradients of dora_scale. The lengths of rows have no gradient.
void emit_dora_scale_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  const ValueId z = backward.backward_value(op.in[0]);
  const ValueId q = backward.backward_value(op.in[1]);
  backward.emit_weight_grad(OpKind::kDoraScaleWgrad, {dy, z, q}, {backward.param_grad(op.in[2])},
                            op.attrs);
  if (op.in.size() > 3)
    backward.emit_weight_grad(OpKind::kBiasWgrad, {dy}, {backward.param_grad(op.in[3])});
  const ValueId dz = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(OpKind::kDoraScaleDgrad, {dy, q, op.in[2]}, {dz}, op.attrs);
  backward.add_term(op.in[0], dz);
}

}  // namespace

DoraWorkspace dora_workspace(const LayerGraph& graph, const Op& op) {
  constexpr int64_t kPanelElements = 1 << 19, kMinRows = 64;
  const Value& down = graph.at(op.in[1]);
  const int64_t inputs = down.dims[1], element = dtype_bytes(down.dtype);
  int64_t rows = 0, rank = 0;
  for (const LoraPart& part : lora_parts(graph, op)) {
    rows = std::max(rows, part.columns);
    rank = std::max(rank, part.rank);
  }
  OffsetAllocator offsets;
  DoraWorkspace w;
  w.rows = std::min(rows, std::max(kPanelElements / inputs, kMinRows));
  w.panel = offsets.reserve(w.rows * inputs * wide_bytes(element));
  w.b = offsets.reserve(w.rows * rank * wide_bytes(element));
  if (is_narrow(element)) w.a = offsets.reserve(down.dims[0] * inputs * wide_bytes(element));
  w.bytes = offsets.bytes();
  return w;
}

GpuDoraWorkspace gpu_dora_workspace(int64_t columns, int64_t inputs, int64_t element_bytes,
                                    bool is_quantized) {
  constexpr int64_t kMaxElements = int64_t{4} << 20, kMinRows = 64;
  GpuDoraWorkspace w;
  w.rows = std::min(columns, std::max(kMaxElements / inputs, kMinRows));
  OffsetAllocator offsets;
  w.delta = offsets.reserve(w.rows * inputs * dtype_bytes(DType::kF32));
  if (is_quantized) w.weight = offsets.reserve(w.rows * inputs * element_bytes);
  w.bytes = offsets.bytes();
  return w;
}

ValueId ops::dora_squared_lengths(GraphBuilder& g, ValueId weight, ValueId down,
                                  const std::vector<ValueId>& up, const LoraAttrs& attrs) {
  int64_t rows = 0;
  for (size_t p = 0; p < up.size(); ++p) {
    const int64_t part = g.at(up[p]).dims[0];
    require(attrs.parts.at(p).first_column + part <= g.at(weight).dims[0],
            "the adapted part lies inside the linear layer's weight");
    rows += part;
  }
  const ValueId squares = g.add_value(g.at(weight).name + ".squared_lengths", g.statistics_dtype(),
                                      {rows}, ValueRole::kTemp);
  std::vector<ValueId> in{weight, down};
  in.insert(in.end(), up.begin(), up.end());
  g.emit(OpKind::kDoraSquaredLengths, std::move(in), {squares}, attrs);
  return squares;
}

ValueId ops::dora_scale(GraphBuilder& g, ValueId z, ValueId squares, ValueId magnitudes,
                        ValueId bias, const DoraAttrs& attrs) {
  for (const DoraAttrs::ScaledColumns& part : attrs.parts)
    require(part.first_column + part.columns <= g.at(z).dims[1],
            "the adapted part lies inside the linear layer's results");
  const ValueId y = g.add_temporary(g.at(z).name + ".dora", Dims(g.at(z).dims));
  std::vector<ValueId> in{z, squares, magnitudes};
  if (bias >= 0) in.push_back(bias);
  g.emit(OpKind::kDoraScale, std::move(in), {y}, attrs);
  return y;
}

namespace specs {

constinit const OpSpec dora_squared_lengths{
    .name = "dora_squared_lengths",
    .shapes = "O,I r1+r2+r3,I O1,r1 [O2,r2] [O3,r3] -> O1+O2+O3",
    .split_along = "OI",
    .work = dora_squared_lengths_work,
    .workspace = dora_squared_lengths_workspace,
    .gpu_workspace = dora_squared_lengths_gpu_workspace,
    .gradients = gradients_of::none,
};

constinit const OpSpec dora_scale{
    .name = "dora_scale",
    .shapes = "N,O O1+O2+O3 O1+O2+O3 [O] -> N,O",
    .split_along = "O",
    .cheap_result = 0,
    .in_place_input = 0,
    .add_letter_sizes = add_dora_letters,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_dora_scale_gradients,
};

constinit const OpSpec dora_scale_dgrad{
    .name = "dora_scale_dgrad",
    .shapes = "N,O O1+O2+O3 O1+O2+O3 -> N,O",
    .split_along = "O",
    .in_place_input = 0,
    .add_letter_sizes = add_dora_letters,
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec dora_scale_wgrad{
    .name = "dora_scale_wgrad",
    .shapes = "N,O N,O O1+O2+O3 -> O1+O2+O3",
    .split_along = "O",
    .add_letter_sizes = add_dora_letters,
    .workspace = workspace_of::partial_gradients,
    .gpu_workspace = workspace_of::gpu_partial_sums,
};

}  // namespace specs

}  // namespace ftrun
