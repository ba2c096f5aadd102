#include "model/freeze.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "fixtures.h"
#include "graph/op_spec.h"
#include "graph/scratch.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::config;

ModelDescription model_of(const std::string& name, const TensorSplit& split = {}) {
  ModelConfig c = config(name);
  c.layers = 3;
  c.windows.resize(3);
  return build_model(c, {2, 64}, GraphMode::kTrain, {}, {}, split);
}

using List = std::vector<Op> LayerGraph::*;
constexpr List kListsOfLayer[] = {&LayerGraph::forward, &LayerGraph::input_grad,
                                  &LayerGraph::weight_grad, &LayerGraph::backward};

std::string operations_text(const ModelDescription& model) {
  std::string text;
  for (const Layer& layer : model.layers)
    for (const List list : kListsOfLayer) {
      for (const Op& op : model.graph_of(layer).*list)
        text += op_text(model.graph_of(layer), op) + "\n";
      text += "--\n";
    }
  return text;
}

/// Returns the names of the gradients that a layer's lists compute.
std::vector<std::string> gradients_of(const ModelDescription& model, size_t layer) {
  std::vector<std::string> names;
  const LayerGraph& graph = model.graph_of(model.layers[layer]);
  for (const List list : {&LayerGraph::forward, &LayerGraph::backward})
    for (const Op& op : graph.*list)
      for (const ValueId id : op.out)
        if (graph.at(id).role == ValueRole::kParamGrad) names.push_back(graph.at(id).name);
  return names;
}

size_t count_weight_gradients(const LayerGraph& graph) {
  return static_cast<size_t>(
      std::count_if(graph.backward.begin(), graph.backward.end(), [](const Op& op) {
        return op.kind == OpKind::kLinearWgrad || op.kind == OpKind::kRmsNormWgrad ||
               op.kind == OpKind::kBiasWgrad || op.kind == OpKind::kQkNormWgrad ||
               op.kind == OpKind::kEmbedWgrad;
      }));
}

constexpr const char* kFrozenModels[] = {"smollm2_135m.v4", "llama_linear.v4", "qwen2.v4",
                                         "qwen3.v4"};

TEST_CASE("if nothing is frozen the lists of operations do not change") {
  for (const char* name : kFrozenModels) {
    const ModelDescription model = model_of(name);
    CHECK(operations_text(freeze(model, [](const TensorInfo&) { return true; })) ==
          operations_text(model));
  }
}

TEST_CASE("the head computes no gradient of a frozen matrix, and needs no memory for one") {
  const ModelDescription model = model_of("qwen3.v4");
  const ModelDescription frozen = freeze(model, [](const TensorInfo&) { return false; });
  const auto last = [](const ModelDescription& of) {
    return of.graph_of(of.layers.back()).forward.back();
  };
  REQUIRE(last(model).kind == OpKind::kLinearCrossEntropy);
  CHECK(last(model).out.size() == 3);
  CHECK(last(frozen).out.size() == 2);
}

TEST_CASE("the head computes those gradients of its matrix and bias that are wanted") {
  const ModelDescription model = model_of("phi2.v4");
  const auto results = [&](const std::set<std::string>& trained) {
    const ModelDescription frozen =
        freeze(model, [&](const TensorInfo& tensor) { return trained.contains(tensor.name); });
    const LayerGraph& graph = frozen.graph_of(frozen.layers.back());
    std::vector<std::string> names;
    for (const ValueId id : graph.forward.back().out) names.push_back(graph.at(id).name);
    return join(names, " ");
  };
  const std::string all = "loss d_norm.weight.out d_lm_head.bias d_lm_head.weight";
  CHECK(results({"lm_head.weight", "lm_head.bias"}) == all);
  CHECK(results({}) == "loss d_norm.weight.out");
  CHECK(results({"lm_head.bias"}) == "loss d_norm.weight.out d_lm_head.bias");
  // The gradient of the bias comes before that of the matrix, and is scratch.
  CHECK(results({"lm_head.weight"}) == all);
  const ModelDescription frozen =
      freeze(model, [](const TensorInfo& tensor) { return tensor.name == "lm_head.weight"; });
  CHECK(gradients_of(frozen, frozen.layers.size() - 1) ==
        std::vector<std::string>{"d_lm_head.weight"});
}

TEST_CASE("stages without an embedding still find the rope table's graph") {
  const ModelDescription frozen =
      freeze(model_of("qwen2.v4"), [](const TensorInfo&) { return false; });
  REQUIRE(frozen.rope_graph >= 0);
  CHECK(frozen.graphs.at(static_cast<size_t>(frozen.rope_graph)).name == "rope");
}

/// Returns whether the tensor is the norm vector of the first block, for which backward has to run
/// through all blocks.
bool trains_first_norm(const TensorInfo& tensor) {
  return tensor.name == "model.layers.0.input_layernorm.weight";
}

TEST_CASE(
    "with all but one vector frozen no list computes another gradient of a parameter, nor what "
    "only these read") {
  for (const char* name : kFrozenModels)
    for (const int degree : {1, 2}) {
      if (degree == 2 && std::string(name).starts_with("smollm2")) continue;  // 9 heads
      INFO(name << " of " << degree << " tensor ranks");
      const ModelDescription model = model_of(name, {degree, 0, true});
      const ModelDescription frozen = freeze(model, trains_first_norm);
      CHECK(frozen.first_trained == 1);
      CHECK(gradients_of(frozen, 1).size() == 1);
      for (size_t l = 2; l < model.layers.size(); ++l) {
        const LayerGraph& before = model.graph_of(model.layers[l]);
        const LayerGraph& after = frozen.graph_of(frozen.layers[l]);
        CHECK(gradients_of(frozen, l).empty());
        CHECK(count_weight_gradients(after) == 0);
        CHECK(after.weight_grad.empty());
        CHECK(after.forward.size() == before.forward.size());
        CHECK(plan_saved(after).bytes <= plan_saved(before).bytes);
      }
      const LayerGraph& block = model.graph_of(model.layers[2]);
      CHECK(count_weight_gradients(block) > 0);
      CHECK(frozen.graph_of(frozen.layers[0]).backward.empty());  // the embedding
      // Results of norms are not recomputed any more, because only the weight gradients of linear
      // layers read them.
      CHECK(frozen.graph_of(frozen.layers[2]).backward.size() <
            block.backward.size() - count_weight_gradients(block));
    }
}

bool has_kind(const std::vector<Op>& list, OpKind kind) {
  return std::any_of(list.begin(), list.end(), [kind](const Op& op) { return op.kind == kind; });
}

TEST_CASE(
    "backward ends within the first layer that trains; earlier layers save nothing and compute "
    "nothing again") {
  for (const char* name : kFrozenModels)
    for (const RecomputeLevel level : {RecomputeLevel::kNone, RecomputeLevel::kFull}) {
      INFO(name);
      ModelConfig c = config(name);
      c.layers = 3;
      c.windows.resize(3);
      const ModelDescription model =
          build_model(c, {2, 64}, GraphMode::kTrain, {}, {.policy = {.level = level}});
      const ModelDescription frozen = freeze(model, [](const TensorInfo& tensor) {
        return tensor.name.find("layers.1.mlp.down_proj") != std::string::npos;
      });
      REQUIRE(frozen.first_trained == 2);
      for (size_t l = 0; l < 2; ++l) {
        const LayerGraph& graph = frozen.graph_of(frozen.layers[l]);
        CHECK(graph.backward.empty());
        CHECK(graph.input_grad.empty());
        CHECK(graph.weight_grad.empty());
        CHECK(plan_saved(graph).bytes == 0);
        CHECK(graph.forward.size() == model.graph_of(model.layers[l]).forward.size());
      }
      // The block with the matrix has only what the matrix needs: nothing before its
      // multiplication.
      const LayerGraph& first = frozen.graph_of(frozen.layers[2]);
      CHECK(first.find(ValueRole::kInputGrad, Port::kHidden) < 0);
      CHECK(has_kind(first.backward, OpKind::kLinearWgrad));
      CHECK_FALSE(has_kind(first.backward, OpKind::kAttentionDgrad));
      CHECK_FALSE(has_kind(first.backward, OpKind::kLinearDgrad));
      const LayerGraph& above = frozen.graph_of(frozen.layers[3]);
      CHECK(above.find(ValueRole::kInputGrad, Port::kHidden) >= 0);
      CHECK(has_kind(above.backward, OpKind::kAttentionDgrad));
    }
}

TEST_CASE(
    "if nothing trains there is no backward, and if the embedding trains all layers have one") {
  const ModelDescription model = model_of("qwen2.v4");
  const ModelDescription none = freeze(model, [](const TensorInfo&) { return false; });
  CHECK(none.first_trained == static_cast<int32_t>(none.layers.size()));
  for (const Layer& layer : none.layers) CHECK(none.graph_of(layer).backward.empty());
  const ModelDescription embedding = freeze(
      model, [](const TensorInfo& tensor) { return tensor.name == "model.embed_tokens.weight"; });
  CHECK(embedding.first_trained == 0);
  CHECK(has_kind(embedding.graph_of(embedding.layers[0]).backward, OpKind::kEmbedWgrad));
  CHECK(embedding.graph_of(embedding.layers[1]).find(ValueRole::kInputGrad, Port::kHidden) >= 0);
}

TEST_CASE("freezing one matrix removes only its own gradient, in the layers that have it") {
  const ModelDescription model = model_of("qwen2.v4");
  const ModelDescription frozen = freeze(model, [](const TensorInfo& tensor) {
    return tensor.name != "model.layers.1.mlp.down_proj.weight";
  });
  for (size_t l = 0; l < model.layers.size(); ++l) {
    std::vector<std::string> expected = gradients_of(model, l);
    if (l == 2)
      std::erase_if(expected,
                    [](const std::string& name) { return name.find("down") != std::string::npos; });
    CHECK(gradients_of(frozen, l) == expected);
    CHECK((gradients_of(frozen, l).size() == gradients_of(model, l).size()) == (l != 2));
  }
  // The other blocks still share a graph.
  CHECK(frozen.layers[1].graph == frozen.layers[3].graph);
  CHECK(frozen.layers[1].graph != frozen.layers[2].graph);
}

TEST_CASE("freezing only some of the tensors that form one matrix is refused") {
  CHECK_THROWS_WITH(freeze(model_of("qwen2.v4"),
                           [](const TensorInfo& tensor) {
                             return tensor.name.find("k_proj.weight") == std::string::npos;
                           }),
                    Catch::Contains("tensors of one matrix are frozen together"));
}

}  // namespace
}  // namespace ftrun
