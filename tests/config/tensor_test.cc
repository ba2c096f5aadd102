#include "base/error.h"
#include "config/ranks.h"
#include "config/write.h"
#include "helpers.h"

#include <catch2/catch.hpp>

// These tests check tensor parallelism in a config: its two names, the ranks that it needs, and
// every rule that counts data-parallel ranks.

namespace ftrun {
namespace {

const std::string kOneSequence = "train_micro_batch_size_per_gpu: 1\n";
const std::string kAutoTp = "tensor_parallel: {autotp_size: 2}\n";

ResolvedConfig resolved_on(const std::string& text, int64_t ranks) {
  return resolve(written_of(text), {.world_size = ranks});
}

// Returns the only problem of a text; fails if there is not exactly one.
std::string only_problem(const std::string& text, int64_t ranks) {
  const Lines lines = problem_texts(resolved_on(text, ranks).problems);
  for (const std::string& line : lines) UNSCOPED_INFO(line);
  REQUIRE(lines.size() == 1);
  return lines.front();
}

// Returns, for example, "T8 m1 g4 on data 2 × tensor 2"; notices are ignored.
std::string batch_and_mesh(const std::string& text, int64_t ranks) {
  const ResolvedConfig r = resolved_on(text, ranks);
  for (const Problem& p : r.problems)
    if (p.severity == Severity::kError) return to_text(p);
  const Config& c = r.config;
  return cat("T", c.train_batch_size, " m", c.train_micro_batch_size_per_gpu, " g",
             c.gradient_accumulation_steps, " on ", mesh_text(c.parallel));
}

}  // namespace

TEST_CASE("the ranks are data-parallel ranks × tensor, and batches count the former") {
  REQUIRE(batch_and_mesh("train_batch_size: 8\nparallel: {tensor: 2}", 4) ==
          "T8 m4 g1 on data 2 × tensor 2");
  REQUIRE(batch_and_mesh(
              "train_batch_size: 8\ntrain_micro_batch_size_per_gpu: 1\nparallel: {tensor: 4}", 4) ==
          "T8 m1 g8 on data 1 × tensor 4");
  REQUIRE(batch_and_mesh(
              kOneSequence + "gradient_accumulation_steps: 3\nparallel: {tensor: 3, data: 2}", 6) ==
          "T6 m1 g3 on data 2 × tensor 3");
  REQUIRE(
      batch_and_mesh(
          "train_batch_size: 9\ntrain_micro_batch_size_per_gpu: 2\nparallel: {tensor: 2}", 4) ==
      "c.yaml:1:19: error: train_batch_size 9 ≠ micro 2 × accumulation 2 × data-parallel 2 = 8\n"
      "  remedy: use train_batch_size 8 or 12");
}

TEST_CASE("data-parallel ranks are found by division if parallel.data is auto") {
  const ResolvedConfig r = resolved_on(kOneSequence + "parallel: {data: auto, tensor: 2}", 6);
  REQUIRE(r.config.parallel.data == 3);
  REQUIRE(r.lines.front().text == "auto: parallel.data = 3 (6 ranks / (tensor 2))");
  REQUIRE(resolved_on(kOneSequence + "parallel: {data: auto}", 6).lines.front().text ==
          "auto: parallel.data = 6 (6 ranks)");
}

TEST_CASE("sequence parallelism is on unless it is switched off") {
  REQUIRE(resolved_on(kOneSequence + "parallel: {tensor: 2}", 2).config.parallel.sequence);
  REQUIRE_FALSE(resolved_on(kOneSequence + "parallel: {tensor: 2, sequence: false}", 2)
                    .config.parallel.sequence);
  // The key is accepted without the others.
  REQUIRE(problem_texts(resolved_on(kOneSequence + "parallel: {sequence: false}", 2).problems) ==
          Lines{});
}

TEST_CASE("autotp_size is parallel.tensor, and both may be written when they agree") {
  const Config one = resolved_on(kOneSequence + kAutoTp, 4).config;
  REQUIRE(one.parallel.tensor == 2);
  REQUIRE(one.parallel.data == 2);
  REQUIRE(resolved_on(kOneSequence + kAutoTp + "parallel: {tensor: 2}", 4).config.parallel.tensor ==
          2);
  REQUIRE(only_problem(kOneSequence + "parallel: {tensor: 4}\n" + kAutoTp, 4) ==
          "c.yaml:3:32: error: tensor_parallel.autotp_size 2 contradicts parallel.tensor 4\n"
          "  remedy: keep one of the two");
  for (const char* off : {"0", "1"}) {
    const std::string says_nothing = cat("tensor_parallel: {autotp_size: ", off, "}\n");
    REQUIRE(problem_texts(resolved_on(kOneSequence + says_nothing, 4).problems) == Lines{});
    REQUIRE(resolved_on(kOneSequence + says_nothing, 4).config.parallel.tensor == 1);
    REQUIRE(resolved_on(kOneSequence + says_nothing + "parallel: {tensor: 4}", 4)
                .config.parallel.tensor == 4);
  }
  // The config that a run has written reads back as the same one.
  const ResolvedConfig again = resolved_on(effective_yaml(one), 4);
  REQUIRE(again.config == one);
}

TEST_CASE("if DeepSpeed would count all ranks, the notice has both numbers") {
  const std::string notice = "c.yaml:1:32: notice: train_batch_size ";
  REQUIRE(only_problem(kAutoTp + kOneSequence + "gradient_accumulation_steps: 4", 4) ==
          notice +
              "8 = micro 1 × accumulation 4 × data-parallel 2; with autotp_size 2 DeepSpeed counts "
              "all 4 ranks: train_batch_size 16 = micro 1 × accumulation 4 × 4");
  REQUIRE(only_problem(kAutoTp + "train_batch_size: 8\n" + kOneSequence, 4) ==
          notice +
              "8 = micro 1 × accumulation 4 × data-parallel 2; with autotp_size 2 DeepSpeed counts "
              "all 4 ranks: train_batch_size 8 = micro 1 × accumulation 2 × 4");
  REQUIRE(only_problem(kAutoTp + "train_batch_size: 6", 4) ==
          notice +
              "6 = micro 3 × accumulation 1 × data-parallel 2; with autotp_size 2 DeepSpeed counts "
              "all 4 ranks: it refuses train_batch_size 6");
  REQUIRE(
      only_problem(kAutoTp + "train_batch_size: auto\ntrain_micro_batch_size_per_gpu: auto", 4) ==
      notice +
          "16 = micro 8 × accumulation 1 × data-parallel 2; with autotp_size 2 DeepSpeed counts "
          "all 4 ranks: train_batch_size 32 = micro 8 × accumulation 1 × 4");
}

TEST_CASE("a batch in DeepSpeed's arithmetic is explained") {
  const std::string three =
      kAutoTp + kOneSequence + "gradient_accumulation_steps: 4\ntrain_batch_size: ";
  REQUIRE(
      only_problem(three + "8", 4) ==
      "c.yaml:1:32: notice: train_batch_size 8 = micro 1 × accumulation 4 × data-parallel 2; with "
      "autotp_size 2 DeepSpeed counts all 4 ranks: it refuses train_batch_size 8");
  REQUIRE(
      only_problem(three + "16", 4) ==
      "c.yaml:4:19: error: train_batch_size 16 ≠ micro 1 × accumulation 4 × data-parallel 2 = 8\n"
      "  remedy: write train_batch_size 8, or remove it: with autotp_size 2 DeepSpeed counts "
      "all 4 ranks (micro 1 × accumulation 4 × 4 = 16), and those of a tensor group share their "
      "sequences");
  REQUIRE(only_problem(three + "12", 4) ==
          "c.yaml:4:19: error: train_batch_size 12 ≠ micro 1 × accumulation 4 × data-parallel 2 = "
          "8\n  remedy: remove one of the three: it follows from the other two");
  // ftrun's own key does not promise DeepSpeed's arithmetic, so there is no notice.
  REQUIRE(problem_texts(resolved_on(kOneSequence + "parallel: {tensor: 2}", 4).problems) ==
          Lines{});
}

TEST_CASE("shards, replicas and secondary shards are counted in data-parallel ranks") {
  const std::string tensor = kOneSequence + "parallel: {tensor: 2";
  const auto zero = [](const std::string& keys) {
    return "}\nzero_optimization: {stage: 3, " + keys + "}";
  };
  REQUIRE(problem_texts(resolved_on(tensor + ", data_replicate: 2" + zero(""), 8).problems) ==
          Lines{});
  REQUIRE(only_problem(tensor + ", data_replicate: 8" + zero(""), 8) ==
          "c.yaml:2:39: error: 4 data-parallel ranks cannot be divided by data_replicate 8\n"
          "  remedy: use a divisor of 4");
  REQUIRE(only_problem(tensor + ", data_replicate: 4" + zero(""), 8) ==
          "c.yaml:2:39: notice: data_replicate 4 of 4 data-parallel ranks: each replica is one "
          "rank, so nothing is sharded");
  REQUIRE(resolved_on(tensor + zero("mics_shard_size: 2"), 8).config.parallel.data_replicate == 2);
  REQUIRE(only_problem(tensor + zero("mics_shard_size: 8"), 8) ==
          "c.yaml:3:48: error: 4 data-parallel ranks cannot be divided by mics_shard_size 8\n"
          "  remedy: use a divisor of 4");
  REQUIRE(problem_texts(resolved_on(tensor + zero("zero_hpz_partition_size: 2"), 8).problems) ==
          Lines{});
  REQUIRE(only_problem(tensor + zero("zero_hpz_partition_size: 8"), 8) ==
          "c.yaml:3:56: error: the 4 data-parallel ranks of a replica cannot be divided by "
          "zero_hpz_partition_size 8\n  remedy: use a divisor of 4");
  REQUIRE(only_problem(tensor + zero("zero_hpz_partition_size: 4"), 8) ==
          "c.yaml:3:56: notice: zero_hpz_partition_size 4 makes one node of all 4 data-parallel "
          "ranks of a replica: it changes nothing");
}

TEST_CASE("elasticity chooses a batch for data-parallel ranks, whatever the tensor degree") {
  const auto elastic = [](const std::string& keys) {
    return "elasticity: {enabled: true, max_train_batch_size: 32, micro_batch_sizes: [1, 2, 3], " +
           keys + "}\nparallel: {tensor: 2}";
  };
  REQUIRE(batch_and_mesh(elastic("num_gpus_per_node: 2"), 8) == "T24 m3 g2 on data 4 × tensor 2");
  REQUIRE(resolved_on(elastic("num_gpus_per_node: 2"), 8).lines.front().text ==
          "elastic: train_batch_size = 24, micro-batch 3, accumulation 2 on 4 data-parallel ranks; "
          "numbers of data-parallel ranks that can share it: 1, 2, 3, 4, 6, 8, 12, 24");
  REQUIRE(
      batch_and_mesh(elastic("num_gpus_per_node: 3"), 8) ==
      "c.yaml:1:104: error: elasticity.num_gpus_per_node 3 cannot be divided by the 2 ranks that "
      "share a model\n  remedy: write the ranks of a machine");
  REQUIRE(batch_and_mesh(elastic("num_gpus_per_node: 2, model_parallel_size: 4"), 8) ==
          "c.yaml:1:128: error: elasticity.model_parallel_size 4 contradicts tensor 2\n"
          "  remedy: remove it: it follows from parallel");
  REQUIRE(
      batch_and_mesh("elasticity: {enabled: true, max_train_batch_size: 4, micro_batch_sizes: [2], "
                     "num_gpus_per_node: 2}\nparallel: {tensor: 2}",
                     6) ==
      "c.yaml:1:23: error: elasticity: 3 data-parallel ranks cannot share train_batch_size 4 (it "
      "suits 1, 2)\n  remedy: start one of these numbers of data-parallel ranks × tensor 2, or "
      "change max_train_batch_size or micro_batch_sizes");
}

TEST_CASE("the other keys of tensor_parallel are ignored, each with its reason") {
  REQUIRE(problems_of("c.yaml",
                      "tensor_parallel:\n  autotp_size: 2\n  preset_model: llama\n"
                      "  partition_config: {layer_specs: []}\n  tp: {tp_size: 4}\n"
                      "  tp_overlap_comm: true\n  keep_module_on_host: true\n"
                      "  replace_with_kernel_inject: true\n") ==
          Lines{"c.yaml:3:3: notice: tensor_parallel: accepted without effect in ftrun: "
                "preset_model (how "
                "each matrix is split follows from the model), partition_config (how each matrix "
                "is split follows from the model), tp (autotp_size decides the degree, as in "
                "DeepSpeed), tp_overlap_comm "
                "(it would change only the speed), keep_module_on_host (ranks read their own parts "
                "of the weights), kernel_inject"});
  // The default values of these keys have no effect.
  REQUIRE(
      problems_of("c.yaml", "tensor_parallel: {tp_overlap_comm: false, kernel_inject: false}") ==
      Lines{});
  REQUIRE(
      problems_of("c.yaml", "tensor_parallel: {autotp_size: -1}") ==
      Lines{
          "c.yaml:1:32: error: tensor_parallel.autotp_size: expected a whole number of at least 0, "
          "found -1"});
  REQUIRE(problems_of("c.yaml", "tensor_parallel: {tp_size: 2}") ==
          Lines{"c.yaml:1:19: error: tensor_parallel.tp_size: unknown key (did you mean "
                "\"parallel.tensor\"?)"});
  REQUIRE(problems_of("c.yaml", "tensor_model_parallel_size: 2") ==
          Lines{"c.yaml:1:1: error: tensor_model_parallel_size: unknown key (did you mean "
                "\"parallel.tensor\"?)"});
}

}  // namespace ftrun
