#include "graph/op_spec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Returns whether tensor-parallel ranks divide a dimension of an operand along `letter`. Ranks
/// that divide the query heads (H) divide the key/value heads (K) as well.
bool has_letter(std::string_view operand, char letter) {
  const auto has = [&](char c) { return operand.find(c) != std::string_view::npos; };
  return has(letter) || (letter == 'H' && has('K'));
}

/// OperandShapes holds the shapes of the operands and of the results of a kind, one string each.
struct OperandShapes {
  std::vector<std::string> in, out;
};

OperandShapes operand_shapes(const OpSpec& spec) {
  const size_t arrow = spec.shapes.find(" -> ");
  return {split(spec.shapes.substr(0, arrow), ' '), split(spec.shapes.substr(arrow + 4), ' ')};
}

const OpSpec& splittable_spec(OpKind kind, char letter) {
  const OpSpec& spec = op_spec(kind);
  if (spec.split_along.find(letter) == std::string_view::npos)
    bug(cat("tensor-parallel ranks cannot divide ", spec.name, " along ", std::string(1, letter)));
  return spec;
}

}  // namespace

bool is_gpu_pair(std::span<const Op> list, size_t i) {
  return i + 1 < list.size() && op_spec(list[i].kind).gpu_pair == list[i + 1].kind &&
         std::equal(list[i].in.begin(), list[i].in.end(), list[i + 1].in.begin());
}

bool result_is_partial(OpKind kind, size_t result, char letter) {
  return !has_letter(operand_shapes(splittable_spec(kind, letter)).out.at(result), letter);
}

bool gradient_is_partial(OpKind kind, size_t operand, char letter) {
  const OperandShapes operands = operand_shapes(splittable_spec(kind, letter));
  return !has_letter(operands.in.at(operand), letter) && has_letter(operands.out.at(0), letter);
}

}  // namespace ftrun
