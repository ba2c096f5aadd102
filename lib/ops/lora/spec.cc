#include "ops/lora/lora.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/offset_allocator.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"
#include "ops/linear/workspace.h"
#include "ops/lora/workspace.h"

namespace ftrun {
namespace {

OpWork lora_work(const LayerGraph& graph, const Op& op) {
  double elements = 0;
  for (const LoraPart& part : lora_parts(graph, op))
    elements += static_cast<double>(part.columns * part.rank);
  return OpPass{.flops = 2.0 * static_cast<double>(graph.at(op.in[0]).dims[0]) * elements,
                .bytes = operand_bytes(graph, op)};
}

int64_t lora_bytes(const LayerGraph& graph, const Op& op) {
  return lora_workspace(graph, op).bytes;
}

void emit_lora_up_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  const std::vector<ValueId> up(op.in.begin() + 2, op.in.end());
  std::vector<ValueId> grads;
  for (const ValueId b : up) grads.push_back(backward.param_grad(b));
  backward.emit_weight_grad(OpKind::kLoraUpWgrad, {dy, backward.backward_value(op.in[1])},
                            std::move(grads), op.attrs);
  std::vector<ValueId> in{dy};
  in.insert(in.end(), up.begin(), up.end());
  const ValueId dh = backward.add_gradient_value(op.in[1]);
  backward.emit_input_grad(OpKind::kLoraUpDgrad, std::move(in), {dh}, op.attrs);
  backward.add_term(op.in[0], dy);
  backward.add_term(op.in[1], dh);
}

}  // namespace

LoraWorkspace lora_workspace(const LayerGraph& graph, const Op& op) {
  const int64_t tokens = graph.at(op.in[0]).dims[0];
  const auto panels_of = [&](const LoraPart& part) {
    switch (op.kind) {
      case OpKind::kLoraUp:
        return matmul_workspace_bytes(graph, op, tokens, part.columns, part.rank);
      case OpKind::kLoraUpDgrad:
        return matmul_workspace_bytes(graph, op, tokens, part.rank, part.columns);
      default:
        return matmul_workspace_bytes(graph, op, part.columns, part.rank, tokens);
    }
  };
  int64_t panels = 0;
  for (const LoraPart& part : lora_parts(graph, op)) panels = std::max(panels, panels_of(part));
  OffsetAllocator offsets;
  offsets.reserve(panels);
  LoraWorkspace w;
  if (op.kind != OpKind::kLoraUpDgrad) w.scaled = offsets.reserve(graph.at(op.in[1]).bytes());
  w.bytes = offsets.bytes();
  return w;
}

ValueId ops::lora(GraphBuilder& g, ValueId x, ValueId y, ValueId down,
                  const std::vector<ValueId>& up, const LoraAttrs& attrs,
                  const LinearAttrs& y_attrs) {
  require(!up.empty() && up.size() <= 3 && up.size() == attrs.parts.size(),
          "an adapter has one to three parts");
  int64_t ranks = 0;
  for (size_t p = 0; p < up.size(); ++p) {
    const Dims& b = g.at(up[p]).dims;
    require(attrs.parts[p].first_column + b[0] <= g.at(y).dims[1],
            "the adapted part lies inside the linear layer's results");
    ranks += b[1];
  }
  require(g.at(down).dims[0] == ranks, "A has the rows of all parts");
  const ValueId h = linear(g, x, down, -1, {.gradient_ranks = y_attrs.gradient_ranks});
  const ValueId sum = g.add_temporary(g.at(y).name + ".lora", g.at(y).dims);
  std::vector<ValueId> in{y, h};
  in.insert(in.end(), up.begin(), up.end());
  g.emit(OpKind::kLoraUp, std::move(in), {sum}, attrs);
  return sum;
}

namespace specs {

constinit const OpSpec lora_up{
    .name = "lora_up",
    .shapes = "N,O N,r1+r2+r3 O1,r1 [O2,r2] [O3,r3] -> N,O",
    .split_along = "O",
    .in_place_input = 0,
    .work_class = WorkClass::kMatmul,
    .work = lora_work,
    .workspace = lora_bytes,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_lora_up_gradients,
};

constinit const OpSpec lora_up_dgrad{
    .name = "lora_up_dgrad",
    .shapes = "N,O O1,r1 [O2,r2] [O3,r3] -> N,r1+r2+r3",
    .split_along = "O",
    .work_class = WorkClass::kMatmul,
    .work = lora_work,
    .workspace = lora_bytes,
    .gpu_workspace = workspace_of::none,
};

constinit const OpSpec lora_up_wgrad{
    .name = "lora_up_wgrad",
    .shapes = "N,O N,r1+r2+r3 -> O1,r1 [O2,r2] [O3,r3]",
    .split_along = "O",
    .work_class = WorkClass::kMatmul,
    .work = lora_work,
    .workspace = lora_bytes,
    .gpu_workspace = workspace_of::none,
};

}  // namespace specs

}  // namespace ftrun
