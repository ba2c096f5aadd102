#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/text.h"
#include "report/environment.h"
#include "report/json_depth.h"
#include "report/resume_check.h"
#include "report/run_manifest.h"
#include "report/wall_time.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::error_of;
using testing::TemporaryFolder;

constexpr const char* kDamaged =
    "restore this file, which ftrun wrote, from a copy, or move it away; a resume then "
    "compares the run with what its checkpoint records";

RunManifest example_manifest() {
  RunManifest m;
  m.build = {"0.1.0", "abc1234", "gcc 12.2.0", "2.11.0", "13.0", "2.28.9"};
  m.machine = {"node7", "Linux 6.1", "EPYC", 2, 1000, 900};
  m.gpus = {"H100"};
  m.threads = 2;
  m.gpu_driver = "580.1";
  m.matmul_libraries = {{"bf16", "widened to fp32"}, {"fp32", "openblas 0.3.34"}};
  m.reduction = "rank order, fp32";
  m.attention = "own";
  m.seed = 18446744073709551615ULL;
  m.topology = {{"pipeline", 1}, {"data", 2}};
  m.config = R"({"train":{"steps":60,"lr":1e-05},"output_dir":"runs/a"})";
  m.model = {"models/small", 269, "00000000000000aa", {{"rows", "49152"}}};
  m.data["train"] = {"data/train.bin", 4096, "00000000000000bb", {{"tokenizer", "cc"}}};
  m.data["validation"] = {"data/validation.bin", 1024, "", {}};
  m.environment = {{"OMP_NUM_THREADS", "1"}};
  m.start_time = "2000-02-29T12:34:56Z";
  m.start_state = "the model's weights";
  return m;
}

/// Returns "field: before -> now" for each difference; "*" marks those that matter for a resume.
std::vector<std::string> differences(const RunManifest& before, const RunManifest& now) {
  std::vector<std::string> out;
  for (const auto& d : compare_manifests(before, now))
    out.push_back(
        cat(d.affects_results ? "*" : "", d.field, ": ", d.earlier_value, " -> ", d.current_value));
  return out;
}

using JsonList = std::vector<std::string>;

TEST_CASE("run.json has its fields in a fixed order") {
  RunManifest m = example_manifest();
  m.exit_code = 0;
  m.exit_reason = "done";
  m.end_time = "2000-02-29T12:40:00Z";
  m.restarts = {{"2000-02-29T12:36:00Z", "rank died", 1, 20, 10}};
  m.counters = {{"skipped_steps", 3}};
  m.memory = {{"allocated", {{"device gradients", 512}}}};
  m.traffic = {{"communication", {{"program", 64}}}};
  REQUIRE(manifest_text(m) == cat(R"({
  "format": 1,
  "started": "2000-02-29T12:34:56Z",
  "start": "the model's weights",
  "ended": "2000-02-29T12:40:00Z",
  "exit_code": 0,
  "exit_reason": "done",
  "exit_rank": -1,
  "build": {
    "version": "0.1.0",
    "git_commit": "abc1234",
    "compiler": "gcc 12.2.0",
    "libtorch": "2.11.0",
    "cuda": "13.0",
    "nccl": "2.28.9"
  },
  "machine": {
    "hostname": "node7",
    "kernel": "Linux 6.1",
    "cpu_model": "EPYC",
    "cores": 2,
    "threads": 2,
    "memory_bytes": 1000,
    "memory_available_bytes": 900,
    "gpus": [
      "H100"
    ],
    "gpu_driver": "580.1"
  },
  "products": {
    "bf16": "widened to fp32",
    "fp32": "openblas 0.3.34"
  },
  "sums": "rank order, fp32",
  "attention": "own",
  "seed": 18446744073709551615,
  "topology": {
    "pipeline": 1,
    "data": 2
  },
  "model": {
    "path": "models/small",
    "bytes": 269,
    "fingerprint": "00000000000000aa",
    "details": {
      "rows": "49152"
    }
  },
  "data": {
    "train": {
      "path": "data/train.bin",
      "bytes": 4096,
      "fingerprint": "00000000000000bb",
      "details": {
        "tokenizer": "cc"
      }
    },
    "validation": {
      "path": "data/validation.bin",
      "bytes": 1024,
      "fingerprint": "",
      "details": {}
    }
  },
  "environment": {
    "OMP_NUM_THREADS": "1"
  },
  "restarts": [
    {
      "time": "2000-02-29T12:36:00Z",
      "reason": "rank died",
      "rank": 1,
      "from_step": 20,
      "to_step": 10
    }
  ],
  "counters": {
    "skipped_steps": 3
  },
  "memory": {
    "allocated": {
      "device gradients": 512
    }
  },
  "traffic": {
    "communication": {
      "program": 64
    }
  },
  "config_xxh3": ")",
                                  config_hash(m), R"(",
  "config": {
    "train": {
      "steps": 60,
      "lr": 1e-05
    },
    "output_dir": "runs/a"
  }
}
)"));
}

TEST_CASE("a manifest is read back as it was written") {
  const TemporaryFolder folder;
  RunManifest m = example_manifest();
  m.exit_code = 75;
  m.exit_rank = 3;
  m.restarts = {{"t", "signal", -1, 20, 20}};
  m.counters = {{"skipped_steps", 3}};
  m.memory = {{"allocated", {{"device gradients", 512}}}};
  m.traffic = {{"communication", {{"program", 64}}}};
  m.pipeline = {{"stage 0", {{"wait_microseconds", 5}}}};
  m.time = {{"step", {{"measured_microseconds", 7}}}};
  m.evaluations = {{"validation",
                    {{"step", 20},
                     {"loss", 0.5},
                     {"perplexity", std::numeric_limits<double>::infinity()},
                     {"tokens", 64}}}};
  m.best = RunManifest::BestRecord{"loss", 0.5, 20};
  for (const char* config : {m.config.c_str(), "train:\n  steps: 60\n", ""}) {
    m.config = config;
    put_file(folder / "run.json", manifest_text(m));
    const RunManifest back = read_manifest(folder / "run.json");
    REQUIRE(manifest_text(back) == manifest_text(m));
    REQUIRE(back.reduction == m.reduction);
    REQUIRE(back.attention == m.attention);
    REQUIRE(back.seed == m.seed);
    REQUIRE(back.restarts[0].rank == -1);
    REQUIRE(back.exit_rank == 3);
    REQUIRE(back.evaluations.at("validation").at("loss") == 0.5);
    REQUIRE(back.best->value == 0.5);
    REQUIRE(compare_manifests(m, back).empty());
  }
  m.exit_code.reset();
  put_file(folder / "run.json", manifest_text(m));
  REQUIRE_FALSE(read_manifest(folder / "run.json").exit_code);
}

TEST_CASE("a manifest that is far too large is refused before it is read") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.json";
  put_file(path, manifest_text(example_manifest()));
  std::filesystem::resize_file(path, 17 << 20);  // sparse
  const Error error = error_of([&] { read_manifest(path); });
  REQUIRE(error.code() == ExitCode::kBadInput);
  REQUIRE(error.message() == path + ": is 17.00 MiB, larger than the limit of 16.00 MiB");
}

TEST_CASE("a damaged manifest is refused with the field that is wrong") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.json";
  const auto message = [&](const std::string& text) {
    put_file(path, text);
    const Error error = error_of([&] { read_manifest(path); });
    REQUIRE(error.code() == ExitCode::kBadInput);
    REQUIRE(error.remedy() == kDamaged);
    return error.message();
  };
  REQUIRE(message("{\"format\": 1, \"st") == path + ": it is not JSON");
  REQUIRE(message("") == path + ": it is not JSON");
  REQUIRE(message(std::string(1 << 20, '[')) == path + ": it is not JSON");
  REQUIRE(message("{\"config\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}") ==
          path + ": it is not JSON");
  REQUIRE(message("[]") == path + ": the file should be an object");
  REQUIRE(message(R"({"seed":"x"})") == path + ": seed should be an integer");
  REQUIRE(message(R"({"started":1})") == path + ": started should be a string");
  REQUIRE(message(R"({"build":[]})") == path + ": build should be an object");
  REQUIRE(message(R"({"build":{"cuda":13.0}})") == path + ": build.cuda should be a string");
  REQUIRE(message(R"({"machine":{"gpus":[1]}})") ==
          path + ": machine.gpus should be a list of strings");
  REQUIRE(message(R"({"machine":{"gpus":"H100"}})") == path + ": machine.gpus should be a list");
  REQUIRE(message(R"({"topology":{"data":"2"}})") == path + ": topology.data should be an integer");
  REQUIRE(message(R"({"data":{"train":{"bytes":1.5}}})") ==
          path + ": data.train.bytes should be an integer");
  REQUIRE(message(R"({"restarts":[{},{"rank":"1"}]})") ==
          path + ": restarts[1].rank should be an integer");
  REQUIRE(message(R"({"restarts":[{"rank":9223372036854775808}]})") ==
          path + ": restarts[0].rank should be an integer of at most 9223372036854775807");
  REQUIRE(message(R"({"machine":{"cores":99999999999}})") ==
          path + ": machine.cores should be an integer of at most 2147483647");
}

TEST_CASE("a manifest of another format is refused") {
  const TemporaryFolder folder;
  put_file(folder / "run.json", R"({"format":2})");
  const Error error = error_of([&] { read_manifest(folder / "run.json"); });
  REQUIRE(error.code() == ExitCode::kBadInput);
  REQUIRE(error.message() ==
          folder / "run.json" + ": its format is 2, but this ftrun reads format 1");
  REQUIRE(error.remedy() ==
          "use the ftrun that wrote it, or start a new run in another output_dir");
}

TEST_CASE("unknown and absent fields are accepted") {
  const TemporaryFolder folder;
  put_file(folder / "run.json", R"({"new":{"a":1},"exit_code":null})");
  const RunManifest m = read_manifest(folder / "run.json");
  REQUIRE(m.seed == 0);
  REQUIRE_FALSE(m.exit_code);
}

TEST_CASE("a manifest is updated in place by any thread, and is complete at every moment") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.json";
  ManifestFile file(path, example_manifest());
  REQUIRE(read_file(path) == manifest_text(example_manifest()));
  std::thread other([&] {
    for (int i = 0; i < 20; ++i) file.update([](RunManifest& m) { ++m.counters["other"]; });
  });
  for (int i = 0; i < 20; ++i) {
    file.update([](RunManifest& m) { ++m.counters["mine"]; });
    REQUIRE_NOTHROW(read_manifest(path));
  }
  other.join();
  const RunManifest back = read_manifest(path);
  REQUIRE(back.counters == std::map<std::string, int64_t>{{"mine", 20}, {"other", 20}});
  REQUIRE(file.manifest().counters == back.counters);
  REQUIRE(posix_files().list(folder.path()) == JsonList{"run.json"});
}

TEST_CASE(
    "manifests of two starts of a run match, though time, machine, counters and exit code differ") {
  RunManifest now = example_manifest();
  now.start_time = "2001-01-01T00:00:00Z";
  now.exit_code = 1;
  now.counters["skipped_steps"] = 9;
  now.machine.hostname = "node8";
  now.environment.clear();
  REQUIRE(differences(example_manifest(), now).empty());
}

TEST_CASE("each kind of mismatch is named with both values") {
  const auto changed = [](auto change) {
    RunManifest now = example_manifest();
    change(now);
    return differences(example_manifest(), now);
  };
  REQUIRE(changed([](RunManifest& m) { m.reduction = "nccl"; }) ==
          JsonList{"*sums: rank order, fp32 -> nccl"});
  REQUIRE(changed([](RunManifest& m) { m.reduction = ""; }) == JsonList{});
  REQUIRE(changed([](RunManifest& m) { m.attention = "cudnn 9.19.0"; }) ==
          JsonList{"*attention: own -> cudnn 9.19.0"});
  REQUIRE(changed([](RunManifest& m) { m.attention = ""; }) == JsonList{});
  REQUIRE(changed([](RunManifest& m) { m.seed = 1; }) ==
          JsonList{"*seed: 18446744073709551615 -> 1"});
  REQUIRE(changed([](RunManifest& m) { m.topology[1].second = 4; }) ==
          JsonList{"*topology.data: 2 -> 4"});
  REQUIRE(changed([](RunManifest& m) { m.topology.clear(); }) ==
          JsonList{"*topology.data: 2 -> (none)", "*topology.pipeline: 1 -> (none)"});
  REQUIRE(changed([](RunManifest& m) { m.model.fingerprint = "ff"; }) ==
          JsonList{"*model.fingerprint: 00000000000000aa -> ff"});
  REQUIRE(changed([](RunManifest& m) { m.model.details["rows"] = "50000"; }) ==
          JsonList{"*model.rows: 49152 -> 50000"});
  REQUIRE(changed([](RunManifest& m) { m.data["train"].fingerprint = "ff"; }) ==
          JsonList{"*data.train.fingerprint: 00000000000000bb -> ff"});
  REQUIRE(changed([](RunManifest& m) { m.data["train"].details["tokenizer"] = "dd"; }) ==
          JsonList{"*data.train.tokenizer: cc -> dd"});
  REQUIRE(changed([](RunManifest& m) { m.data.erase("validation"); }) ==
          JsonList{"*data.validation: data/validation.bin -> (none)"});
  REQUIRE(changed([](RunManifest& m) { m.data["test"].path = "data/test.bin"; }) ==
          JsonList{"*data.test: (none) -> data/test.bin"});
  REQUIRE(changed([](RunManifest& m) { m.config = R"({"train":{"steps":80,"lr":1e-05}})"; }) ==
          JsonList{"*config.output_dir: runs/a -> (none)", "*config.train.steps: 60 -> 80"});
  REQUIRE(changed([](RunManifest& m) { m.build.libtorch = "2.12.0"; }) ==
          JsonList{"build.libtorch: 2.11.0 -> 2.12.0"});
  REQUIRE(changed([](RunManifest& m) { m.gpus = {"H200"}; }) ==
          JsonList{R"(machine.gpus: ["H100"] -> ["H200"])"});
  REQUIRE(changed([](RunManifest& m) { m.machine.cpu_model = "Xeon"; }) ==
          JsonList{"machine.cpu_model: EPYC -> Xeon"});
}

TEST_CASE("a moved file counts as the same file if its fingerprint is equal") {
  RunManifest now = example_manifest();
  now.model.path = "/elsewhere";
  now.data["train"].path = "/elsewhere";
  REQUIRE(differences(example_manifest(), now).empty());
  now.data["train"].fingerprint = "";
  now.data["train"].bytes = 4097;
  REQUIRE(differences(example_manifest(), now) ==
          JsonList{"*data.train.bytes: 4096 -> 4097",
                   "*data.train.path: data/train.bin -> /elsewhere"});
}

TEST_CASE("configs that are not JSON are compared as texts") {
  RunManifest before = example_manifest(), now = example_manifest();
  before.config = "a: 1\n";
  now.config = "a: 2\n";
  REQUIRE(differences(before, now) == JsonList{cat("*config: text with xxh3 ", config_hash(before),
                                                   " -> text with xxh3 ", config_hash(now))});
  now.config = before.config;
  REQUIRE(differences(before, now).empty());
}

TEST_CASE("a resume of another run is refused with all that differs") {
  RunManifest now = example_manifest();
  now.seed = 1;
  now.data["train"].fingerprint = "ff";
  now.build.version = "0.2.0";
  const auto all = compare_manifests(example_manifest(), now);
  const Error error = error_of([&] { refuse_other_run("runs/a/run.json", all); });
  REQUIRE(error.code() == ExitCode::kUsage);
  REQUIRE(error.message() ==
          "runs/a/run.json: this is not the run that was started there; 2 things differ:\n"
          "  data.train.fingerprint: was 00000000000000bb, is now ff\n"
          "  seed: was 18446744073709551615, is now 1");
  REQUIRE(error.remedy() ==
          "undo the change to continue that run, or admit it with --allow data.train.fingerprint "
          "(once for each field; --allow config.train admits all of train), or start a new one in "
          "another output_dir");
  REQUIRE(
      error_of([&] { refuse_other_run("r", all, {"data.train"}); }).remedy() ==
      "undo the change to continue that run, or admit it with --allow seed, or start a new one in "
      "another output_dir");
  REQUIRE(error_of([&] { refuse_other_run("r", all, {"data.train"}); }).message() ==
          "r: this is not the run that was started there; 1 thing differs:\n"
          "  seed: was 18446744073709551615, is now 1");
  REQUIRE(error_of([&] {
            refuse_other_run("r", all, {"data.tra", "see"});
          }).code() == ExitCode::kUsage);
  REQUIRE_NOTHROW(refuse_other_run("r", all, {"data.train", "seed"}));
  REQUIRE_NOTHROW(refuse_other_run("r", {}));
}

TEST_CASE("only listed environment variables are recorded") {
  for (const char* name : {"OMP_NUM_THREADS", "NCCL_DEBUG", "SLURM_JOB_ID", "RANK", "MASTER_ADDR",
                           "CUDA_VISIBLE_DEVICES", "KMP_AFFINITY", "GLOO_SOCKET_IFNAME"})
    REQUIRE(is_recorded_variable(name));
  for (const char* name : {"HOME", "PATH", "USER", "PWD", "SSH_AUTH_SOCK", "SLURM_JWT", "RANKS", "",
                           "XOMP_NUM_THREADS", "FTRUN_API_KEY", "NCCL_AUTH", "OMP_SECRET"})
    REQUIRE_FALSE(is_recorded_variable(name));
}

TEST_CASE("variables are read from the given environment, or from this process's") {
  std::array<std::string, 5> texts{"RANK=1", "HF_TOKEN=x", "OMP_PLACES=a=b", "broken",
                                   "NCCL_DEBUG="};
  std::array<char*, 6> entries{};
  for (size_t i = 0; i < texts.size(); ++i) entries[i] = texts[i].data();
  REQUIRE(
      recorded_environment(entries.data()) ==
      std::map<std::string, std::string>{{"NCCL_DEBUG", ""}, {"OMP_PLACES", "a=b"}, {"RANK", "1"}});
  ::setenv("OMP_FTRUN_TEST", "7", 1);
  REQUIRE(recorded_environment().at("OMP_FTRUN_TEST") == "7");
  ::unsetenv("OMP_FTRUN_TEST");
}

TEST_CASE("twenty planted secrets reach no manifest") {
  RunManifest m = example_manifest();
  const std::array<const char*, 10> keys{"api_key",     "password",  "hf_token",      "secret",
                                         "accessKey",   "auth",      "client_secret", "passwd",
                                         "credentials", "auth_token"};
  nlohmann::ordered_json config;
  std::string yaml;
  for (const char* key : keys) {
    config["comet"]["deep"] =
        nlohmann::ordered_json::array({config["comet"]["deep"], {{key, "hunter2"}}});
    yaml += cat("  ", key, ": hunter2\n");
  }
  m.config = config.dump();
  REQUIRE(manifest_text(m).find("hunter2") == std::string::npos);
  const std::string shown = manifest_text(m);
  size_t hidden = 0;
  for (size_t at = shown.find("(hidden)"); at != std::string::npos;
       at = shown.find("(hidden)", at + 1))
    ++hidden;
  REQUIRE(hidden == keys.size());
  m.config = "comet:\n" + yaml + "tokenizer: kept\n";
  REQUIRE(manifest_text(m).find("hunter2") == std::string::npos);
  REQUIRE(manifest_text(m).find("tokenizer: kept") != std::string::npos);
}

TEST_CASE("the depth of JSON counts only brackets outside of strings") {
  REQUIRE(nests_deeper_than("[{\"a\":[]}]", 2));
  REQUIRE_FALSE(nests_deeper_than("[{\"a\":[]}]", 3));
  REQUIRE_FALSE(nests_deeper_than(R"(["[[[[", "\"[[[", "\\"])", 1));
  REQUIRE_FALSE(nests_deeper_than("[][][]", 1));
}

TEST_CASE("times are written in UTC") {
  REQUIRE(utc_text(0) == "1970-01-01T00:00:00Z");
  REQUIRE(utc_text(951827696) == "2000-02-29T12:34:56Z");
  REQUIRE(utc_now().size() == 20);
}

TEST_CASE("text without secrets stays unchanged") {
  REQUIRE(without_secrets("a: 1\n# key: x\napi_key:\n  token : x\n") ==
          "a: 1\n# key: x\napi_key:\n  token : (hidden)\n");
  REQUIRE(without_secrets(R"({"pin_auth":1234})") == "{\n  \"pin_auth\": \"(hidden)\"\n}");
  REQUIRE(without_secrets(R"({"api_key":"","token":null,"a":{"secret":"x"}})") ==
          "{\n  \"api_key\": \"\",\n  \"token\": null,\n  \"a\": {\n    \"secret\": \"(hidden)\"\n "
          " }\n}");
}

}  // namespace
}  // namespace ftrun
