#include "ops/embedding/embedding.h"

#include <utility>

#include "base/dtype.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/cost.h"
#include "graph/layer_graph.h"
#include "graph/op_parts.h"
#include "ops/embedding/gpu_workspace.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void emit_embed_gradients(BackwardBuilder& backward, const Op& op) {
  backward.emit_weight_grad(OpKind::kEmbedWgrad, {op.in[0], backward.result_gradient(op.out[0])},
                            {backward.param_grad(op.in[1])}, op.attrs);
}

/// Returns the bytes of one row of the table for each token; the size of the table does not matter.
double row_bytes(const LayerGraph& graph, ValueId table, ValueId x) {
  const double rows = static_cast<double>(graph.at(x).dims[0]);
  return rows * static_cast<double>(graph.at(table).dims[1] * dtype_bytes(graph.at(table).dtype));
}

OpWork embed_work(const LayerGraph& graph, const Op& op) {
  const Value &tokens = graph.at(op.in[0]), &x = graph.at(op.out[0]);
  return OpPass{.bytes = row_bytes(graph, op.in[1], op.out[0]) +
                         static_cast<double>(tokens.bytes() + x.bytes())};
}

/// Counts the work of adding each token's gradient to a row. Clearing the table, which happens only
/// in the first micro-batch of a step, is not counted.
OpWork embed_wgrad_work(const LayerGraph& graph, const Op& op) {
  const Value &tokens = graph.at(op.in[0]), &dx = graph.at(op.in[1]);
  return OpPass{.flops = static_cast<double>(element_count(dx.dims)),
                .bytes = 2 * row_bytes(graph, op.out[0], op.in[1]) +
                         static_cast<double>(tokens.bytes() + dx.bytes())};
}

int64_t embed_wgrad_workspace(const LayerGraph& graph, const Op& op) {
  return graph.at(op.in[0]).dims[0] * dtype_bytes(DType::kI32);
}

int64_t embed_wgrad_gpu_workspace(const LayerGraph& graph, const Op& op) {
  return gpu_embed_workspace(graph.at(op.in[0]).dims[0], graph.at(op.in[1]).dims[1]).bytes;
}

}  // namespace

EmbeddingRowsAttrs table_rows_of(const Op& op, int64_t rows) {
  return op.attrs.get_or(EmbeddingRowsAttrs{0, rows});
}

void leave_out_row_gradient(Op& op, int64_t rows, int64_t token) {
  if (op.kind != OpKind::kEmbedWgrad) return;
  EmbeddingRowsAttrs table_rows = table_rows_of(op, rows);
  table_rows.token_without_gradient = token;
  op.attrs = table_rows;
}

ValueId ops::embed(GraphBuilder& g, ValueId tokens, ValueId table, const EmbeddingRowsAttrs& rows) {
  const ValueId x = g.add_temporary("embedding", {g.tokens(), g.at(table).dims[1]});
  OpAttrs attrs;
  if (rows != EmbeddingRowsAttrs{}) attrs = rows;
  g.emit(OpKind::kEmbed, {tokens, table}, {x}, std::move(attrs));
  return x;
}

namespace specs {

constinit const OpSpec embed{
    .name = "embed",
    .shapes = "N V,D -> N,D",
    .split_along = "V",
    .work = embed_work,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_embed_gradients,
};

constinit const OpSpec embed_wgrad{
    .name = "embed_wgrad",
    .shapes = "N N,D -> V,D",
    .split_along = "V",
    .work = embed_wgrad_work,
    .workspace = embed_wgrad_workspace,
    .gpu_workspace = embed_wgrad_gpu_workspace,
};

}  // namespace specs

}  // namespace ftrun
