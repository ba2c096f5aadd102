#include <set>
#include <string>

#include "fixtures.h"
#include "graph/scratch.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::config;

constexpr const char* kConfigs[] = {"smollm2_135m.v4", "llama2.v4",       "llama3.v4",
                                    "llama_linear.v4", "mistral_nemo.v4", "mistral_window.v4",
                                    "qwen2.v4",        "qwen2_window.v4", "qwen3.v4"};

ModelDescription build_layer(const std::string& name, const RecomputeOptions& recompute,
                             GraphMode mode = GraphMode::kTrain) {
  ModelConfig small = config(name);
  small.layers = 4;
  small.windows.resize(4);
  return build_model(small, {1, 256}, mode, {}, recompute);
}

int64_t saved_bytes(const ModelDescription& model, size_t layer) {
  return plan_saved(model.graph_of(model.layers[layer])).bytes;
}

TEST_CASE(
    "every family's blocks keep less from none to selective to full, and full keeps nothing") {
  for (const char* name : kConfigs) {
    INFO(name);
    const ModelDescription none = build_layer(name, {});
    const ModelDescription selective = build_layer(name, {{RecomputeLevel::kSelective}});
    const ModelDescription full = build_layer(name, {{RecomputeLevel::kFull}});
    for (size_t block = 1; block <= 4; ++block) {
      CHECK(2 * saved_bytes(selective, block) < saved_bytes(none, block));
      CHECK(saved_bytes(selective, block) > 0);
      CHECK(saved_bytes(full, block) == 0);
    }
    // The embedding saves nothing in any case, and what a head saves is a gradient that exists
    // once.
    for (const size_t layer : {size_t{0}, size_t{5}})
      CHECK(saved_bytes(full, layer) == saved_bytes(none, layer));
  }
}

TEST_CASE("every second block recomputes activations; the blocks of a kind share one graph") {
  const ModelDescription model = build_layer("smollm2_135m.v4", {{RecomputeLevel::kFull}, 2});
  REQUIRE(model.graphs.size() == 5);
  CHECK(saved_bytes(model, 1) == 0);
  CHECK(saved_bytes(model, 2) > 0);
  CHECK(model.layers[3].graph == model.layers[1].graph);
  CHECK(model.layers[4].graph == model.layers[2].graph);
}

TEST_CASE("recompute changes no forward list, no tensor and no parameter") {
  for (const char* name : kConfigs) {
    INFO(name);
    const ModelDescription none = build_layer(name, {});
    const ModelDescription full = build_layer(name, {{RecomputeLevel::kFull}});
    CHECK(full.tensors == none.tensors);
    REQUIRE(full.layers.size() == none.layers.size());
    for (size_t l = 0; l < none.layers.size(); ++l) {
      const LayerGraph& a = none.graph_of(none.layers[l]);
      const LayerGraph& b = full.graph_of(full.layers[l]);
      REQUIRE(a.forward.size() == b.forward.size());
      for (size_t i = 0; i < a.forward.size(); ++i)
        CHECK(op_text(a, a.forward[i]) == op_text(b, b.forward[i]));
      for (size_t i = 0; i < none.layers[l].params.size(); ++i)
        CHECK(none.layers[l].params[i].value == full.layers[l].params[i].value);
    }
  }
}

TEST_CASE("evaluation has no backward, whatever is recomputed in training") {
  const ModelDescription model =
      build_layer("llama3.v4", {{RecomputeLevel::kFull}}, GraphMode::kEvaluate);
  for (const LayerGraph& graph : model.graphs) CHECK(graph.backward.empty());
}

}  // namespace
}  // namespace ftrun
