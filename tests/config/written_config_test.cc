#include "config/written_config.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/effective_json.h"
#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr const char* kBatch = "train_batch_size: 8\n";

nlohmann::json effective_values(const Config& config) {
  return nlohmann::json::parse(effective_json(config));
}

/// Lists the keys whose value is "auto".
void add_auto_keys(const nlohmann::json& json, const std::string& path, Lines& keys) {
  if (json == "auto") keys.push_back(path);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items())
    add_auto_keys(value, path.empty() ? key : cat(path, ".", key), keys);
}

/// Returns a config text with `key: auto` for each key of the schema that accepts it.
std::string all_auto_text() {
  nlohmann::json root;
  for (const Field& field : Schema::get().fields()) {
    const bool has_auto =
        std::find(field.choices.begin(), field.choices.end(), "auto") != field.choices.end();
    // Leave out switches that are off, and keys that only some types of optimizer and scheduler
    // have.
    if ((field.type == FieldType::kChoice && !has_auto) || !field.load || !field.types.empty() ||
        field.section == "adapter" || field.section == "quantization" ||
        field.section == "elasticity" || field.type == FieldType::kText ||
        field.type == FieldType::kTextList)
      continue;
    nlohmann::json* section = &root;
    for (size_t begin = 0; begin < field.section.size();) {
      const size_t end = std::min(field.section.find('.', begin), field.section.size());
      section = &(*section)[field.section.substr(begin, end - begin)];
      begin = end + 1;
    }
    (*section)[field.name] = "auto";
  }
  return root.dump();
}

}  // namespace

TEST_CASE("a written config holds only what is written, the resolved one a value of each key") {
  const WrittenConfig written =
      written_of("train_batch_size: 8\ntrain_micro_batch_size_per_gpu: auto\ndevice: auto\n");
  CHECK(written.values().size() == 2);
  CHECK(written.get<int64_t>("train_batch_size") == 8);
  CHECK(written.origins.is_auto("train_micro_batch_size_per_gpu"));
  CHECK(written.get<int64_t>("data.sequence_length") == Config{}.data.sequence_length);
  const Config config = resolve(written, {.world_size = 2}).config;
  CHECK(config.train_micro_batch_size_per_gpu == 4);
  CHECK(config.gradient_accumulation_steps == 1);
  CHECK(config.parallel.data == 2);
  CHECK(config.parallel.virtual_stages == 1);
  // A written config can be resolved for any number of ranks.
  CHECK(resolve(written, {.world_size = 4}).config.train_micro_batch_size_per_gpu == 2);
  CHECK(written.values().size() == 2);
}

TEST_CASE("a key can be overwritten, and removed as if it had never been written") {
  WrittenConfig written = written_of("train: {seed: 3}");
  const Field& seed = Schema::get().at("train.seed");
  written.write(seed, int64_t{5}, {"elsewhere"});
  CHECK(written.get<int64_t>("train.seed") == 5);
  CHECK(to_text(written.origins.position("train.seed")) == "elsewhere");
  written.erase("train.seed");
  CHECK(written.get<int64_t>("train.seed") == 42);
  CHECK_FALSE(written.origins.is_written("train.seed"));
}

TEST_CASE("resolve() decides every auto key except eight that depend on the machine or the data") {
  const ResolvedConfig r = resolve(written_of(all_auto_text(), {}, "c.json"), {});
  for (const std::string& line : problem_texts(r.problems)) UNSCOPED_INFO(line);
  CHECK(r.ok());
  Lines open;
  add_auto_keys(effective_values(r.config), "", open);
  CHECK(open == Lines{"checkpoint.keep_best.mode", "comm.backend", "data.format",
                      "data.token_dtype", "device", "export.dtype", "kernels.attention",
                      "kernels.products"});
  // A later start decides these two again; here they have their values already.
  CHECK(r.config.auto_keys == std::set<std::string>{"checkpoint.keep_best.mode", "device"});
  CHECK(r.config.device == DeviceKind::kCpu);
}

TEST_CASE(
    "the best checkpoint has the least loss or the most accuracy, unless the config says which") {
  const auto mode = [](const std::string& best) {
    const Config config =
        resolve(written_of(cat(kBatch, "data: {validation: v}\n", best)), {}).config;
    return cat(name_of(config.checkpoint.keep_best.mode), " ",
               effective_values(config)["checkpoint"]["keep_best"]["mode"].get<std::string>());
  };
  const auto best = [](const std::string& rest) {
    return cat("checkpoint: {keep_best: {metric: validation.", rest, "}}");
  };
  CHECK(mode("") == "min auto");
  CHECK(mode(best("loss")) == "min auto");
  CHECK(mode(best("perplexity, mode: auto")) == "min auto");
  CHECK(mode(best("accuracy")) == "max auto");
  CHECK(mode(best("accuracy, mode: min")) == "min min");
  CHECK(mode(best("loss, mode: max")) == "max max");
}

TEST_CASE(
    "norms and biases are exempt from decay if no optimizer is written, unless the config says "
    "otherwise") {
  const auto exempt = [](const std::string& text) {
    const Config config = resolve(written_of(kBatch + text), {}).config;
    CHECK(effective_values(config)["train"]["weight_decay_exempt"] ==
          std::string(name_of(config.train.weight_decay_exempt)));
    return config.train.weight_decay_exempt;
  };
  const std::string optimizer = "optimizer: {type: AdamW}\n";
  CHECK(exempt("") == DecayExempt::kNormsAndBiases);
  CHECK(exempt("train: {weight_decay_exempt: auto}") == DecayExempt::kNormsAndBiases);
  CHECK(exempt("train: {weight_decay_exempt: none}") == DecayExempt::kNone);
  CHECK(exempt(optimizer) == DecayExempt::kNone);
  CHECK(exempt(optimizer + "train: {weight_decay_exempt: auto}") == DecayExempt::kNone);
  CHECK(exempt(optimizer + "train: {weight_decay_exempt: norms_and_biases}") ==
        DecayExempt::kNormsAndBiases);
}

TEST_CASE("a recorded config reads back as it was, with the values that it left to a later start") {
  const Config config =
      resolve(written_of(cat(kBatch, "train: {steps: 3}\noptimizer: {type: SGD}\n")), {}).config;
  const Config again = recorded_config(effective_json(config));
  CHECK(again == config);
  CHECK(again.auto_keys.contains("device"));
}

}  // namespace ftrun
