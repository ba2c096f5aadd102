#include "blocks.h"
#include "graph/check_graph.h"
#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/qk_norm/qk_norm.h"
#include "ops/rope/rope.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns the error that the builder reports to `use`, which gets a hidden input x:[8,16].
std::string refusal(const std::function<void(GraphBuilder&, ValueId)>& use) {
  GraphBuilder g("layer", 8, 4);
  const ValueId x = g.input(Port::kHidden, DType::kF32, {8, 16}, "x");
  return bug_text([&] { use(g, x); });
}

TEST_CASE("the tokens of a graph must fill whole sequences") {
  CHECK(bug_text([] { GraphBuilder("layer", 10, 4); }) == "the tokens fill whole sequences");
  CHECK(bug_text([] { GraphBuilder("layer", 0, 4); }) == "the tokens fill whole sequences");
  CHECK(bug_text([] { GraphBuilder("layer", 8, 0); }) == "the tokens fill whole sequences");
  CHECK(bug_text([] { GraphBuilder("layer", 8, 8); }) == "nothing");
}

TEST_CASE("operands that do not fit are refused when the operation is built") {
  CHECK(refusal([](auto& g, ValueId x) { ops::rms_norm(g, x, g.param("w", {15}), {1e-5}); }) ==
        "the weight of rms_norm is as wide as its input");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::linear(g, x, g.param("w", {4, 15}));
        }) == "a weight has as many columns as its input");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::linear(g, x, g.param("w", {4, 16}), g.param("b", {5}));
        }) == "a bias has an element for each row of the weight");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::add(g, x, ops::linear(g, x, g.param("w", {4, 16})));
        }) == "the operands of an addition have one shape");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::add_rms_norm(g, x, ops::linear(g, x, g.param("w", {4, 16})), g.param("n", {16}),
                            {1e-5});
        }) == "the operands of add_rms_norm have one shape");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::add_rms_norm(g, x, x, g.param("n", {4}), {1e-5});
        }) == "the weight of add_rms_norm is as wide as its input");
  CHECK(refusal([](auto& g, ValueId x) { ops::layer_norm(g, x, g.param("n", {4}), -1, 1e-5); }) ==
        "the parameters of layer_norm are as wide as its input");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::layer_norm(g, x, g.param("n", {16}), g.param("b", {4}), 1e-5);
        }) == "the parameters of layer_norm are as wide as its input");
  CHECK(refusal([](auto& g, ValueId x) { ops::layer_norm(g, x, -1, g.param("b", {16}), 1e-5); }) ==
        "layer_norm with a bias has a weight");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::qk_norm(g, x, g.param("q", {4}), g.param("k", {3}), {2, 1, 4, 1e-6});
        }) == "the weights of qk_norm are as wide as a head");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::rope(g, x, g.input(Port::kRope, DType::kF32, {8, 6}, "rope"), {{2, 1, 4}});
        }) == "the rope table has angles for each token and rotated pair");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::rope(g, x, g.input(Port::kRope, DType::kF32, {8, 6}, "rope"), {{2, 1, 4}, 2, 2});
        }) == "the rope table has angles for each token and rotated pair");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::rope(g, x, g.input(Port::kRope, DType::kF32, {8, 3}, "rope"), {{2, 1, 4}});
        }) == "the rope table has angles for each token and rotated pair");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::attention(g, x, g.input(Port::kStarts, DType::kI32, {8}, "starts"),
                         {3, 1, 4, 0, 1.0, 0});
        }) == "attention reads q, k and v of each token");
  CHECK(refusal([](auto& g, ValueId) {
          const ValueId qkv = g.input(Port::kHidden, DType::kF32, {8, 28}, "qkv");
          ops::attention(g, qkv, g.input(Port::kStarts, DType::kI32, {8}, "starts"),
                         {3, 2, 4, 0, 1.0, 0});
        }) == "query heads are a multiple of key/value heads");
  CHECK(refusal([](auto& g, ValueId x) {
          ops::linear_cross_entropy(g, x, g.param("w", {9, 15}),
                                    g.input(Port::kLabels, DType::kI32, {8}, "labels"), {});
        }) == "the head's matrix has as many columns as its input");
}

TEST_CASE("an output must be computed by the layer, not given to it") {
  CHECK(refusal([](auto& g, ValueId x) { g.output(x, Port::kHidden); }) ==
        "outputs are made by the layer");
}

TEST_CASE("a result that nothing reads is refused when backward is derived") {
  CHECK(refusal([](auto& g, ValueId x) {
          ops::linear(g, x, g.param("unused", {4, 16}));
          g.output(ops::linear(g, x, g.param("w", {16, 16})), Port::kHidden);
          g.finish(true);
        }) == "layer: nothing reads unused.out");
}

TEST_CASE(
    "an input that reaches no output, or reaches it unchanged, is refused when backward is "
    "derived") {
  CHECK(refusal([](auto& g, ValueId) {
          const ValueId tokens = g.input(Port::kTokens, DType::kI32, {8}, "tokens");
          g.output(ops::embed(g, tokens, g.param("table", {9, 16})), Port::kHidden);
          g.finish(true);
        }) == "the input's gradient is made by the layer");
}

TEST_CASE("a head without gradients has no backward list") {
  CHECK(refusal([](auto& g, ValueId x) {
          const ValueId labels = g.input(Port::kLabels, DType::kI32, {8}, "labels");
          ops::linear_cross_entropy(g, ops::rms_norm(g, x, g.param("n", {16}), {1e-5}),
                                    g.param("w", {9, 16}), labels, {.with_gradients = false});
          g.finish(true);
        }) == "a head without gradients has no backward");
}

TEST_CASE("activations have the dtype of the graph, statistics at least 32 bits") {
  for (const auto& [activation, statistics] : {std::pair{DType::kF64, DType::kF64},
                                               {DType::kF32, DType::kF32},
                                               {DType::kBF16, DType::kF32}}) {
    GraphBuilder b("layer", 8, 4, {activation, activation});
    const ValueId x = b.input(Port::kHidden, activation, {8, 16}, "x");
    b.output(ops::rms_norm(b, x, b.param("n", {16}), {1e-5}), Port::kHidden);
    const LayerGraph g = b.finish(true);
    CHECK(g.at(value_named(g, "n.out")).dtype == activation);
    CHECK(g.at(value_named(g, "n.rstd")).dtype == statistics);
    CHECK(g.at(value_named(g, "d_n")).dtype == activation);
    CHECK(g.at(value_named(g, "n.out")).bytes() == 8 * 16 * dtype_bytes(activation));
  }
}

TEST_CASE("gradients of parameters have their own dtype, those of activations the activations'") {
  GraphBuilder b("head", 8, 4, {DType::kBF16, DType::kF32});
  const ValueId x = b.input(Port::kHidden, DType::kBF16, {8, 16}, "x");
  const ValueId labels = b.input(Port::kLabels, DType::kI32, {8}, "labels");
  const ValueId norm = ops::rms_norm(b, x, b.param("n", {16}), {1e-5});
  ops::linear_cross_entropy(b, norm, b.param("w", {9, 16}), labels, {});
  const LayerGraph g = b.finish(true);
  for (const char* param : {"n", "w"}) {
    CHECK(g.at(value_named(g, param)).dtype == DType::kBF16);
    CHECK(g.at(value_named(g, cat("d_", param))).dtype == DType::kF32);
    CHECK(g.at(value_named(g, cat("d_", param))).role == ValueRole::kParamGrad);
  }
  CHECK(g.at(g.find(ValueRole::kInputGrad, Port::kHidden)).dtype == DType::kBF16);
  CHECK(g.at(g.find(ValueRole::kOutput, Port::kLoss)).dtype == DType::kF64);
}

TEST_CASE("attention uses the rows of the graph, whatever its attributes say") {
  const LayerGraph g = block_graph({});
  CHECK(g.forward[3].attrs.get<AttentionAttrs>().sequence_length == 4);
}

TEST_CASE("a shape without dimensions has one element, one with an empty dimension has none") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({3, 0, 5}) == 0);
  CHECK(element_count({3, 4, 5}) == 60);
}

TEST_CASE("each port has a name that messages show") {
  CHECK(port_name(Port::kNone) == "none");
  CHECK(port_name(Port::kTokens) == "tokens");
  CHECK(port_name(Port::kPositions) == "positions");
  CHECK(port_name(Port::kStarts) == "starts");
  CHECK(port_name(Port::kLabels) == "labels");
  CHECK(port_name(Port::kHidden) == "hidden");
  CHECK(port_name(Port::kRope) == "rope");
  CHECK(port_name(Port::kLogits) == "logits");
  CHECK(port_name(Port::kLoss) == "loss");
}

}  // namespace
}  // namespace ftrun
