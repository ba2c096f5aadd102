#include "config/ranks.h"

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
  const auto ranks = [](const std::string& text, std::optional<int64_t> world = {},
                        std::optional<int64_t> nproc = {}) {
    const RankCount count = count_ranks(config_of(text), world, nproc);
    REQUIRE(texts(count.problems) == Lines{});
    return std::to_string(count.ranks) + ": " + count.rule;
  };
  REQUIRE(ranks(kFull, 16, 2) == "16: the launcher started 16 ranks");
  REQUIRE(ranks(kFull, {}, 2) == "2: --nproc 2");
  REQUIRE(ranks("parallel: {data: 3, tensor: 2}") ==
          "6: the mesh: data 3 × tensor 2 × pipeline 1 × context 1");
  REQUIRE(
      ranks(kFull) ==
      "8: train_batch_size 32 / (micro 4 × accumulation 2) × tensor 2 × pipeline 1 × context 1");
  REQUIRE(ranks("{train_batch_size: 32, train_micro_batch_size_per_gpu: 4, "
                "gradient_accumulation_steps: 2}") ==
          "4: train_batch_size 32 / (micro 4 × accumulation 2)");
  REQUIRE(ranks("sequence_parallel_size: 2") ==
          "2: the mesh: data 1 × tensor 1 × pipeline 1 × context 2");
  REQUIRE(ranks("train_batch_size: 32") ==
          "1: one rank: neither launcher, --nproc, parallel.data nor all batch sizes say more");
}

TEST_CASE("a batch or mesh that gives no number of ranks is explained") {
  const auto problem = [](const std::string& text) {
    return texts(count_ranks(config_of(text), {}, {}).problems);
  };
  REQUIRE(
      problem("{train_batch_size: 30, train_micro_batch_size_per_gpu: 4, "
              "gradient_accumulation_steps: 2}") ==
      Lines{"c.yaml:1:20: error: train_batch_size 30 cannot be divided by micro 4 × accumulation "
            "2 = 8\n  remedy: the quotient is the number of data-parallel ranks; or give --nproc"});
  REQUIRE(problem("parallel: {tensor: 4e18, pipeline: 4e18}") ==
          Lines{"c.yaml:1:1: error: tensor 4000000000000000000 × pipeline 4000000000000000000 × "
                "context 1 is too large"});
}

}  // namespace ftrun
