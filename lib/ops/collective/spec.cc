#include "ops/collective/collective.h"

#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/derivation.h"
#include "graph/op_parts.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void group_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  letters["t"] = op.attrs.get<TensorGroupAttrs>().ranks;
}

void all_reduce_gradients(Derivation& d, const Op& op) {
  if (!d.is_constant(op.in[0])) d.add_term(op.in[0], d.result_gradient(op.out[0]));
}

// Statistics of the loss have no gradient.
void all_gather_gradients(Derivation& d, const Op& op) {
  const ValueId dy = d.gradient(op.out[0]);
  if (dy >= 0) {
    const ValueId dx = d.new_gradient(op.in[0]);
    d.emit_input_grad(OpKind::kTensorReduceScatter, {dy}, {dx}, op.attrs);
    d.add_term(op.in[0], dx);
  }
  d.emit_waiting();
}

void reduce_scatter_gradients(Derivation& d, const Op& op) {
  const ValueId dx = d.new_gradient(op.in[0]);
  d.emit_for_reader(OpKind::kTensorAllGather, {d.result_gradient(op.out[0])}, {dx}, op.attrs);
  d.add_term(op.in[0], dx);
}

ValueId collective(GraphBuilder& g, OpKind kind, ValueId x, std::string name, Dims dims,
                   int64_t ranks) {
  require(ranks > 1, "a collective has ranks");
  const ValueId y = g.add_value(std::move(name), g.at(x).dtype, std::move(dims), ValueRole::kTemp);
  g.emit(kind, {x}, {y}, TensorGroupAttrs{ranks});
  return y;
}

}  // namespace

Op sum_over_ranks(ValueId term, ValueId whole, int64_t ranks) {
  return {OpKind::kTensorAllReduce, {term}, {whole}, TensorGroupAttrs{ranks}, -1};
}

ValueId ops::all_reduce(GraphBuilder& g, ValueId x, int64_t ranks) {
  return collective(g, OpKind::kTensorAllReduce, x, g.at(x).name + ".summed", g.at(x).dims, ranks);
}

ValueId ops::all_gather(GraphBuilder& g, ValueId x, int64_t ranks) {
  Dims dims = g.at(x).dims;
  dims.at(0) *= ranks;
  return collective(g, OpKind::kTensorAllGather, x, g.at(x).name + ".gathered", std::move(dims),
                    ranks);
}

ValueId ops::all_gather_blocks(GraphBuilder& g, ValueId x, int64_t ranks) {
  Dims dims = g.at(x).dims;
  dims.insert(dims.begin(), ranks);
  return collective(g, OpKind::kTensorAllGather, x, g.at(x).name + ".gathered", std::move(dims),
                    ranks);
}

ValueId ops::reduce_scatter(GraphBuilder& g, ValueId x, int64_t ranks) {
  Dims dims = g.at(x).dims;
  require(dims.at(0) % ranks == 0, "a reduce-scatter has blocks of equal size");
  dims[0] /= ranks;
  return collective(g, OpKind::kTensorReduceScatter, x, g.at(x).name + ".scattered",
                    std::move(dims), ranks);
}

namespace specs {

constinit const OpSpec tensor_all_reduce{
    .name = "tensor_all_reduce",
    .shapes = "S -> S",
    .in_place = 0,
    .collective = TensorCollective::kAllReduce,
    .letters = group_letters,
    .work = work_of::communication,
    .gradients = all_reduce_gradients,
};

constinit const OpSpec tensor_all_gather{
    .name = "tensor_all_gather",
    .shapes = "S -> tS",
    .cheap_result = 0,
    .collective = TensorCollective::kAllGather,
    .passes_on_terms = true,
    .letters = group_letters,
    .work = work_of::communication,
    .gradients = all_gather_gradients,
};

constinit const OpSpec tensor_reduce_scatter{
    .name = "tensor_reduce_scatter",
    .shapes = "tS -> S",
    .collective = TensorCollective::kReduceScatter,
    .letters = group_letters,
    .work = work_of::communication,
    .gradients = reduce_scatter_gradients,
};

}  // namespace specs

}  // namespace ftrun
