#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "config/load.h"
#include "config/resolve.h"
#include "corpus.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

// These tests compare ftrun's verdict and resolved values for real DeepSpeed configs with
// DeepSpeed's own, and check whether the configs can run. Every difference is a reviewed row of
// corpus_differences.tsv.

namespace ftrun {
namespace {

using Json = nlohmann::json;

const std::string kTable = testing::source_dir() + "/tests/config/corpus_differences.tsv";

std::string file_text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns the context in which DeepSpeed resolved each file: a model of hidden size 4096 on GPUs
// that have bf16. DeepSpeed's rank count is that of ranks with different samples; with autotp_size,
// these are groups of ranks.
ResolveContext oracle_context(const Json& entry) {
  ResolveContext context;
  const std::string world_size = entry.at("world_size").is_string()
                                     ? entry.at("world_size").get<std::string>()
                                     : entry.at("world_size").dump();
  context.world_size = world_size.empty() ? 1 : std::stoll(world_size);
  if (entry.contains("resolved"))
    context.world_size *=
        std::max<int64_t>(1, entry.at("resolved").value("autotp_size", int64_t{0}));
  context.hidden_size = 4096;
  context.gpus = 1;
  return context;
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

// Returns the name of a device; "none" stands for an absent section too.
Json device_json(OffloadDevice d) {
  return std::string(name_of(d));
}
Json oracle_value(const std::string& key, const Json& value) {
  if (key.starts_with("offload_") && value.is_null()) return "none";
  if (key == "steps_per_print" && value.is_null()) return 0;
  return value;
}

Json our_values(const Config& c) {
  const auto written = [&](const char* path) { return c.origins.find(path) != nullptr; };
  return {
      {"train_batch_size", c.train_batch_size},
      {"micro", c.train_micro_batch_size_per_gpu},
      {"gas", c.gradient_accumulation_steps},
      {"zero_stage", c.zero.stage},
      {"fp16", c.fp16.enabled},
      {"bf16", c.bf16.enabled},
      {"gradient_clipping", c.gradient_clipping},
      {"optimizer", written("optimizer.type") ? Json(to_lower(name_of(c.optimizer.type))) : Json()},
      {"scheduler",
       written("scheduler.type") ? Json(std::string(name_of(c.scheduler.type))) : Json()},
      {"offload_optimizer", device_json(c.zero.offload_optimizer.device)},
      {"offload_param", device_json(c.zero.offload_param.device)},
      {"overlap_comm", c.zero.overlap_comm},
      {"reduce_bucket_size", c.zero.reduce_bucket_size},
      {"allgather_bucket_size", c.zero.allgather_bucket_size},
      {"prefetch_bucket_size", c.zero.prefetch_bucket_size},
      {"param_persistence_threshold", c.zero.param_persistence_threshold},
      {"sub_group_size", c.zero.sub_group_size},
      {"gather_16bit", c.zero.gather_16bit_weights_on_model_save},
      {"steps_per_print", c.steps_per_print},
      {"loss_scale", c.fp16.loss_scale},
      {"initial_scale_power", c.fp16.initial_scale_power},
      {"loss_scale_window", c.fp16.loss_scale_window},
      {"hysteresis", c.fp16.hysteresis},
      {"min_loss_scale", c.fp16.min_loss_scale},
      {"prescale_gradients", c.reduction.prescale_gradients}};
}

bool is_same_value(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

// A row holds: file, what differs, ftrun's value, DeepSpeed's value.
using Row = std::vector<std::string>;

std::vector<std::string> missing_features(const ResolvedConfig& resolved) {
  std::vector<std::string> all;
  for (const UnsupportedRequest& gap : resolved.unsupported) all.push_back(gap.feature);
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<Row> list_differences(const std::string& folder, const Json& entry) {
  const std::string file = entry.at("file");
  const LoadResult loaded = load_config({folder + "/" + file});
  const ResolvedConfig resolved = resolve(loaded.written, oracle_context(entry));
  const bool ours = loaded.ok() && resolved.ok();
  const bool theirs = entry.at("after_auto") == "OK";
  std::vector<Row> rows;
  if (ours != theirs)
    rows.push_back({file, "verdict", ours ? "valid" : "invalid", theirs ? "valid" : "invalid"});
  // DeepSpeed supports everything that its configs ask for.
  if (ours && !resolved.unsupported.empty())
    rows.push_back(
        {file, "capability", cat("not yet: ", join(missing_features(resolved), "; ")), "has it"});
  if (!ours || !theirs) return rows;
  const Json values = our_values(resolved.config);
  for (const auto& [key, value] : values.items()) {
    const Json other = oracle_value(key, entry.at("resolved").at(key));
    if (!is_same_value(value, other)) rows.push_back({file, key, value.dump(), other.dump()});
  }
  return rows;
}

// Returns the table's rows with their reasons. Lines that begin with "#" are comments.
std::map<Row, std::string> reviewed_differences() {
  std::map<Row, std::string> rows;
  for (const std::string& line : split(file_text(kTable), '\n')) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> cells = split(line, '\t');
    REQUIRE(cells.size() == 5);
    rows[{cells[0], cells[1], cells[2], cells[3]}] = cells[4];
  }
  return rows;
}

}  // namespace

TEST_CASE(
    "real JSON configs get DeepSpeed's verdict and values and run, or a reviewed reason why not",
    "[.needs-reference]") {
  const std::string folder = corpus_folder();
  const Json oracle = Json::parse(file_text(folder + "/oracle.json"));
  REQUIRE(oracle.size() == 191);
  std::map<Row, std::string> expected = reviewed_differences();
  std::string unlisted;
  for (const Json& entry : oracle)
    for (const Row& row : list_differences(folder, entry)) {
      const auto it = expected.find(row);
      if (it == expected.end())
        unlisted += join(row, "\t") + "\t?\n";
      else {
        REQUIRE(it->second.size() > 10);
        expected.erase(it);
      }
    }
  INFO("differences without a reviewed row:\n" << unlisted);
  REQUIRE(unlisted.empty());
  for (const auto& [row, reason] : expected) UNSCOPED_INFO("stale row: " << join(row, " "));
  REQUIRE(expected.empty());
}

}  // namespace ftrun
