#include "config/elastic.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

// Returns what a config with elasticity resolves to on a number of ranks: the batch, or the first
// error.
std::string elastic_batch_text(const std::string& keys, int64_t ranks,
                               const std::string& more = "") {
  const ResolvedConfig r = resolve(written_of("elasticity: {enabled: true, " + keys + "}\n" + more),
                                   {.world_size = ranks});
  for (const Problem& p : r.problems)
    if (p.severity == Severity::kError) return to_text(p);
  return cat("T", r.config.train_batch_size, " m", r.config.train_micro_batch_size_per_gpu, " g",
             r.config.gradient_accumulation_steps);
}

// Returns the elastic batch by definition: tries every candidate that the description allows.
ElasticBatch batch_by_definition(const ElasticityConfig& e) {
  std::vector<int64_t> bases = e.micro_batch_sizes;
  int64_t common = 1;
  while (std::any_of(e.micro_batch_sizes.begin(), e.micro_batch_sizes.end(),
                     [&](int64_t m) { return common % m != 0; }))
    ++common;
  bases.push_back(common);
  ElasticBatch best;
  for (const int64_t base : bases) {
    if (base > e.max_train_batch_size) continue;
    int64_t batch = base;
    for (const int64_t factor : {1, 2, 4, 6, 12, 24, 36, 48, 60, 120, 180, 240, 360, 720, 840})
      if (base * factor <= e.max_train_batch_size) batch = base * factor;
    std::vector<int64_t> ranks;
    for (int64_t n = e.min_gpus; n <= e.max_gpus; ++n)
      for (const int64_t m : e.micro_batch_sizes)
        if (batch % (m * n) == 0) {
          ranks.push_back(n);
          break;
        }
    const bool more = ranks.size() > best.data_ranks.size();
    const bool same = ranks.size() == best.data_ranks.size() && !ranks.empty();
    const bool preferred =
        e.prefer_larger_batch ? batch > best.train_batch : batch < best.train_batch;
    if (more || (same && preferred)) best = {batch, ranks};
  }
  return best;
}

const std::string kBig =
    "max_train_batch_size: 10000, micro_batch_sizes: [8, 12, 16, 17], min_gpus: 32, "
    "max_gpus: 1500, version: 0.1";

}  // namespace

TEST_CASE("elasticity chooses the batch that suits the most numbers of ranks") {
  // These numbers are DeepSpeed's own for such limits.
  ElasticityConfig e;
  e.max_train_batch_size = 10000;
  e.micro_batch_sizes = {8, 12, 16, 17};
  e.min_gpus = 32;
  e.max_gpus = 1500;
  e.version = 0.1;
  const ElasticBatch chosen = choose_elastic_batch(e);
  REQUIRE(chosen.train_batch == 9792);
  REQUIRE(chosen.data_ranks.size() == 23);
  REQUIRE(elastic_batch_text(kBig, 64) == "T9792 m17 g9");
  REQUIRE(elastic_batch_text(
              "max_train_batch_size: 32, micro_batch_sizes: [1, 2, 3, 7], version: 0.1", 4) ==
          "T24 m3 g2");
}

TEST_CASE("elasticity agrees with its definition on many limits") {
  for (int64_t limit = 6; limit <= 400; limit += 7)
    for (const bool larger : {true, false})
      for (const std::vector<int64_t>& micros :
           {std::vector<int64_t>{1}, {2, 4, 6}, {3, 5}, {6, 4}, {1, 2, 3, 5}}) {
        ElasticityConfig e;
        e.max_train_batch_size = limit;
        e.micro_batch_sizes = micros;
        e.min_gpus = 2;
        e.max_gpus = 50;
        e.prefer_larger_batch = larger;
        for (const double version : {0.1, 0.2}) {
          e.version = version;
          const ElasticBatch chosen = choose_elastic_batch(e), expected = batch_by_definition(e);
          INFO("limit " << limit << ", micro " << micros.front() << ", larger " << larger);
          REQUIRE(chosen.train_batch == expected.train_batch);
          REQUIRE(chosen.data_ranks == expected.data_ranks);
        }
      }
}

TEST_CASE("version 0.2 of elasticity counts whole machines") {
  // 16 ranks, 8 per machine: the batch is a multiple of a machine's data-parallel ranks.
  const std::string keys =
      "max_train_batch_size: 64, micro_batch_sizes: [4, 8], min_gpus: 16, max_gpus: 16, "
      "num_gpus_per_node: 8";
  REQUIRE(elastic_batch_text(keys, 16) == "T64 m4 g1");
  REQUIRE(elastic_batch_text(keys, 16, "parallel: {tensor: 2}") == "T64 m8 g1");
  REQUIRE(elastic_batch_text(keys, 16, "parallel: {tensor: 4}") == "T64 m8 g2");
}

TEST_CASE("ranks outside the list are refused by version 0.1 and get their own batch by 0.2") {
  REQUIRE(elastic_batch_text(kBig, 128) ==
          "c.yaml:1:23: error: elasticity: 128 data-parallel ranks cannot share train_batch_size "
          "9792 (it suits 32, 34, 36, 48, 51, 64, 68, 72, 96, 102, 136, 144, 153, 192, 204, 272, "
          "288, 306, 408, 576, 612, 816, 1224)\n"
          "  remedy: start one of these numbers of ranks, or change max_train_batch_size or "
          "micro_batch_sizes");
  const std::string small = "max_train_batch_size: 32, micro_batch_sizes: [1, 2, 3]";
  const ResolvedConfig r =
      resolve(written_of("elasticity: {enabled: true, " + small + "}"), {.world_size = 7});
  REQUIRE(problem_texts(r.problems) ==
          Lines{"c.yaml:1:23: notice: elasticity: 7 data-parallel ranks cannot share "
                "train_batch_size 24 (it suits 1, 2, 3, 4, 6, 8, 12, 24); as in DeepSpeed, "
                "version 0.2 then uses train_batch_size 28 for this number of ranks only"});
  REQUIRE(r.config.train_batch_size == 28);
  REQUIRE(r.config.train_micro_batch_size_per_gpu == 2);
  REQUIRE(r.config.gradient_accumulation_steps == 2);
  REQUIRE(elastic_batch_text(small, 40) ==
          "c.yaml:1:23: error: elasticity: 40 data-parallel ranks cannot share train_batch_size 24 "
          "(it suits 1, 2, 3, 4, 6, 8, 12, 24)\n"
          "  remedy: start one of these numbers of ranks, or change max_train_batch_size or "
          "micro_batch_sizes");
}

TEST_CASE("contradictory keys of elasticity are explained") {
  const std::string both = "max_train_batch_size: 16, micro_batch_sizes: [2, 4]";
  REQUIRE(elastic_batch_text("max_train_batch_size: 16", 1) ==
          "c.yaml:1:1: error: elasticity needs micro_batch_sizes when it is enabled\n"
          "  remedy: write elasticity.micro_batch_sizes");
  REQUIRE(elastic_batch_text("max_train_batch_size: 3, micro_batch_sizes: [2, 4]", 1) ==
          "c.yaml:1:73: error: micro-batch 4 × 1 data-parallel rank is more than "
          "elasticity.max_train_batch_size 3\n"
          "  remedy: raise max_train_batch_size or remove that micro-batch size");
  REQUIRE(elastic_batch_text(both + ", version: 0.15", 1) ==
          "c.yaml:1:91: error: elasticity.version: expected 0.1 or 0.2, found 0.15\n"
          "  remedy: use 0.2");
  REQUIRE(elastic_batch_text(both + ", min_gpus: 9, max_gpus: 8", 1) ==
          "c.yaml:1:92: error: elasticity.min_gpus 9 > max_gpus 8\n"
          "  remedy: swap min_gpus and max_gpus");
  REQUIRE(elastic_batch_text(both + ", version: 0.1", 2, "parallel: {tensor: 2}") ==
          "c.yaml:1:91: error: elasticity.version 0.1 does not support model parallelism, and 2 "
          "ranks share "
          "a model\n  remedy: use 0.2");
  REQUIRE(
      elastic_batch_text(both + ", num_gpus_per_node: 3", 2, "parallel: {tensor: 2}") ==
      "c.yaml:1:101: error: elasticity.num_gpus_per_node 3 cannot be divided by the 2 ranks that "
      "share a model\n  remedy: write the ranks of a machine");
  REQUIRE(elastic_batch_text(both + ", model_parallel_size: 4", 2, "parallel: {tensor: 2}") ==
          "c.yaml:1:103: error: elasticity.model_parallel_size 4 contradicts tensor 2\n"
          "  remedy: remove it: it follows from parallel");
  std::string many = "1";
  for (int i = 2; i <= 65; ++i) many += cat(", ", i);
  REQUIRE(elastic_batch_text("max_train_batch_size: 100, micro_batch_sizes: [" + many + "]", 1) ==
          "c.yaml:1:75: error: elasticity.micro_batch_sizes holds 65 sizes, more than 64\n"
          "  remedy: keep those that run well");
}

TEST_CASE("batch keys in addition to elasticity may repeat it, be ignored, or contradict it") {
  const std::string keys = "max_train_batch_size: 8, micro_batch_sizes: [2]";
  REQUIRE(elastic_batch_text(keys, 1, "train_batch_size: 8\ngradient_accumulation_steps: 4\n") ==
          "T8 m2 g4");
  REQUIRE(elastic_batch_text(keys, 1, "train_batch_size: auto\n") == "T8 m2 g4");
  REQUIRE(elastic_batch_text(keys + ", ignore_non_elastic_batch_info: true", 2,
                             "train_batch_size: 6\n") == "T8 m2 g2");
  REQUIRE(elastic_batch_text(keys, 2, "train_micro_batch_size_per_gpu: 4\n")
              .ends_with("remedy: remove the batch keys, or write "
                         "elasticity.ignore_non_elastic_batch_info: true"));
}

TEST_CASE("fewer data-parallel ranks share the same batch, as few as elastic.min_ranks allows") {
  const auto shares = [](const std::string& keys, int64_t ranks) {
    std::vector<std::string> out;
    for (const BatchShare& share :
         list_shares_of_fewer_ranks(resolve(written_of(keys), {.world_size = ranks}).config))
      out.push_back(cat("d", share.data_ranks, " m", share.micro_batch, " g", share.accumulation));
    return join(out, ", ");
  };
  const std::string batch = "train_micro_batch_size_per_gpu: 3\ngradient_accumulation_steps: 2\n";
  // A step has 24 sequences: each of 3 ranks has 8 of them, which a micro-batch of 3 does not
  // divide.
  REQUIRE(shares(batch + "elastic: {min_ranks: 1}", 4) == "d3 m2 g4, d2 m3 g4, d1 m3 g8");
  REQUIRE(shares(batch + "elastic: {min_ranks: 3}", 4) == "d3 m2 g4");
  REQUIRE(shares(batch + "elastic: {min_ranks: 4}", 4) == "");
  REQUIRE(shares(batch, 4) == "");
  // Only whole replicas leave: elastic.min_ranks counts all four ranks that share a model. 5 does
  // not divide 36.
  REQUIRE(shares(batch + "elastic: {min_ranks: 9}\nparallel: {tensor: 2, pipeline: 2}", 24) ==
          "d4 m3 g3, d3 m3 g4");
  REQUIRE(shares("elastic: {min_ranks: 5}\ntrain_batch_size: 7\ntrain_micro_batch_size_per_gpu: 1",
                 7) == "");
  const std::string deepspeed =
      "elasticity: {enabled: true, max_train_batch_size: 32, micro_batch_sizes: [1, 2, 3, 7], "
      "min_gpus: 3, version: 0.1}\n";
  REQUIRE(shares(deepspeed, 6) == "d4 m3 g2, d3 m2 g4");
  REQUIRE(shares(deepspeed + "elastic: {min_ranks: 4}", 6) == "d4 m3 g2");
}

TEST_CASE("a run of as few ranks as elastic.min_ranks reports that no rank can be removed") {
  const ResolvedConfig r = resolve(
      written_of("train_micro_batch_size_per_gpu: 1\nelastic: {min_ranks: 3}"), {.world_size = 2});
  REQUIRE(
      problem_texts(r.problems) ==
      Lines{"c.yaml:2:22: notice: elastic.min_ranks 3 > the 2 ranks of this run, so no rank can "
            "be removed"});
  REQUIRE(list_shares_of_fewer_ranks(r.config).empty());
}

TEST_CASE("extreme keys of elasticity are resolved or refused at once") {
  REQUIRE(elastic_batch_text(
              "max_train_batch_size: 9e18, micro_batch_sizes: [9223372036854775807, 1]", 1)
              .starts_with("c.yaml:1:76: error: micro-batch 9223372036854775807 × 1"));
  REQUIRE(
      elastic_batch_text("max_train_batch_size: 9e18, micro_batch_sizes: [4000000000000000000, 3], "
                         "max_gpus: 65536",
                         1) == "T2162160 m3 g720720");
}

}  // namespace ftrun
