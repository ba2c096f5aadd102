#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "config/load.h"
#include "config/ranks.h"
#include "helpers.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

// These tests read the example configs of ftrun as a user does.

namespace ftrun {
namespace {

std::map<std::string, std::filesystem::path> examples() {
  std::map<std::string, std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_dir() + "/configs"))
    if (entry.path().extension() == ".yaml") out[entry.path().stem()] = entry.path();
  return out;
}

int64_t ranks_of(const std::string& name) {
  if (name.starts_with("3d")) return 8;
  return name == "hybrid" || name == "tp2-zero3" ? 4 : 2;
}

}  // namespace

TEST_CASE("every example config is free of problems and trains on as many ranks as it says") {
  for (const auto& [name, path] : examples()) {
    INFO(path.string());
    const LoadResult loaded = load_config({path});
    REQUIRE(problem_texts(loaded.problems) == Lines{});
    const RankCount count = count_ranks(loaded.written, {}, {});
    REQUIRE(problem_texts(count.problems) == Lines{});
    REQUIRE(count.ranks == ranks_of(name));
    const ResolvedConfig r = resolve(
        loaded.written, {.world_size = count.ranks, .hidden_size = 576, .for_training = true});
    REQUIRE(problem_texts(r.problems) == Lines{});
    REQUIRE(r.config.output_dir == "runs/" + name);
    REQUIRE(r.unsupported.empty());
    // 2 tensor ranks divide the heads of one model, but not those of the other.
    REQUIRE(r.config.model.path == (name.starts_with("tp2") || name.starts_with("3d")
                                        ? "models/smollm2-135m-12-heads"
                                        : "models/smollm2-135m"));
  }
}

TEST_CASE("every example config opens by saying what it does and how to start it") {
  for (const auto& [name, path] : examples()) {
    INFO(path.string());
    std::ifstream in(path);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    REQUIRE(text.starts_with("# "));
    REQUIRE(text.find("\n# ") < 112);
    REQUIRE(text.find("\n#   build/release/bin/ftrun --config configs/" + name + ".yaml\n") !=
            std::string::npos);
  }
}

TEST_CASE("there is an example for every memory strategy, and it asks for what its name says") {
  const auto all = examples();
  const auto config = [&](const std::string& name) {
    REQUIRE(all.count(name) == 1);
    return with_defaults(load_config({all.at(name)}).written);
  };
  REQUIRE(config("zero1").zero.stage == 1);
  REQUIRE(config("zero2").zero.stage == 2);
  REQUIRE(config("zero3").zero.stage == 3);
  REQUIRE(config("zero3-offload").zero.offload_param.device == OffloadDevice::kCpu);
  REQUIRE(config("zero3-offload").zero.offload_optimizer.device == OffloadDevice::kCpu);
  REQUIRE(config("zero3-offload").recompute.policy == RecomputeLevel::kFull);
  REQUIRE(config("zero3-nvme").zero.offload_param.device == OffloadDevice::kNvme);
  REQUIRE(config("zero3-nvme").zero.offload_optimizer.device == OffloadDevice::kNvme);
  REQUIRE(config("fp16").fp16.enabled);
  REQUIRE(config("bf16").bf16.enabled);
  REQUIRE(config("hybrid").parallel.data_replicate == 2);
  REQUIRE(mesh_text(config("tp2").parallel) == "data 1 × tensor 2");
  REQUIRE(mesh_text(config("tp2-zero3").parallel) == "data 2 × tensor 2");
  REQUIRE(config("tp2-zero3").zero.stage == 3);
  REQUIRE(mesh_text(config("pp2-1f1b").parallel) == "data 1 × pipeline 2");
  REQUIRE(config("pp2-1f1b").parallel.schedule == PipelineSchedule::k1F1B);
  REQUIRE(mesh_text(config("pp2-zb").parallel) == "data 1 × pipeline 2");
  REQUIRE(config("pp2-zb").parallel.schedule == PipelineSchedule::kZbH1);
  for (const char* name : {"3d", "3d-zero3"})
    REQUIRE(mesh_text(config(name).parallel) == "data 2 × tensor 2 × pipeline 2");
  REQUIRE(config("3d").zero.stage == 1);
  REQUIRE(config("3d-zero3").zero.stage == 3);
}

}  // namespace ftrun
