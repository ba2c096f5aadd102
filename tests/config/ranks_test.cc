#include "config/ranks.h"

#include "base/error.h"
#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr const char* kFull =
    "{train_batch_size: 32, train_micro_batch_size_per_gpu: 4, gradient_accumulation_steps: 2, "
    "parallel: {tensor: 2}}";

}  // namespace

TEST_CASE(
    "the number of ranks comes from the launcher, else --nproc, else the mesh, else the batch") {
  const auto ranks = [](const std::string& text, std::optional<int64_t> world_size = {},
                        std::optional<int64_t> nproc = {}) {
    const RankCount count = count_ranks(written_of(text), world_size, nproc);
    REQUIRE(problem_texts(count.problems) == Lines{});
    return std::to_string(count.ranks) + ": " + count.rule;
  };
  REQUIRE(ranks(kFull, 16, 2) == "16: the launcher started 16 ranks");
  REQUIRE(ranks(kFull, {}, 2) == "2: --nproc 2");
  REQUIRE(ranks("parallel: {data: 3, tensor: 2}") == "6: the mesh: data 3 × tensor 2");
  REQUIRE(ranks(kFull) == "8: train_batch_size 32 / (micro 4 × accumulation 2) × tensor 2");
  REQUIRE(ranks("{train_batch_size: 32, train_micro_batch_size_per_gpu: 4, "
                "gradient_accumulation_steps: 2}") ==
          "4: train_batch_size 32 / (micro 4 × accumulation 2)");
  REQUIRE(ranks("sequence_parallel_size: 2") == "2: the mesh: data 1 × context 2");
  REQUIRE(
      ranks("train_batch_size: 32") ==
      "1: one rank: no launcher, --nproc or parallel.data, and not all batch sizes, give a number");
}

TEST_CASE("the rule for the number of ranks says whether the mesh gives it") {
  const auto names_mesh = [](const std::string& text, std::optional<int64_t> nproc = {}) {
    return count_ranks(written_of(text), {}, nproc).rule_names_mesh;
  };
  CHECK(names_mesh("parallel: {data: 3, tensor: 2}"));
  CHECK(names_mesh("parallel: {tensor: 2}"));
  CHECK_FALSE(names_mesh("parallel: {data: 3, tensor: 2}", 6));
  CHECK_FALSE(names_mesh(kFull));
  CHECK_FALSE(names_mesh("train_batch_size: 32"));
}

TEST_CASE("a batch or mesh that does not give the number of ranks is explained") {
  const auto problem = [](const std::string& text) {
    return problem_texts(count_ranks(written_of(text), {}, {}).problems);
  };
  REQUIRE(
      problem("{train_batch_size: 30, train_micro_batch_size_per_gpu: 4, "
              "gradient_accumulation_steps: 2}") ==
      Lines{"c.yaml:1:20: error: train_batch_size 30 cannot be divided by micro 4 × accumulation "
            "2 = 8\n  remedy: the quotient is the number of data-parallel ranks; or give --nproc"});
  REQUIRE(
      problem("parallel: {tensor: 4e18, pipeline: 4e18}") ==
      Lines{"c.yaml:1:1: error: tensor 4000000000000000000 × pipeline 4000000000000000000 is too "
            "large"});
  const Lines too_many{
      "c.yaml:1:18: error: the mesh: data 3000000000 is too large\n"
      "  remedy: a run has at most 1048576 ranks"};
  REQUIRE(problem("parallel: {data: 3000000000}") == too_many);
  REQUIRE(problem("parallel: {data: 1048577}").size() == 1);
  REQUIRE(problem("parallel: {data: 1048576}") == Lines{});
  REQUIRE(problem("parallel: {data: 1048576, tensor: 2}").size() == 1);
  REQUIRE(problem("parallel: {tensor: 4294967298}") ==
          Lines{"c.yaml:1:1: error: tensor 4294967298 is too large"});
  REQUIRE(problem("{train_batch_size: 9e18, train_micro_batch_size_per_gpu: 1, "
                  "gradient_accumulation_steps: 1, parallel: {tensor: 4}}")
              .size() == 1);
}

TEST_CASE("DeepSpeed's key for the tensor degree counts when ranks are counted") {
  const auto ranks = [](const std::string& text) {
    const RankCount count = count_ranks(written_of(text), {}, {});
    REQUIRE(problem_texts(count.problems) == Lines{});
    return std::to_string(count.ranks) + ": " + count.rule;
  };
  REQUIRE(ranks("{parallel: {data: 2}, tensor_parallel: {autotp_size: 3}}") ==
          "6: the mesh: data 2 × tensor 3");
  REQUIRE(ranks("tensor_parallel: {autotp_size: 4}") == "4: the mesh: data 1 × tensor 4");
  REQUIRE(ranks("{train_batch_size: 8, train_micro_batch_size_per_gpu: 2, "
                "gradient_accumulation_steps: 2, tensor_parallel: {autotp_size: 2}}") ==
          "4: train_batch_size 8 / (micro 2 × accumulation 2) × tensor 2");
  for (const char* off : {"0", "1"})
    REQUIRE(ranks(cat("{parallel: {data: 2}, tensor_parallel: {autotp_size: ", off, "}}")) ==
            "2: the mesh: data 2");
}

TEST_CASE("a mesh is printed by its degrees above 1") {
  ParallelConfig mesh;
  mesh.data = 2;
  REQUIRE(mesh_text(mesh) == "data 2");
  REQUIRE(model_degrees(mesh) == "");
  REQUIRE(model_ranks(mesh) == 1);
  mesh.tensor = 3;
  REQUIRE(mesh_text(mesh) == "data 2 × tensor 3");
  mesh.pipeline = 4;
  mesh.context = 2;
  REQUIRE(mesh_text(mesh) == "data 2 × tensor 3 × pipeline 4 × context 2");
  REQUIRE(model_ranks(mesh) == 24);
}

}  // namespace ftrun
