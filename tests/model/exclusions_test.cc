#include "model/exclusions.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "fixtures.h"
#include "model/module_paths.h"

namespace ftrun {
namespace {

using Ineffective = std::vector<IneffectiveExclusion>;

Ineffective exclusions_without_effect(const LoraOptions& options) {
  return find_ineffective_exclusions(testing::config("smollm2_135m.v4"), options, nullptr);
}

TEST_CASE("an exclusion that takes an adapter from a module has an effect") {
  CHECK(exclusions_without_effect(
            {.target_modules = {"q_proj"}, .exclude_modules = {"layers.3.self_attn.q_proj"}})
            .empty());
  CHECK(exclusions_without_effect({.target_modules = {"all-linear"}, .exclude_pattern = ".*mlp.*"})
            .empty());
  CHECK(exclusions_without_effect({.exclude_modules = {"v_proj"}}).empty());
  // This expression would select the head if the head were not excluded.
  const LoraOptions head{.target_pattern = ".*q_proj|lm_head", .exclude_pattern = "lm_head"};
  CHECK(exclusions_without_effect(head).empty());
  CHECK(make_adapter(testing::config("smollm2_135m.v4"), head).blocks.size() == 30);
}

TEST_CASE("an exclusion of modules without adapters has no effect") {
  CHECK(exclusions_without_effect(
            {.target_modules = {"q_proj"}, .exclude_modules = {"lm_head", "down_proj"}}) ==
        Ineffective{{"lm_head", ExclusionProblem::kNoAdapter, "lm_head"},
                    {"down_proj", ExclusionProblem::kNoAdapter, "model.layers.0.mlp.down_proj"}});
  CHECK(
      exclusions_without_effect({.target_modules = {"q_proj"}, .exclude_pattern = ".*layernorm"}) ==
      Ineffective{{".*layernorm", ExclusionProblem::kNoAdapter, "model.layers.0.input_layernorm"}});
  // The first entry names modules of layers without adapters, the other a module that trains as a
  // whole.
  CHECK(exclusions_without_effect({.target_modules = {"q_proj"},
                                   .exclude_modules = {"layers.2.self_attn.q_proj"},
                                   .layers = {1}})
            .size() == 1);
  CHECK(exclusions_without_effect({.target_modules = {"all-linear"},
                                   .exclude_modules = {"up_proj"},
                                   .saved_modules = {"up_proj"}})
            .size() == 1);
}

TEST_CASE("an exclusion of a module that contains others has no effect") {
  CHECK(exclusions_without_effect(
            {.target_modules = {"all-linear"}, .exclude_modules = {"mlp", "layers.29"}}) ==
        Ineffective{{"mlp", ExclusionProblem::kHoldsOthers, "model.layers.0.mlp"},
                    {"layers.29", ExclusionProblem::kHoldsOthers, "model.layers.29"}});
}

TEST_CASE("an exclusion that names nothing gets the nearest end of a path as a suggestion") {
  CHECK(exclusions_without_effect(
            {.exclude_modules = {"q_porj", "layers.1.self_atn.k_proj", "xyz"}}) ==
        Ineffective{
            {"q_porj", ExclusionProblem::kUnknown, "q_proj"},
            {"layers.1.self_atn.k_proj", ExclusionProblem::kUnknown, "layers.1.self_attn.k_proj"},
            {"xyz", ExclusionProblem::kUnknown, ""}});
  CHECK(exclusions_without_effect({.exclude_pattern = "lm_hea"}) ==
        Ineffective{{"lm_hea", ExclusionProblem::kUnknown, "lm_head"}});
  CHECK(exclusions_without_effect({.exclude_pattern = "lm_head("})
            .empty());  // make_adapter() refuses this
}

TEST_CASE("exclusions of a multimodal model are compared with its other parts, if these are read") {
  ModelConfig config = testing::config("gemma3.v4");
  config.multimodal = "gemma3";
  const StoredShapes stored{{"vision_tower.encoder.layers.0.mlp.fc1.weight", {4, 4}},
                            {"vision_tower.encoder.layers.0.self_attn.q_proj.weight", {4, 4}}};
  const LoraOptions options{.target_modules = {"q_proj"},
                            .exclude_modules = {"encoder.layers.0.self_attn.q_proj", "fc1", "fcl",
                                                "vision_tower", "lm_head"}};
  CHECK(find_ineffective_exclusions(config, options, &stored) ==
        Ineffective{
            {"fc1", ExclusionProblem::kNoAdapter, "model.vision_tower.encoder.layers.0.mlp.fc1"},
            {"fcl", ExclusionProblem::kUnknown, "fc1"},
            {"vision_tower", ExclusionProblem::kHoldsOthers, "model.vision_tower"},
            {"lm_head", ExclusionProblem::kNoAdapter, "lm_head"}});
  CHECK(find_ineffective_exclusions(config, options, nullptr) ==
        Ineffective{{"lm_head", ExclusionProblem::kNoAdapter, "lm_head"}});
  // Exported adapters have this expression.
  CHECK(find_ineffective_exclusions(
            config, {.exclude_pattern = ".*(vision_tower|multi_modal_projector).*"}, &stored)
            .empty());
}

TEST_CASE("the decoder's modules have the paths that PEFT sees") {
  const auto has = [](const ModelConfig& config, const char* path) {
    const std::vector<std::string> modules = decoder_modules(config);
    return std::find(modules.begin(), modules.end(), path) != modules.end();
  };
  CHECK(has(testing::config("olmo.v5"), "model.layers.0.self_attn.q_proj"));
  ModelConfig norms = testing::config("stablelm.v5");
  norms.qk_norm = QkNorm::kLayerNormByHead;
  CHECK(has(norms, "model.layers.1.self_attn.k_layernorm.norms.2"));
  ModelConfig whole = testing::config("gemma3.v4");
  whole.multimodal = "gemma3";
  CHECK(has(whole, "model.language_model.layers.0.post_feedforward_layernorm"));
  CHECK(has(whole, "model.language_model.embed_tokens"));
  CHECK(has(whole, "lm_head"));
}

}  // namespace
}  // namespace ftrun
