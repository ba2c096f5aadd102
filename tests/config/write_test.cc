#include "config/write.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/schema.h"
#include "config/schema_docs.h"
#include "corpus.h"
#include "helpers.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

// Reads a written config back and resolves it again; neither may change anything.
void require_stable(const ResolvedConfig& first, const ResolveContext& context) {
  const std::string text = effective_yaml(first.config);
  INFO(text);
  const LoadResult again = load_config_text("effective.yaml", text);
  for (const std::string& line : problem_texts(again.problems)) UNSCOPED_INFO(line);
  REQUIRE(again.ok());
  REQUIRE(with_defaults(again.written) == first.config);
  const ResolvedConfig second = resolve(again.written, context);
  REQUIRE(second.config == first.config);
  REQUIRE(second.ok());
  REQUIRE(text.size() > 1000);
}

}  // namespace

TEST_CASE("an effective config reads back as itself and says where values came from") {
  const std::string text = R"(
model: {path: "my models/a #1"}
data: {train: [a.bin, "b: c.bin"], validation: v.bin, packing: documents}
train: {steps: 100, generate: {prompt_tokens: 4}}
output_dir: "He said:\n\"yes\"\t"
optimizer: {type: AdamW, params: {lr: auto, betas: [0.9, 0.95]}}
scheduler: {type: OneCycle, params: {cycle_min_lr: 1e-7, cycle_max_lr: 1e-3}}
train_micro_batch_size_per_gpu: 2
zero_optimization: {stage: 3, max_live_parameters: 1e14}
)";
  const ResolveContext context{.world_size = 4, .for_training = true};
  const ResolvedConfig first = resolve(written_of(text), context);
  REQUIRE(problem_texts(first.problems) == Lines{});
  require_stable(first, context);
  const std::string yaml = effective_yaml(first.config);
  REQUIRE(yaml.find("\n  path: \"my models/a #1\"  # c.yaml:2:15\n") != std::string::npos);
  REQUIRE(yaml.find("\ntrain_batch_size: 8  # derived\n") != std::string::npos);
  REQUIRE(yaml.find("\n    lr: 5.0e-05  # auto at c.yaml:6:39\n") != std::string::npos);
  REQUIRE(yaml.find("\n  overlap_comm: true  # derived\n") != std::string::npos);
}

TEST_CASE("every real config that is valid has an effective config that reads back as itself",
          "[.needs-reference]") {
  const std::string folder = corpus_folder();
  int written = 0;
  for (const std::string& file : corpus_files({".json"})) {
    const LoadResult loaded = load_config({folder + "/" + file});
    // The oracle ran on two data-parallel ranks.
    const int64_t tensor =
        std::max<int64_t>(1, with_defaults(loaded.written).tensor_parallel.autotp_size);
    const ResolveContext context{.world_size = 2 * tensor, .hidden_size = 512};
    const ResolvedConfig first = resolve(loaded.written, context);
    if (!loaded.ok() || !first.ok()) continue;
    INFO(file);
    require_stable(first, context);
    ++written;
  }
  REQUIRE(written > 140);
}

TEST_CASE("every optimizer and scheduler has an effective config that reads back as itself") {
  for (size_t i = 0; i + 1 < EnumNames<OptimizerType>::kNames.size(); ++i) {
    const std::string type(EnumNames<OptimizerType>::kNames[i]);
    require_stable(
        resolve(written_of(cat("{train_batch_size: 1, optimizer: {type: ", type, "}}")), {}), {});
  }
  for (size_t i = 0; i + 1 < EnumNames<SchedulerType>::kNames.size(); ++i) {
    const std::string type(EnumNames<SchedulerType>::kNames[i]);
    const std::vector<std::string> params =
        type == "OneCycle"             ? Lines{"{cycle_min_lr: 0.1, cycle_max_lr: 1}"}
        : type == "cosine_with_min_lr" ? Lines{"{min_lr: 1e-6}", "{min_lr_rate: 0.1}"}
        : type == "warmup_stable_decay"
            ? Lines{"{num_decay_steps: 2}", "{num_decay_steps: 2, num_stable_steps: 3}"}
            : Lines{"{}"};
    for (const std::string& given : params)
      require_stable(resolve(written_of(cat("{train_batch_size: 1, scheduler: {type: ", type,
                                            ", params: ", given, "}}")),
                             {}),
                     {});
  }
}

TEST_CASE("the set of keys and defaults is frozen") {
  REQUIRE(compare_golden(testing::source_dir() + "/tests/config/config_surface.golden",
                         config_surface()) == "");
}

TEST_CASE("docs/config.md agrees with the schema") {
  REQUIRE(compare_golden(testing::source_dir() + "/docs/config.md", config_markdown()) == "");
}

TEST_CASE("the JSON Schema for editors knows every key and no other") {
  const auto schema = nlohmann::json::parse(config_json_schema());
  REQUIRE(schema.at("$schema") == "http://json-schema.org/draft-07/schema#");
  REQUIRE(schema.at("additionalProperties") == false);
  for (const Field& field : Schema::get().fields()) {
    const nlohmann::json* at = &schema;
    std::string section = field.section;
    while (!section.empty()) {
      const size_t dot = section.find('.');
      at = &at->at("properties").at(section.substr(0, dot));
      section = dot == std::string::npos ? "" : section.substr(dot + 1);
    }
    REQUIRE(at->at("properties").contains(field.name));
  }
}

TEST_CASE("every key of the schema is explained, or is ignored or refused") {
  for (const Field& field : Schema::get().fields()) {
    INFO(field.path());
    const bool plain = field.support == KeySupport::kApply;
    if (plain) REQUIRE(field.doc.size() > 10);
    // max_grad_norm is renamed before keys are read, so it has no reader.
    if (plain && field.name != "max_grad_norm") REQUIRE(field.load);
  }
}

}  // namespace ftrun
