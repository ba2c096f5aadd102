#include "graph/op_spec.h"

#include <map>
#include <set>

#include "base/text.h"
#include "blocks.h"
#include "graph/cost.h"
#include "graph/derive.h"
#include "graph/op_workspace.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns graphs whose lists together have every kind, in 32 and in 16 bits.
std::vector<LayerGraph> all_graphs() {
  const BlockShape narrow{.biases = true, .qk_norm = true, .dtypes = {DType::kBF16, DType::kBF16}};
  std::vector<LayerGraph> graphs{
      block_graph(narrow),          block_graph({.biases = true, .qk_norm = true}),
      embedding_graph({}),          head_graph({}),
      head_graph({.biases = true}), adapter_graph({}),
      adapter_graph(narrow),        adapter_graph({.dropout = 0.5}),
      magnitude_graph(narrow),      magnitude_graph({.biases = true}),
      scale_graph(narrow),          softcap_graph(narrow),
      whole_norm_graph(narrow),     head_norm_graph(narrow),
      plain_mlp_graph(narrow),      plain_mlp_graph({})};
  for (const bool sequence : {true, false}) {
    graphs.push_back(split_mlp_graph(narrow, sequence));
    graphs.push_back(split_head_graph(narrow, sequence));
    graphs.push_back(split_head_graph({}, sequence));
  }
  graphs.push_back(exchange_graph(narrow));
  return graphs;
}

template <class F>
void for_every_op(F f) {
  for (const LayerGraph& g : all_graphs())
    for (const auto* list : {&g.forward, &g.backward})
      for (const Op& op : *list) f(g, op, list == &g.forward);
}

struct Patterns {
  std::vector<std::string> in, out;
};

Patterns patterns_of(const OpSpec& spec) {
  const size_t arrow = spec.shapes.find(" -> ");
  REQUIRE(arrow != std::string_view::npos);
  return {split(spec.shapes.substr(0, arrow), ' '), split(spec.shapes.substr(arrow + 4), ' ')};
}

TEST_CASE("every kind of operation has an entry, whose fields do not contradict each other") {
  std::set<std::string_view> names;
  for (int i = 0; i < kOpKinds; ++i) {
    const OpSpec& spec = op_spec(static_cast<OpKind>(i));
    INFO(spec.name);
    CHECK_FALSE(spec.name.empty());
    CHECK(names.insert(spec.name).second);
    REQUIRE(spec.work != nullptr);
    CHECK((spec.gpu_workspace == nullptr) == spec.collective.has_value());
    const Patterns patterns = patterns_of(spec);
    CHECK(spec.cheap_result < static_cast<int>(patterns.out.size()));
    // A result that may be in place of an operand must have its size.
    if (spec.in_place_input >= 0) {
      const std::string given = patterns.in.at(static_cast<size_t>(spec.in_place_input));
      CHECK((given == patterns.out[0] || given == cat("[", patterns.out[0], "]")));
    }
    CHECK_FALSE((spec.must_not_recompute && spec.cheap_result >= 0));
    CHECK(spec.parameter_gradient < static_cast<int>(patterns.out.size()));
    CHECK(spec.device_specific_result < static_cast<int>(patterns.out.size()));
    if (spec.gpu_pair) CHECK(patterns_of(op_spec(*spec.gpu_pair)).in.size() >= patterns.in.size());
    if (spec.collective) {
      CHECK(spec.work == work_of::communication);
      CHECK(spec.workspace == nullptr);
      CHECK(spec.split_along.empty());
    }
    for (const char letter : spec.split_along) {
      INFO(letter);
      CHECK(spec.shapes.find(letter) != std::string_view::npos);
    }
  }
}

TEST_CASE("GPUs run pairs of exactly those kinds whose line in kinds.inc says so") {
  std::set<OpKind> listed, entered;
#define FTRUN_OP(kind, name)
#define FTRUN_COLLECTIVE(kind, name)
#define FTRUN_PAIRED_OP(kind, name) listed.insert(OpKind::kind);
#include "ops/kinds.inc"
  for (int i = 0; i < kOpKinds; ++i)
    if (op_spec(static_cast<OpKind>(i)).gpu_pair) entered.insert(static_cast<OpKind>(i));
  CHECK(listed == entered);
  CHECK_FALSE(listed.empty());
}

TEST_CASE(
    "matrix multiplications and attention have their own class of work, and other kinds do not") {
  std::map<WorkClass, std::set<std::string_view>> kinds;
  for (int i = 0; i < kOpKinds; ++i) {
    const OpSpec& spec = op_spec(static_cast<OpKind>(i));
    kinds[spec.work_class].insert(spec.name);
  }
  CHECK(kinds[WorkClass::kMatmul] ==
        std::set<std::string_view>{"linear", "linear_dgrad", "linear_wgrad", "lora_up",
                                   "lora_up_dgrad", "lora_up_wgrad", "linear_cross_entropy",
                                   "vocabulary_logits", "vocabulary_cross_entropy"});
  CHECK(kinds[WorkClass::kAttention] == std::set<std::string_view>{"attention", "attention_dgrad"});
}

TEST_CASE(
    "a kind in forward lists has gradients; one without gradients is itself a gradient, of "
    "backward lists") {
  std::set<OpKind> forward, backward;
  for_every_op([&](const LayerGraph&, const Op& op, bool is_forward) {
    (is_forward ? forward : backward).insert(op.kind);
  });
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    const OpSpec& spec = op_spec(kind);
    INFO(spec.name);
    const bool gradient = spec.name.ends_with("_dgrad") || spec.name.ends_with("_wgrad");
    CHECK((spec.gradients == nullptr) == gradient);
    CHECK(forward.contains(kind) == !gradient);
    if (gradient) CHECK(backward.contains(kind));
  }
}

TEST_CASE("an operation has scratch if its kind's entry asks for some, and only then") {
  std::set<OpKind> asked;
  for_every_op([&](const LayerGraph& g, const Op& op, bool) {
    const auto workspace = op_spec(op.kind).workspace;
    CHECK(workspace_bytes(g, op) == (workspace == nullptr ? 0 : workspace(g, op)));
    if (op.workspace >= 0) asked.insert(op.kind);
  });
  for (int i = 0; i < kOpKinds; ++i) {
    INFO(op_name(static_cast<OpKind>(i)));
    CHECK((op_spec(static_cast<OpKind>(i)).workspace != nullptr) ==
          asked.contains(static_cast<OpKind>(i)));
  }
}

TEST_CASE("gradients of a gradient are refused") {
  GraphBuilder b("twice", 4, 4);
  const ValueId x = b.input(Port::kHidden, DType::kF32, {4, 3}, "x");
  b.output(ops::linear(b, x, b.param("w", {3, 3})), Port::kHidden);
  LayerGraph g = b.finish(false);
  g.forward[0].kind = OpKind::kLinearDgrad;
  CHECK(bug_text([&] { derive_backward(g); }) == "no backward for linear_dgrad in a forward list");
}

TEST_CASE("results and gradients that lack the dimension which ranks divide are terms of a sum") {
  // If ranks divide the rows of w, each computes some columns of y, and a term of dx.
  CHECK_FALSE(result_is_partial(OpKind::kLinear, 0, 'O'));
  CHECK(gradient_is_partial(OpKind::kLinear, 0, 'O'));
  CHECK_FALSE(gradient_is_partial(OpKind::kLinear, 1, 'O'));
  CHECK_FALSE(gradient_is_partial(OpKind::kLinear, 2, 'O'));
  // If ranks divide the columns of w, each computes a term of y, and all have the whole dy and db.
  CHECK(result_is_partial(OpKind::kLinear, 0, 'I'));
  for (const size_t operand : {0, 1, 2})
    CHECK_FALSE(gradient_is_partial(OpKind::kLinear, operand, 'I'));
  // The gradients of the operation have the same properties.
  CHECK(result_is_partial(OpKind::kLinearDgrad, 0, 'O'));
  CHECK_FALSE(result_is_partial(OpKind::kLinearDgrad, 0, 'I'));
  CHECK_FALSE(result_is_partial(OpKind::kLinearWgrad, 0, 'O'));
  CHECK_FALSE(result_is_partial(OpKind::kLinearWgrad, 0, 'I'));
  // For lengths of rows, a rank has those of its rows of w, or a term of each from its columns.
  CHECK_FALSE(result_is_partial(OpKind::kDoraSquaredLengths, 0, 'O'));
  CHECK(result_is_partial(OpKind::kDoraSquaredLengths, 0, 'I'));
  CHECK_FALSE(gradient_is_partial(OpKind::kDoraScale, 2, 'O'));
  // The dimensions are rows of the vocabulary, tokens, and heads.
  CHECK(result_is_partial(OpKind::kEmbed, 0, 'V'));
  CHECK_FALSE(result_is_partial(OpKind::kRmsNorm, 0, 'N'));
  CHECK(gradient_is_partial(OpKind::kRmsNorm, 1, 'N'));
  CHECK(result_is_partial(OpKind::kRmsNormWgrad, 0, 'N'));
  CHECK(gradient_is_partial(OpKind::kAddRmsNorm, 2, 'N'));
  CHECK_FALSE(result_is_partial(OpKind::kLayerNorm, 1, 'N'));
  for (const size_t operand : {1, 2}) CHECK(gradient_is_partial(OpKind::kLayerNorm, operand, 'N'));
  for (const size_t result : {0, 1}) CHECK(result_is_partial(OpKind::kLayerNormWgrad, result, 'N'));
  CHECK(gradient_is_partial(OpKind::kQkNorm, 2, 'H'));
  CHECK_FALSE(result_is_partial(OpKind::kAttention, 0, 'H'));
  CHECK_FALSE(result_is_partial(OpKind::kAttention, 1, 'H'));
  CHECK_FALSE(gradient_is_partial(OpKind::kGatedActivation, 0, 'F'));
  CHECK(bug_text([] { result_is_partial(OpKind::kLinear, 0, 'N'); }) ==
        "tensor-parallel ranks cannot divide linear along N");
}

}  // namespace
}  // namespace ftrun
