#include <algorithm>
#include <map>
#include <set>

#include "blocks.h"
#include "graph/check_graph.h"
#include "graph/cost.h"
#include "graph/op_spec.h"
#include "graph/shapes.h"
#include "ops/collective/collective.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

std::string graph_fault(const LayerGraph& g) {
  return bug_text([&] { check_graph(g); });
}

const std::string kQkv = "linear n1.out:[8,16] qkv:[32,16] -> qkv.out:[8,32]";

TEST_CASE("a value read before an operation makes it is named with its reader") {
  LayerGraph g = block_graph({});
  std::swap(g.forward[0], g.forward[1]);
  CHECK(graph_fault(g) == "block: " + kQkv + " reads n1.out before it exists");
}

TEST_CASE("forward cannot read what exists only in backward") {
  LayerGraph g = block_graph({});
  g.forward[1].in[0] = value_named(g, "d_sum");
  CHECK(graph_fault(g) ==
        "block: linear d_sum:[8,16] qkv:[32,16] -> qkv.out:[8,32] reads d_sum before it exists");
  g = block_graph({});
  g.forward.erase(g.forward.begin() + 6);
  CHECK(graph_fault(g) ==
        "block: gated_activation gu.out:[8,48] -> gated.out:[8,24] reads gu.out before it exists");
}

TEST_CASE("backward cannot read a temporary of forward") {
  LayerGraph g = block_graph({});
  g.values[static_cast<size_t>(value_named(g, "gu.out"))].role = ValueRole::kTemp;
  CHECK(graph_fault(g) ==
        "block: gated_activation gu.out:[8,48] -> gated.out.again:[8,24] reads gu.out before it "
        "exists");
}

TEST_CASE(
    "weight gradients that run after all input gradients cannot read temporaries of input "
    "gradients") {
  LayerGraph g = block_graph({});
  const std::string text =
      "block: linear_wgrad d_qkv.out:[8,32] n1.out.again:[8,16] -> d_qkv:[32,16]";
  g.values[static_cast<size_t>(value_named(g, "d_qkv.out"))].role = ValueRole::kTemp;
  CHECK(graph_fault(g) == text + " reads d_qkv.out before it exists");
  g = block_graph({});
  std::erase_if(g.input_grad, [&](const Op& op) { return op.out[0] == value_named(g, "d_x"); });
  CHECK(graph_fault(g) == "nothing");  // nothing in this layer reads it
  std::erase_if(g.input_grad, [&](const Op& op) { return op.kind == OpKind::kRopeDgrad; });
  CHECK(graph_fault(g) ==
        "block: linear_dgrad d_qkv.out:[8,32] qkv:[32,16] -> d_n1.out:[8,16] reads d_qkv.out "
        "before it exists");
}

TEST_CASE("input gradients read nothing that weight gradients compute") {
  LayerGraph g = block_graph({});
  const auto again = std::find_if(g.backward.begin(), g.backward.end(),
                                  [](const Op& op) { return op.kind == OpKind::kRmsNorm; });
  const auto reader = std::find_if(g.input_grad.begin(), g.input_grad.end(),
                                   [](const Op& op) { return op.kind == OpKind::kRmsNormDgrad; });
  reader->in[0] = again->out[0];
  CHECK(graph_fault(g) ==
        "block: rms_norm_dgrad n2.out.again:[8,16] n2.sum:[8,16] n2.rstd:[8] n2:[16] d_sum:[8,16] "
        "-> d_n2.sum:[8,16] reads n2.out.again before it exists");
}

TEST_CASE("a value is written once: by one operation, and never if it is given to the layer") {
  LayerGraph g = block_graph({});
  g.forward.push_back(g.forward[0]);
  CHECK(
      graph_fault(g) ==
      "block: rms_norm x:[8,16] n1:[16] -> n1.out:[8,16] n1.rstd:[8] writes n1.out a second time");
  g = block_graph({});
  g.forward[9].out[0] = value_named(g, "x");
  CHECK(graph_fault(g) ==
        "block: add n2.sum:[8,16] down.out:[8,16] -> x:[8,16] writes x a second time");
  g = block_graph({});
  g.backward[3].out[0] = value_named(g, "gu.out");
  CHECK(graph_fault(g) ==
        "block: gated_activation_dgrad d_gated.out:[8,24] gu.out:[8,48] -> gu.out:[8,48] writes "
        "gu.out a second time");
}

TEST_CASE(
    "a parameter's gradient is written by one operation of a layer, since lists overwrite or add "
    "as a whole") {
  LayerGraph g = block_graph({});
  g.backward.push_back(g.backward[1]);
  CHECK(graph_fault(g) ==
        "block: linear_wgrad d_sum:[8,16] gated.out.again:[8,24] -> d_down:[16,24] writes d_down "
        "a second time");
  GraphBuilder b("twice", 4, 4);
  const ValueId w = b.param("w", {3, 3});
  const ValueId x = b.input(Port::kHidden, DType::kF32, {4, 3}, "x");
  b.output(ops::linear(b, ops::linear(b, x, w), w), Port::kHidden);
  CHECK(bug_text([&] { b.finish(true); }) ==
        "twice: linear_wgrad d_w.out:[4,3] x:[4,3] -> d_w:[3,3] writes d_w a second time");
}

TEST_CASE("a wrong shape is reported with the shape that the operation needs") {
  LayerGraph g = block_graph({});
  g.values[static_cast<size_t>(value_named(g, "qkv"))].dims = {32, 15};
  CHECK(graph_fault(g) ==
        "block: linear n1.out:[8,16] qkv:[32,15] -> qkv.out:[8,32] needs N,I O,I [O] -> N,O: qkv "
        "does not have shape O,I");
  g = block_graph({});
  g.values[static_cast<size_t>(value_named(g, "gated.out"))].dims = {8, 23};
  CHECK(graph_fault(g) ==
        "block: gated_activation gu.out:[8,48] -> gated.out:[8,23] needs N,2F -> N,F: gated.out "
        "does not have shape N,F");
  g = block_graph({});
  g.values[static_cast<size_t>(value_named(g, "attention.lse"))].dims = {8, 4};
  CHECK(graph_fault(g) ==
        "block: attention rope.out:[8,32] starts:[8] -> attention.out:[8,16] attention.lse:[8,4] "
        "needs N,(H+2K)d N -> N,Hd H,N: attention.lse does not have shape H,N");
  g = block_graph({});
  g.values[static_cast<size_t>(value_named(g, "sum"))].dims = {16, 8};
  CHECK(graph_fault(g) ==
        "block: add n2.sum:[8,16] down.out:[8,16] -> sum:[16,8] needs S S -> S: sum does not have "
        "shape S");
}

TEST_CASE("operands that are missing or too many are counted") {
  LayerGraph g = block_graph({});
  g.forward[1].in.pop_back();
  CHECK(graph_fault(g) ==
        "block: linear n1.out:[8,16] -> qkv.out:[8,32] needs N,I O,I [O] -> N,O: O,I is missing");
  g = block_graph({});
  g.forward[7].in.push_back(value_named(g, "x"));
  CHECK(graph_fault(g) ==
        "block: gated_activation gu.out:[8,48] x:[8,16] -> gated.out:[8,24] needs N,2F -> N,F: x "
        "is one too many");
}

/// Returns an operation of every kind, each with a graph that contains it.
std::vector<std::pair<LayerGraph, Op>> every_kind() {
  std::vector<std::pair<LayerGraph, Op>> found;
  std::set<OpKind> kinds;
  for (const LayerGraph& g :
       {embedding_graph({}), block_graph({.biases = true, .qk_norm = true}),
        head_graph({.biases = true}), adapter_graph({.dropout = 0.5}),
        magnitude_graph({.biases = true}), scale_graph({}), softcap_graph({}), whole_norm_graph({}),
        head_norm_graph({}), split_head_graph({.biases = true}, true), split_mlp_graph({}, false),
        plain_mlp_graph({.biases = true}), exchange_graph({})}) {
    for (const auto& list : {g.forward, g.backward})
      for (const Op& op : list)
        if (kinds.insert(op.kind).second) found.emplace_back(g, op);
  }
  return found;
}

/// Returns whether no other operand of the operation has this dimension of the operand.
bool is_free(const Op& op, ValueId id, size_t dim) {
  switch (op.kind) {
    case OpKind::kEmbed:
      return id == op.in[1] && dim == 0;  // the rows of the table
    case OpKind::kEmbedWgrad:
      return id == op.out[0] && dim == 0;  // the rows of the table's gradient
    case OpKind::kRope:
    case OpKind::kRopeDgrad:
      return id == op.in[1] && dim == 1;  // the rotating elements of a head
    case OpKind::kBiasWgrad:
      return id == op.in[0] && dim == 0;  // the tokens that are summed
    case OpKind::kLoraUp:                 // the columns of a part
      return dim == 0 && std::find(op.in.begin() + 2, op.in.end(), id) != op.in.end();
    case OpKind::kLoraUpDgrad:
      if (id == op.in[0]) return dim == 1;
      return dim == 0 && std::find(op.in.begin() + 1, op.in.end(), id) != op.in.end();
    case OpKind::kDoraSquaredLengths:
      return id == op.in[0] &&
             dim == 0;  // the rows of the weight, which may be more than those of all parts
    case OpKind::kLoraUpWgrad:
      if (id == op.in[0]) return dim == 1;
      return dim == 0 && std::find(op.out.begin(), op.out.end(), id) != op.out.end();
    default:
      return false;
  }
}

TEST_CASE(
    "every kind accepts its own shapes and refuses any one operand with another dimension or "
    "rank") {
  const auto kinds = every_kind();
  CHECK(kinds.size() == kOpKinds);
  for (const auto& [graph, op] : kinds) {
    INFO(op_text(graph, op));
    CHECK(shape_fault(graph, op).empty());
    std::vector<ValueId> operands = op.in;
    operands.insert(operands.end(), op.out.begin(), op.out.end());
    for (const ValueId id : operands) {
      INFO(graph.at(id).name);
      for (size_t dim = 0; dim < graph.at(id).dims.size(); ++dim) {
        LayerGraph changed = graph;
        changed.values[static_cast<size_t>(id)].dims[dim] += 1;
        CHECK(shape_fault(changed, op).empty() == is_free(op, id, dim));
      }
      LayerGraph changed = graph;
      changed.values[static_cast<size_t>(id)].dims.push_back(1);
      CHECK_FALSE(shape_fault(changed, op).empty());
    }
  }
}

TEST_CASE(
    "norms, activations, magnitudes, dropout and all-gathers are cheap; rotations, additions, "
    "dropout, all-reduces and the gradient of an activation may run in place") {
  std::set<OpKind> cheap;
  std::map<OpKind, int> in_place;
  for (const auto& [graph, op] : every_kind()) {
    if (is_cheap(op.kind)) cheap.insert(op.kind);
    if (op_spec(op.kind).in_place_input >= 0) in_place[op.kind] = op_spec(op.kind).in_place_input;
  }
  CHECK(cheap == std::set<OpKind>{OpKind::kRmsNorm, OpKind::kAddRmsNorm, OpKind::kLayerNorm,
                                  OpKind::kActivation, OpKind::kGatedActivation, OpKind::kDoraScale,
                                  OpKind::kDropout, OpKind::kScale, OpKind::kAllGather});
  CHECK(in_place == std::map<OpKind, int>{{OpKind::kRope, 0},
                                          {OpKind::kRopeDgrad, 0},
                                          {OpKind::kAdd, 0},
                                          {OpKind::kScale, 0},
                                          {OpKind::kSoftcap, 0},
                                          {OpKind::kSoftcapDgrad, 0},
                                          {OpKind::kLinearDgrad, 2},
                                          {OpKind::kLoraUp, 0},
                                          {OpKind::kDoraScale, 0},
                                          {OpKind::kDoraScaleDgrad, 0},
                                          {OpKind::kDropout, 0},
                                          {OpKind::kActivationDgrad, 1},
                                          {OpKind::kGatedActivationDgrad, 1},
                                          {OpKind::kAllReduce, 0}});
}

TEST_CASE("collectives are the kinds of communication, do no arithmetic and move their operands") {
  std::set<std::string_view> names;
  for (const auto& [graph, op] : every_kind()) {
    if (!is_collective(op.kind)) continue;
    names.insert(op_name(op.kind));
    CHECK(op_flops(graph, op) == 0.0);
    CHECK(traffic_bytes(graph, op) == graph.at(op.in[0]).bytes() + graph.at(op.out[0]).bytes());
    CHECK(op.workspace == -1);
  }
  CHECK(names == std::set<std::string_view>{"all_reduce", "all_gather", "reduce_scatter",
                                            "all_to_all", "shift"});
}

TEST_CASE("an all-gather's blocks are adjacent or apart, and have no other layout") {
  GraphBuilder b("logits", 8, 4);
  const ValueId x = b.input(Port::kHidden, DType::kF32, {8, 16}, "x");
  const ValueId y = ops::linear(b, x, b.param("w", {5, 16}));
  b.output(ops::all_gather_blocks(b, y, along_tensor(3)), Port::kLogits);
  LayerGraph g = b.finish(false);
  Dims& dims = g.values.back().dims;
  CHECK(dims == Dims{3, 8, 5});
  dims = {24, 5};
  CHECK(graph_fault(g) == "nothing");
  dims = {8, 3, 5};
  CHECK(graph_fault(g) ==
        "logits: all_gather w.out:[8,5] -> w.out.gathered:[8,3,5] needs S -> tS: "
        "w.out.gathered does not have shape tS");
}

TEST_CASE("an operation may change a value that it reads, unless the value is given to the layer") {
  LayerGraph g = split_head_graph({}, true);
  CHECK(graph_fault(g) == "nothing");
  // Change the second chunk's loss so that it does not add to the first one's.
  const auto second = std::find_if(g.forward.rbegin(), g.forward.rend(), [](const Op& op) {
    return op.kind == OpKind::kVocabularyCrossEntropy;
  });
  second->in.resize(6);
  CHECK_THAT(graph_fault(g), Catch::EndsWith("writes loss a second time"));
  g = split_head_graph({}, true);
  g.forward.back().in[6] = g.forward.back().out[0] = value_named(g, "labels");
  CHECK_THAT(graph_fault(g), Catch::EndsWith("writes labels a second time"));
}

TEST_CASE("every kind has a unique name") {
  std::set<std::string_view> names;
  for (const auto& [graph, op] : every_kind()) names.insert(op_name(op.kind));
  CHECK(names.size() == kOpKinds);
  CHECK(op_name(OpKind::kEmbed) == "embed");
  CHECK(op_name(OpKind::kLinearCrossEntropy) == "linear_cross_entropy");
}

}  // namespace
}  // namespace ftrun
