#include <map>
#include <string>

#include "fixtures.h"
#include "model/size.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using nlohmann::json;

/// Returns configs of models as their makers or others have published them, with their source and
/// the number of parameters that transformers counts (tests/model/reference.py published), or the
/// key because of which ftrun refuses the config.
json published() {
  return json::parse(read_file(testing::config_path("published")));
}

TEST_CASE("published configs have the parameters of transformers' models, or are refused by key") {
  std::map<std::string, int> read;
  for (const json& row : published()) {
    INFO(row["name"]);
    const std::string text = row["config"].dump();
    const std::string refusal = testing::refusal(text);
    REQUIRE(row.contains("parameters") != row.contains("refused"));
    if (row.contains("refused")) {
      CHECK(refusal.starts_with("3: config.json:"));
      CHECK(refusal.find(row["refused"].get<std::string>()) != std::string::npos);
      continue;
    }
    REQUIRE(refusal == "accepted");
    const ModelConfig config = parse_model_config(text, "config.json");
    const ModelDescription model = build_model(config, {1, 16}, GraphMode::kEvaluate);
    CHECK(count_parameters(model).total == row["parameters"]);
    ++read[config.family];
  }
  CHECK(read["llama"] >= 15);
  for (const char* family :
       {"gpt_neox", "opt", "gpt2", "qwen2", "qwen3", "mistral", "phi", "phi3", "granite", "falcon",
        "gemma", "gemma2", "gemma3_text", "ministral3", "olmo2", "stablelm"})
    CHECK(read[family] >= 5);
  // OLMo's later models clip queries, keys and values.
  CHECK(read["olmo"] >= 3);
  CHECK(read["glm"] + read["glm4"] >= 5);
  CHECK(read["cohere"] + read["cohere2"] >= 5);
  // StarCoder 2 was published in three sizes and SmolLM3 in one. Ministral 8B was published as a
  // mistral model, before transformers had a class for its windows.
  CHECK(read["starcoder2"] >= 3);
  CHECK(read["smollm3"] >= 4);
}

}  // namespace
}  // namespace ftrun
