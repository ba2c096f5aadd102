#include "model/trained_table.h"

#include "model/freeze.h"

#include "fixtures.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

ModelDescription model_of(const ModelConfig& config, const Adapter& adapter = {}) {
  return build_model(config, {1, 64}, GraphMode::kTrain, {}, {}, {}, adapter);
}

ModelConfig three_blocks() {
  ModelConfig config = testing::config("qwen2.v4");
  config.layers = 3;
  config.windows.resize(3);
  return config;
}

TEST_CASE("a model that trains completely gets no table") {
  CHECK(trained_table(model_of(three_blocks())).empty());
}

TEST_CASE("adapters are listed by module, rank and blocks, with what does not train") {
  const ModelConfig config = three_blocks();
  LoraOptions options;
  options.target_modules = {"q_proj", "down_proj"};
  options.rank_pattern = {{"layers.1.self_attn.q_proj", 2}};
  options.layers = {0, 1};
  const ModelDescription whole = model_of(config, make_adapter(config, options));
  const ModelDescription model =
      freeze(whole, [](const TensorInfo& tensor) { return is_lora_name(tensor.name); });
  int64_t trained = 0, queries = 0, down = 0;
  for (const TensorInfo& tensor : model.tensors) {
    if (!tensor.trainable) continue;
    trained += tensor.numel();
    (tensor.name.find("q_proj") != std::string::npos ? queries : down) += tensor.numel();
  }
  const std::vector<std::string> lines = trained_table(model);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].starts_with("trained: " + std::to_string(trained) + " of "));
  CHECK(lines[1] == "  self_attn.q_proj  LoRA r 2 to 8  2 of 3 blocks (not 2), " +
                        std::to_string(queries) + " parameters");
  CHECK(lines[2] == "  mlp.down_proj     LoRA r 8       2 of 3 blocks (not 2), " +
                        std::to_string(down) + " parameters");
  CHECK(
      lines[3].starts_with("  not trained: embed_tokens, self_attn.k_proj, self_attn.v_proj, "
                           "self_attn.o_proj, mlp.gate_proj"));
  CHECK(lines[3].find("q_proj") == std::string::npos);
}

TEST_CASE("trained parts of the model are listed as whole modules or biases") {
  const ModelDescription model = freeze(model_of(three_blocks()), [](const TensorInfo& tensor) {
    return tensor.name == "model.embed_tokens.weight" ||
           (tensor.name.ends_with(".bias") && tensor.name.find("layers.2.") != std::string::npos);
  });
  const std::vector<std::string> lines = trained_table(model);
  REQUIRE(lines.size() == 6);
  CHECK(lines[1].starts_with("  embed_tokens      whole  "));
  CHECK(lines[2].starts_with("  self_attn.q_proj  bias   1 of 3 blocks (not 0 to 1), "));
}

}  // namespace
}  // namespace ftrun
