#include "model/non_decoder_modules.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using Stored = std::vector<std::pair<std::string, Dims>>;

/// Returns a module of the decoder and those of two other parts, under the names of older files.
Stored stored_modules() {
  return {{"language_model.model.layers.0.self_attn.q_proj.weight", {32, 32}},
          {"multi_modal_projector.linear_1.weight", {32, 16}},
          {"multi_modal_projector.mm_input_projection_weight", {16, 32}},
          {"vision_tower.embeddings.patch_embedding.bias", {16}},
          {"vision_tower.embeddings.patch_embedding.weight", {16, 3, 14, 14}},
          {"vision_tower.embeddings.position_embedding.weight", {4, 16}},
          {"vision_tower.encoder.layers.0.layer_norm1.weight", {16}},
          {"vision_tower.encoder.layers.0.self_attn.q_proj.bias", {16}},
          {"vision_tower.encoder.layers.0.self_attn.q_proj.weight", {16, 16}},
          {"vision_tower.encoder.layers.1.self_attn.q_proj.weight", {16, 16}}};
}

const std::string kFirst = "model.vision_tower.encoder.layers.0.self_attn.q_proj";
const std::string kSecond = "model.vision_tower.encoder.layers.1.self_attn.q_proj";

std::vector<NonDecoderTarget> targets_of(const LoraOptions& options) {
  return find_non_decoder_targets(options, stored_modules());
}

TEST_CASE(
    "an entry of target_modules names modules outside the decoder by the end of their paths") {
  using Choices = std::vector<NonDecoderTarget>;
  CHECK(targets_of({.target_modules = {"q_proj", "down_proj", "proj"}}) ==
        Choices{{"q_proj", "vision_tower", 2, kFirst}});
  CHECK(targets_of({.target_modules = {kSecond}}) ==
        Choices{{kSecond, "vision_tower", 1, kSecond}});
  CHECK(targets_of({.target_modules = {"layer_norm1", "mm_input_projection_weight"}}) ==
        Choices{
            {"layer_norm1", "vision_tower", 1, "model.vision_tower.encoder.layers.0.layer_norm1"}});
  // A module of the decoder is not among them, and the family's own names belong to the decoder.
  CHECK(targets_of({.target_modules = {"model.language_model.layers.0.self_attn.q_proj"}}).empty());
  CHECK(targets_of({}).empty());
}

TEST_CASE("all-linear matches matrices that are not embeddings, in every part") {
  CHECK(targets_of({.target_modules = {"all-linear"}}) ==
        std::vector<NonDecoderTarget>{
            {"all-linear", "multi_modal_projector", 1, "model.multi_modal_projector.linear_1"},
            {"all-linear", "vision_tower", 2, kFirst}});
}

TEST_CASE(
    "an expression is compared with the whole path in memory, whatever names the files have") {
  const LoraOptions whole{.target_pattern = R"(model\.vision_tower\..*\.1\..*q_proj)"};
  Stored renamed = stored_modules();
  for (auto& [name, shape] : renamed)
    if (!name.starts_with("language_model.")) name = "model." + name;
  const std::vector<NonDecoderTarget> found = targets_of(whole);
  REQUIRE(found.size() == 1);
  CHECK(found.front().first_module == kSecond);
  CHECK(find_non_decoder_targets(whole, renamed) == found);
  CHECK(targets_of({.target_pattern = "q_proj"}).empty());
}

TEST_CASE("layers, exclusions and fully trained modules exclude modules as in PEFT") {
  LoraOptions options{.target_modules = {"q_proj"}, .layers = {1}};
  REQUIRE(targets_of(options).size() == 1);
  CHECK(targets_of(options).front().first_module == kSecond);
  options.layers = {2};
  CHECK(targets_of(options).empty());
  // A full path counts in any layer.
  options.target_modules = {kFirst};
  CHECK(targets_of(options).size() == 1);
  CHECK(
      targets_of({.target_modules = {"q_proj"}, .exclude_modules = {"self_attn.q_proj"}}).empty());
  CHECK(targets_of({.target_modules = {"q_proj"}, .exclude_pattern = ".*vision_tower.*"}).empty());
  CHECK(targets_of({.target_modules = {"q_proj"}, .saved_modules = {"encoder"}}).empty());
  CHECK(targets_of({.target_modules = {"q_proj"}, .saved_modules = {"enc"}}).size() == 1);
}

}  // namespace
}  // namespace ftrun
