#include "ops/collective/collective.h"

#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void add_group_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  letters["t"] = op.attrs.get<CollectiveAttrs>().ranks;
}

void emit_all_reduce_gradients(BackwardBuilder& backward, const Op& op) {
  if (!backward.is_constant(op.in[0]))
    backward.add_term(op.in[0], backward.result_gradient(op.out[0]));
}

/// Emits the gradient: a reduce-scatter of the result's gradient. Gathered statistics of the loss
/// have no gradient.
void emit_all_gather_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.sum_gradient_terms(op.out[0]);
  if (dy >= 0) {
    const ValueId dx = backward.add_gradient_value(op.in[0]);
    backward.emit_input_grad(OpKind::kReduceScatter, {dy}, {dx}, op.attrs);
    backward.add_term(op.in[0], dx);
  }
  backward.emit_delayed();
}

void emit_reduce_scatter_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_for_reader(OpKind::kAllGather, {backward.result_gradient(op.out[0])}, {dx},
                           op.attrs);
  backward.add_term(op.in[0], dx);
}

/// Emits the gradient of an operation that moves data between ranks: the gradient moves back
/// (`back`).
void emit_moved_gradients(BackwardBuilder& backward, const Op& op, const CollectiveAttrs& back) {
  if (backward.is_constant(op.in[0])) return;
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(op.kind, {backward.result_gradient(op.out[0])}, {dx}, back);
  backward.add_term(op.in[0], dx);
}

void emit_all_to_all_gradients(BackwardBuilder& backward, const Op& op) {
  emit_moved_gradients(backward, op, op.attrs.get<CollectiveAttrs>());
}

void emit_shift_gradients(BackwardBuilder& backward, const Op& op) {
  CollectiveAttrs back = op.attrs.get<CollectiveAttrs>();
  back.shift = back.ranks - back.shift;
  emit_moved_gradients(backward, op, back);
}

ValueId collective(GraphBuilder& g, OpKind kind, ValueId x, std::string name, Dims dims,
                   const CollectiveAttrs& over) {
  require(over.ranks > 1, "a collective has ranks");
  const ValueId y = g.add_value(std::move(name), g.at(x).dtype, std::move(dims), ValueRole::kTemp);
  g.emit(kind, {x}, {y}, over);
  return y;
}

}  // namespace

Op all_reduce_op(ValueId term, ValueId sum, int64_t ranks) {
  return {OpKind::kAllReduce, {term}, {sum}, along_tensor(ranks), -1};
}

ValueId ops::all_reduce(GraphBuilder& g, ValueId x, const CollectiveAttrs& over) {
  return collective(g, OpKind::kAllReduce, x, g.at(x).name + ".summed", g.at(x).dims, over);
}

ValueId ops::all_gather(GraphBuilder& g, ValueId x, const CollectiveAttrs& over) {
  Dims dims = g.at(x).dims;
  dims.at(0) *= over.ranks;
  return collective(g, OpKind::kAllGather, x, g.at(x).name + ".gathered", std::move(dims), over);
}

ValueId ops::all_gather_blocks(GraphBuilder& g, ValueId x, const CollectiveAttrs& over) {
  Dims dims = g.at(x).dims;
  dims.insert(dims.begin(), over.ranks);
  return collective(g, OpKind::kAllGather, x, g.at(x).name + ".gathered", std::move(dims), over);
}

ValueId ops::reduce_scatter(GraphBuilder& g, ValueId x, const CollectiveAttrs& over) {
  Dims dims = g.at(x).dims;
  require(dims.at(0) % over.ranks == 0, "a reduce-scatter has blocks of equal size");
  dims[0] /= over.ranks;
  return collective(g, OpKind::kReduceScatter, x, g.at(x).name + ".scattered", std::move(dims),
                    over);
}

ValueId ops::all_to_all(GraphBuilder& g, ValueId x, const CollectiveAttrs& over) {
  require(g.at(x).dims.at(0) % over.ranks == 0, "an all-to-all has blocks of equal size");
  return collective(g, OpKind::kAllToAll, x, g.at(x).name + ".exchanged", g.at(x).dims, over);
}

ValueId ops::shift(GraphBuilder& g, ValueId x, const CollectiveAttrs& over) {
  require(over.shift > 0 && over.shift < over.ranks, "a shift moves to another rank");
  return collective(g, OpKind::kShift, x, g.at(x).name + ".shifted", g.at(x).dims, over);
}

namespace specs {

constinit const OpSpec all_reduce{
    .name = "all_reduce",
    .shapes = "S -> S",
    .in_place_input = 0,
    .collective = CollectiveKind::kAllReduce,
    .add_letter_sizes = add_group_letters,
    .work = work_of::communication,
    .gradients = emit_all_reduce_gradients,
};

constinit const OpSpec all_gather{
    .name = "all_gather",
    .shapes = "S -> tS",
    .cheap_result = 0,
    .collective = CollectiveKind::kAllGather,
    .accepts_partial_gradients = true,
    .add_letter_sizes = add_group_letters,
    .work = work_of::communication,
    .gradients = emit_all_gather_gradients,
};

constinit const OpSpec reduce_scatter{
    .name = "reduce_scatter",
    .shapes = "tS -> S",
    .collective = CollectiveKind::kReduceScatter,
    .add_letter_sizes = add_group_letters,
    .work = work_of::communication,
    .gradients = emit_reduce_scatter_gradients,
};

constinit const OpSpec all_to_all{
    .name = "all_to_all",
    .shapes = "tS -> tS",
    .collective = CollectiveKind::kAllToAll,
    .add_letter_sizes = add_group_letters,
    .work = work_of::communication,
    .gradients = emit_all_to_all_gradients,
};

constinit const OpSpec shift{
    .name = "shift",
    .shapes = "S -> S",
    .collective = CollectiveKind::kShift,
    .add_letter_sizes = add_group_letters,
    .work = work_of::communication,
    .gradients = emit_shift_gradients,
};

}  // namespace specs

}  // namespace ftrun
