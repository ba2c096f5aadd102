#include "inputs/resume_policy.h"

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/import.h"
#include "config/effective_json.h"
#include "inputs/recorded_run.h"
#include "source_paths.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace ftrun {
namespace {

RunManifest recorded_run_of(const std::string& config) {
  RunManifest manifest;
  manifest.config = config;
  manifest.topology = {{"data", 2}};
  return manifest;
}

/// Returns the names in the manual's table of what a resume may change, without those in
/// parentheses. A name that begins with a dot has the same section as the one before it.
std::set<std::string> names_in_manual() {
  const std::string manual = read_file(testing::source_dir() + "/docs/errors.md");
  const size_t begin = manual.find("| may change | names |");
  REQUIRE(begin != std::string::npos);
  const std::string table = std::regex_replace(
      manual.substr(begin, manual.find("\n\n", begin) - begin), std::regex("\\([^()]*\\)"), "");
  const std::regex quoted("`([^`]+)`");
  std::set<std::string> names;
  std::string section;
  for (std::sregex_iterator it(table.begin(), table.end(), quoted), end; it != end; ++it) {
    const std::string name = (*it)[1];
    const std::string whole = name.starts_with('.') ? section + name : name;
    section = whole.substr(0, whole.rfind('.'));
    names.insert(whole);
  }
  return names;
}

TEST_CASE("the manual's table names what a resume may change, and nothing else") {
  const std::vector<std::string>& all = changeable_fields();
  REQUIRE(names_in_manual() == std::set<std::string>(all.begin(), all.end()));
}

TEST_CASE("keys whose values are compared under other names are not compared twice") {
  const RunManifest before = recorded_run_of(R"({"train": {"learning_rate": 0.1}})");
  const RunManifest now = recorded_run_of(R"({"train": {"learning_rate": 0.2}})");
  REQUIRE(check_resume("run.json", before, now, {}).empty());
}

TEST_CASE(
    "a resume may change the run's length, folder and number of ranks, and reports the changes") {
  const RunManifest before =
      recorded_run_of(R"({"train": {"steps": 4, "log": {"every": 1}}, "threads": 1})");
  RunManifest now =
      recorded_run_of(R"({"train": {"steps": 8, "log": {"every": 5}}, "threads": 2})");
  now.topology = {{"data", 3}};
  REQUIRE(check_resume("run.json", before, now, {}) ==
          std::vector<std::string>{
              "config.threads: was 1, is now 2", "config.train.log.every: was 1, is now 5",
              "config.train.steps: was 4, is now 8", "topology.data: was 2, is now 3"});
  REQUIRE(check_resume("run.json", before, before, {}).empty());
}

TEST_CASE("the degree of tensor parallelism may change, whichever name it has") {
  RunManifest before =
      recorded_run_of(R"({"parallel": {"tensor": 2}, "tensor_parallel": {"autotp_size": 2}, )"
                      R"("sequence_parallel_size": 1})");
  before.topology.emplace_back("tensor", 2);
  RunManifest now =
      recorded_run_of(R"({"parallel": {"tensor": 4}, "tensor_parallel": {"autotp_size": 0}, )"
                      R"("sequence_parallel_size": 0})");
  now.topology.emplace_back("tensor", 4);
  REQUIRE(check_resume("run.json", before, now, {}) ==
          std::vector<std::string>{"config.parallel.tensor: was 2, is now 4",
                                   "config.sequence_parallel_size: was 1, is now 0",
                                   "config.tensor_parallel.autotp_size: was 2, is now 0",
                                   "topology.tensor: was 2, is now 4"});
  // The checkpoint comes without the config that it was written under.
  CheckpointMeta saved;
  saved.topology = {{"world_size", 4}, {"data", 2}, {"tensor", 2}};
  REQUIRE(check_resume("c", recorded_run(saved, now), now, {}) ==
          std::vector<std::string>{"topology.tensor: was 2, is now 4"});
}

TEST_CASE("a resume may change the states' precision, and reports what that does to their values") {
  const RunManifest before = recorded_run_of(
      R"({"bf16": {"bf16_optimizer_states": false, "bf16_master_weights_and_grads": false}})");
  const RunManifest now = recorded_run_of(
      R"({"bf16": {"bf16_optimizer_states": true, "bf16_master_weights_and_grads": true}})");
  REQUIRE(
      check_resume("run.json", before, now, {}) ==
      std::vector<std::string>{"config.bf16.bf16_master_weights_and_grads: was false, is now true",
                               "config.bf16.bf16_optimizer_states: was false, is now true"});
  REQUIRE(conversion_notice("out/step-9", {DType::kF32, DType::kBF16, {"exp_avg", "exp_avg_sq"}}) ==
          "out/step-9: holds exp_avg, exp_avg_sq in F32; this run keeps them in BF16, each value "
          "rounded to the nearest");
  REQUIRE(conversion_notice("out/step-9", {DType::kBF16, DType::kF32, {"momentum"}}) ==
          "out/step-9: holds momentum in BF16; this run keeps it in F32, no value changes");
}

TEST_CASE(
    "a resume reports that the library of matrix multiplication changed, if the run recorded one") {
  RunManifest before = recorded_run_of("{}"), now = recorded_run_of("{}");
  now.matmul_libraries = {{"bf16", "onednn 3.2.0"}, {"fp32", "openblas 0.3.34"}};
  REQUIRE(check_resume("run.json", before, now, {}).empty());
  before.matmul_libraries = {{"bf16", "widened to fp32"}, {"fp32", "mkl"}};
  REQUIRE(check_resume("run.json", before, now, {}) ==
          std::vector<std::string>{"products.bf16: was widened to fp32, is now onednn 3.2.0",
                                   "products.fp32: was mkl, is now openblas 0.3.34"});
}

TEST_CASE("a resume may change how sums over ranks are computed, and reports it") {
  RunManifest before = recorded_run_of("{}"), now = recorded_run_of("{}");
  now.reduction = "nccl";
  REQUIRE(check_resume("run.json", before, now, {}).empty());
  before.reduction = "rank order, fp32";
  REQUIRE(check_resume("run.json", before, now, {}) ==
          std::vector<std::string>{"sums: was rank order, fp32, is now nccl"});
}

TEST_CASE(
    "a change of the results is refused unless its field is allowed, and the field's full name is "
    "required") {
  const RunManifest before =
      recorded_run_of(R"({"train": {"seed": 1}, "train_batch_size": 8, "threads_of_it": 1})");
  const RunManifest now =
      recorded_run_of(R"({"train": {"seed": 2}, "train_batch_size": 16, "threads_of_it": 2})");
  try {
    check_resume("out/run.json", before, now, {"config.train"});
    FAIL("it was admitted");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    REQUIRE(error.message() ==
            "out/run.json: this is not the run that was started there; 2 things differ:\n"
            "  config.threads_of_it: was 1, is now 2\n"
            "  config.train_batch_size: was 8, is now 16");
  }
  REQUIRE(check_resume("run.json", before, now, {"config"}).empty());
}

TEST_CASE("known fields of an imported run are compared, and unknown ones are reported") {
  const RunManifest now =
      recorded_run_of(R"({"train": {"seed": 1}, "train_batch_size": 16, )"
                      R"("optimizer": {"params": {"betas": [0.9, 0.999], "eps": 1e-08}}})");
  CheckpointMeta saved;
  saved.step = 9;
  saved.seed = 5;  // has no meaning: the other program has no such seed
  REQUIRE_FALSE(is_imported(saved));
  saved.extra[kImportRecord] = R"({"source": "DeepSpeed", "unknown": ["tokens", "seed"], "known": {
      "train_batch_size": 8, "optimizer.params.betas": [0.9, 0.95], "optimizer.params.eps": 1e-08,
      "of.another": 3, "train": 7}})";
  REQUIRE(is_imported(saved));
  REQUIRE(import_notice("out/step-9", saved) ==
          "out/step-9: was imported from DeepSpeed; not known: tokens, seed; the data continues "
          "where step 9 of this config ends");
  try {
    check_resume("c", recorded_run(saved, now), now, {});
    FAIL("it was admitted");
  } catch (const Error& error) {
    REQUIRE(error.message() ==
            "c: this is not the run that was started there; 2 things differ:\n"
            "  config.optimizer.params.betas: was [0.9,0.95], is now [0.9,0.999]\n"
            "  config.train_batch_size: was 8, is now 16");
  }
}

TEST_CASE("a checkpoint's record of the run is compared like run.json") {
  RunManifest now =
      recorded_run_of(R"({"train": {"seed": 1, "steps": 8}, "optimizer": {"lr": 0.1}})");
  now.model = {.path = "m", .bytes = 7, .fingerprint = "aa", .details = {{"family", "llama"}}};
  now.data["train"] = {.path = "d", .bytes = 9, .fingerprint = "bb", .details = {{"rows", "3"}}};
  CheckpointMeta saved;
  saved.seed = 1;
  saved.model_fingerprint = "aa";
  saved.data_fingerprint = "bb";
  saved.topology = {{"data", 4}};
  saved.extra[kConfigRecord] = R"({"train": {"seed": 1, "steps": 4}, "optimizer": {"lr": 0.1}})";
  REQUIRE(check_resume("c", recorded_run(saved, now), now, {}) ==
          std::vector<std::string>{"config.train.steps: was 4, is now 8",
                                   "topology.data: was 4, is now 2"});
  saved.seed = 5;
  saved.model_fingerprint = "cc";
  saved.data_fingerprint = "dd";
  saved.extra[kConfigRecord] = R"({"train": {"seed": 5, "steps": 4}, "optimizer": {"lr": 0.2}})";
  try {
    check_resume("c", recorded_run(saved, now), now, {});
    FAIL("it was admitted");
  } catch (const Error& error) {
    REQUIRE(error.message() ==
            "c: this is not the run that was started there; 4 things differ:\n"
            "  config.optimizer.lr: was 0.2, is now 0.1\n"
            "  config.train.seed: was 5, is now 1\n"
            "  model.fingerprint: was cc, is now aa\n"
            "  data.train.fingerprint: was dd, is now bb");
  }
  // The policy does not compare what a checkpoint lacks, except the seed, which every one has.
  CheckpointMeta bare;
  bare.seed = 2;
  REQUIRE(check_resume("c", recorded_run(bare, now), now, {"config.train.seed"}).empty());
  REQUIRE_THROWS_AS(check_resume("c", recorded_run(bare, now), now, {}), Error);
}

TEST_CASE("a key that is newer than the record and has its default counts as unchanged") {
  // The record of a run with an adapter is compared with records of versions that did not yet have
  // `magnitudes` and some other keys.
  Config config;
  config.adapter.type = AdapterType::kLora;
  const RunManifest now = recorded_run_of(effective_json(config));
  auto older = nlohmann::ordered_json::parse(now.config);
  REQUIRE(older["adapter"].erase("use_dora") == 1);
  REQUIRE(older["adapter"].erase("exclude_modules") == 1);
  REQUIRE(older["data"].erase("train_weights") == 1);
  REQUIRE(older.erase("recompute") == 1);
  const RunManifest before = recorded_run_of(older.dump());
  REQUIRE(check_resume("run.json", before, now, {}).empty());
  CheckpointMeta saved;
  saved.seed = static_cast<uint64_t>(config.train.seed);
  saved.extra[kConfigRecord] = older.dump();
  REQUIRE(check_resume("c", recorded_run(saved, now), now, {}).empty());
  config.adapter.use_dora = true;
  const RunManifest other = recorded_run_of(effective_json(config));
  for (const RunManifest& recorded : {before, recorded_run(saved, other)}) try {
      check_resume("run.json", recorded, other, {});
      FAIL("it was admitted");
    } catch (const Error& error) {
      REQUIRE(error.message() ==
              "run.json: this is not the run that was started there; 1 thing differs:\n"
              "  config.adapter.use_dora: was (none), is now true");
    }
}

TEST_CASE("data whose files were moved counts as unchanged") {
  RunManifest before = recorded_run_of(R"({"data": {"train": ["/a/x.bin"]}})");
  RunManifest now = recorded_run_of(R"({"data": {"train": ["/b/x.bin"]}})");
  before.data["train"] = {.path = "/a/x.bin", .bytes = 10, .fingerprint = "1234"};
  now.data["train"] = {.path = "/b/x.bin", .bytes = 10, .fingerprint = "1234"};
  REQUIRE(check_resume("run.json", before, now, {}).size() == 1);
  now.data["train"].fingerprint = "5678";
  REQUIRE_THROWS_AS(check_resume("run.json", before, now, {}), Error);
}

}  // namespace
}  // namespace ftrun
