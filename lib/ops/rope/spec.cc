#include "ops/rope/rope.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/backward_builder.h"
#include "graph/builder.h"
#include "graph/op_parts.h"
#include "ops/heads.h"
#include "ops/kinds.h"

namespace ftrun {
namespace {

void add_rope_table_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  letters["E"] = 2 * static_cast<int64_t>(op.attrs.get<RopeTableAttrs>().angles.size());
}

void add_rope_letters(const Op& op, std::map<std::string, int64_t>& letters) {
  const HeadAttrs& heads = op.attrs.get<RopeAttrs>().heads;
  add_head_dimensions(heads.query_heads, heads.kv_heads, heads.head_size, letters);
}

void emit_rope_gradients(BackwardBuilder& backward, const Op& op) {
  const ValueId dy = backward.result_gradient(op.out[0]);
  const ValueId dx = backward.add_gradient_value(op.in[0]);
  backward.emit_input_grad(OpKind::kRopeDgrad, {dy, op.in[1]}, {dx}, op.attrs);
  backward.add_term(op.in[0], dx);
}

}  // namespace

ValueId ops::rope_table(GraphBuilder& g, ValueId positions, RopeTableAttrs attrs) {
  const auto rotated = static_cast<int64_t>(attrs.angles.size()) * 2;
  const ValueId table = g.add_value("rope", DType::kF32, {g.tokens(), rotated}, ValueRole::kTemp);
  g.emit(OpKind::kRopeTable, {positions}, {table}, std::move(attrs));
  return table;
}

ValueId ops::rope(GraphBuilder& g, ValueId qkv, ValueId table, const RopeAttrs& attrs) {
  const Dims& dims = g.at(table).dims;
  require(dims.size() == 2 && dims[0] == g.tokens() && dims[1] % 2 == 0,
          "the rope table has angles for each token and rotated pair");
  const int64_t angles = attrs.angles_of(dims[1]);
  require(attrs.first_angle >= 0 && attrs.first_angle + angles <= dims[1] / 2 &&
              2 * angles <= attrs.heads.head_size,
          "the rope table has angles for each token and rotated pair");
  const ValueId y = g.add_temporary("rope.out", g.at(qkv).dims);
  g.emit(OpKind::kRope, {qkv, table}, {y}, attrs);
  return y;
}

namespace specs {

constinit const OpSpec rope_table{
    .name = "rope_table",
    .shapes = "N -> N,E",
    .add_letter_sizes = add_rope_table_letters,
    .work = work_of::transcendentals,
    .gpu_workspace = workspace_of::none,
    .gradients = gradients_of::none,
};

constinit const OpSpec rope{
    .name = "rope",
    .shapes = "N,(H+2K)d N,E -> N,(H+2K)d",
    .split_along = "H",
    .in_place_input = 0,
    .add_letter_sizes = add_rope_letters,
    .gpu_workspace = workspace_of::none,
    .gradients = emit_rope_gradients,
};

constinit const OpSpec rope_dgrad{
    .name = "rope_dgrad",
    .shapes = "N,(H+2K)d N,E -> N,(H+2K)d",
    .split_along = "H",
    .in_place_input = 0,
    .add_letter_sizes = add_rope_letters,
    .gpu_workspace = workspace_of::none,
};

}  // namespace specs

}  // namespace ftrun
