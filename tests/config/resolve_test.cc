#include "config/resolve.h"

#include <filesystem>
#include <functional>
#include <set>

#include "base/error.h"
#include "helpers.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

ResolvedConfig resolved(const std::string& text, ResolveContext context = {}) {
  return resolve(written_of(text), context);
}

std::string batch_text(const Config& c) {
  return cat("T", c.train_batch_size, " m", c.train_micro_batch_size_per_gpu, " g",
             c.gradient_accumulation_steps);
}

// Returns the batch of a config on `ranks` data-parallel ranks, or its first problem.
std::string resolved_batch_text(const std::string& text, int64_t ranks = 4) {
  const ResolvedConfig r = resolved(text, {.world_size = ranks});
  return r.problems.empty() ? batch_text(r.config) : to_text(r.problems.front());
}

bool has_line(const ResolvedConfig& r, const std::string& line) {
  for (const ResolvedLine& l : r.lines)
    if (l.text == line) return true;
  for (const ResolvedLine& l : r.lines) UNSCOPED_INFO(l.text);
  return false;
}

constexpr const char* kT = "train_batch_size: ";
constexpr const char* kM = "train_micro_batch_size_per_gpu: ";
constexpr const char* kG = "gradient_accumulation_steps: ";

}  // namespace

TEST_CASE("batch sizes follow from each other as in DeepSpeed") {
  REQUIRE(resolved_batch_text(cat("{", kT, 32, ", ", kM, 2, "}")) == "T32 m2 g4");
  REQUIRE(resolved_batch_text(cat("{", kT, 32, ", ", kG, 2, "}")) == "T32 m4 g2");
  REQUIRE(resolved_batch_text(cat("{", kM, 2, ", ", kG, 3, "}")) == "T24 m2 g3");
  REQUIRE(resolved_batch_text(cat(kT, 32)) == "T32 m8 g1");
  REQUIRE(resolved_batch_text(cat(kM, 2)) == "T8 m2 g1");
  REQUIRE(resolved_batch_text(cat("{", kT, 8, ", ", kM, "2.0, ", kG, 1, "}")) == "T8 m2 g1");
}

TEST_CASE("contradictory batch sizes are explained with their arithmetic") {
  REQUIRE(resolved_batch_text(cat("{", kT, 8, ", ", kM, 2, ", ", kG, 1, "}"), 2) ==
          "c.yaml:1:20: error: train_batch_size 8 ≠ micro 2 × accumulation 1 × data-parallel 2 = "
          "4\n  remedy: remove one of the three: it follows from the other two");
  REQUIRE(resolved_batch_text(cat(kT, 30)) ==
          "c.yaml:1:19: error: train_batch_size 30 ≠ micro 7 × accumulation 1 × data-parallel 4 = "
          "28\n  remedy: use train_batch_size 28 or 32");
  REQUIRE(resolved_batch_text(cat("{", kT, 30, ", ", kM, 2, "}")) ==
          "c.yaml:1:20: error: train_batch_size 30 ≠ micro 2 × accumulation 3 × data-parallel 4 = "
          "24\n  remedy: use train_batch_size 24 or 32");
  REQUIRE(resolved_batch_text(cat(kT, 2)) ==
          "c.yaml:1:19: error: train_batch_size 2 < accumulation 1 × data-parallel 4: less than "
          "one sequence for each rank and micro-batch\n  remedy: use train_batch_size 4 or a "
          "multiple of it");
  REQUIRE(resolved_batch_text(cat("{", kT, 32, ", ", kM, 16, "}")) ==
          "c.yaml:1:20: error: train_batch_size 32 < micro 16 × data-parallel 4 = 64: less than "
          "one micro-batch for each rank\n  remedy: use train_batch_size 64 or a multiple of it");
  REQUIRE(resolved_batch_text(cat("{", kM, "4e18, ", kG, "4e18}")) ==
          "c.yaml:1:34: error: micro 4000000000000000000 × accumulation 4000000000000000000 × "
          "data-parallel 4 overflows 64 bits\n  remedy: use smaller values");
  REQUIRE(resolved_batch_text("{}") ==
          "config: error: no batch size is given\n"
          "  remedy: write train_micro_batch_size_per_gpu (sequences a rank computes at once) or "
          "train_batch_size (sequences of an optimizer step)");
  REQUIRE(
      resolved_batch_text(cat(kG, 2)).starts_with("c.yaml:1:30: error: no batch size is given"));
}

TEST_CASE("automatic batch sizes follow from what is written, else from Hugging Face's defaults") {
  const ResolvedConfig all =
      resolved(cat("{", kT, "auto, ", kM, "auto, ", kG, "auto}"), {.world_size = 2});
  REQUIRE(batch_text(all.config) == "T16 m8 g1");
  REQUIRE(
      has_line(all, "auto: train_batch_size = 16 (micro 8 × accumulation 1 × data-parallel 2)"));
  REQUIRE(has_line(all, "auto: train_micro_batch_size_per_gpu = 8 (Hugging Face's default)"));
  REQUIRE(has_line(all, "auto: gradient_accumulation_steps = 1 (Hugging Face's default)"));
  const ResolvedConfig some =
      resolved(cat("{", kT, "32, ", kM, "auto, ", kG, "2}"), {.world_size = 2});
  REQUIRE(batch_text(some.config) == "T32 m8 g2");
  REQUIRE(has_line(some,
                   "auto: train_micro_batch_size_per_gpu = 8 (train_batch_size 32 / "
                   "accumulation 2 / data-parallel 2)"));
}

TEST_CASE("automatic precision is bf16 on GPUs unless fp16 is enabled, and fp32 on CPUs") {
  const auto precision = [](const std::string& keys, int gpus) {
    const ResolvedConfig r = resolved(cat("{train_batch_size: 1, ", keys, "}"), {.gpus = gpus});
    return cat(r.config.bf16.enabled ? "bf16" : "", r.config.fp16.enabled ? "fp16" : "");
  };
  const std::string both = "bf16: {enabled: auto}, fp16: {enabled: auto}";
  CHECK(precision(both, 1) == "bf16");
  CHECK(precision(both, 0).empty());
  CHECK(precision(cat("device: cpu, ", both), 1).empty());
  CHECK(precision(cat("device: cuda, ", both), 1) == "bf16");
  CHECK(precision("fp16: {enabled: auto}", 1).empty());
  CHECK(precision("bf16: {enabled: auto}, fp16: {enabled: true}", 1) == "fp16");
  CHECK(precision("bfloat16: {enabled: auto}", 1) == "bf16");
}

TEST_CASE("automatic values of optimizer and scheduler come from the train section") {
  const ResolvedConfig r = resolved(R"(
train: {steps: 300, learning_rate: 3e-4, weight_decay: 0.1, warmup_steps: 20}
train_batch_size: 1
gradient_clipping: auto
optimizer: {type: AdamW, params: {lr: auto, betas: auto, eps: auto, weight_decay: auto}}
scheduler:
  type: WarmupDecayLR
  params: {warmup_min_lr: auto, warmup_max_lr: auto, warmup_num_steps: auto, total_num_steps: auto}
)");
  REQUIRE(problem_texts(r.problems) == Lines{});
  REQUIRE(r.config.optimizer.lr == 3e-4);
  REQUIRE(r.config.optimizer.weight_decay == 0.1);
  REQUIRE(r.config.train.weight_decay_exempt == DecayExempt::kNone);
  REQUIRE(r.config.scheduler.warmup_max_lr == 3e-4);
  REQUIRE(r.config.scheduler.warmup_num_steps == 20);
  REQUIRE(r.config.scheduler.total_num_steps == 300);
  REQUIRE(line_texts(r.lines) ==
          Lines{"auto: optimizer.params.lr = 3e-04 (train.learning_rate)",
                "auto: optimizer.params.weight_decay = 0.1 (train.weight_decay)",
                "auto: gradient_clipping = 1 (DeepSpeed's since 0.19.3 and Hugging Face's; 0 = no "
                "clipping)",
                "auto: scheduler.params.warmup_num_steps = 20 (train.warmup_steps)",
                "auto: scheduler.params.warmup_max_lr = 3e-04 (the optimizer's lr)",
                "auto: scheduler.params.total_num_steps = 300 (the run's steps)",
                "auto: optimizer.params.betas = [0.9, 0.999] (its default)",
                "auto: optimizer.params.eps = 1.0e-08 (its default)",
                "auto: scheduler.params.warmup_min_lr = 0.0 (its default)"});
}

TEST_CASE("defaults of optimizer and scheduler depend on what is written") {
  const ResolvedConfig none =
      resolved("{train_batch_size: 1, train: {weight_decay: 0.01, warmup_steps: 5}}");
  REQUIRE(none.config.optimizer.type == OptimizerType::kAdamW);
  REQUIRE(none.config.optimizer.lr == 5e-5);
  REQUIRE(none.config.optimizer.weight_decay == 0.01);
  REQUIRE(none.config.train.weight_decay_exempt == DecayExempt::kNormsAndBiases);
  REQUIRE(none.config.scheduler.type == SchedulerType::kConstant);
  REQUIRE(none.config.scheduler.warmup_num_steps == 5);
  REQUIRE(line_texts(none.lines) ==
          Lines{"default: optimizer = AdamW, lr 5e-05, weight decay 0.01 (no optimizer section)",
                "default: gradient_clipping = 1 (DeepSpeed's since 0.19.3 and Hugging Face's; 0 = "
                "no clipping)",
                "default: scheduler = constant after 5 steps of warm-up (no scheduler section)"});

  const Config sgd = resolved("{train_batch_size: 1, optimizer: {type: sgd}}").config;
  REQUIRE(sgd.optimizer.type == OptimizerType::kSgd);
  REQUIRE(sgd.optimizer.lr == 1e-3);
  const Config adagrad = resolved("{train_batch_size: 1, optimizer: {type: Adagrad}}").config;
  REQUIRE(adagrad.optimizer.lr == 1e-2);
  REQUIRE(adagrad.optimizer.eps == 1e-10);
  const Config warm = resolved(
                          "{train_batch_size: 1, optimizer: {type: Adam, params: {lr: 0.1}}, "
                          "scheduler: {type: WarmupLR, params: {}}}")
                          .config;
  REQUIRE(warm.scheduler.warmup_max_lr == 0.1);
  REQUIRE(warm.scheduler.warmup_num_steps == 1000);
  REQUIRE(warm.optimizer.adam_w_mode);
  const Config decay = resolved(
                           "{train_batch_size: 1, scheduler: {type: WarmupDecayLR, params: "
                           "{total_num_steps: 9}}}")
                           .config;
  REQUIRE(decay.scheduler.warmup_max_lr == 0.001);
  const Config linear =
      resolved("{train_batch_size: 1, train: {steps: 7}, scheduler: {type: linear}}").config;
  REQUIRE(linear.scheduler.warmup_num_steps == 0);
  REQUIRE(linear.scheduler.total_num_steps == 7);
  const Config cycle =
      resolved(
          "{train_batch_size: 1, scheduler: {type: OneCycle, params: {cycle_min_lr: "
          "0.1, cycle_max_lr: 1, cycle_first_step_size: 4}}}")
          .config;
  REQUIRE(cycle.scheduler.cycle_second_step_size == 4);
}

TEST_CASE("automatic bucket sizes follow from the model's hidden size") {
  const std::string text =
      "{train_batch_size: 1, zero_optimization: {stage: 3, reduce_bucket_size: "
      "auto, stage3_prefetch_bucket_size: auto, stage3_param_persistence_threshold: auto}}";
  const ZeroConfig with = resolved(text, {.hidden_size = 4096}).config.zero;
  REQUIRE(with.reduce_bucket_size == 16'777'216);
  REQUIRE(with.prefetch_bucket_size == 15'099'494);
  REQUIRE(with.param_persistence_threshold == 40'960);
  REQUIRE(with.overlap_comm);
  const ResolvedConfig without = resolved(text);
  REQUIRE(without.config.zero.reduce_bucket_size == 500'000'000);
  REQUIRE(has_line(without,
                   "auto: zero_optimization.reduce_bucket_size = 500000000 (its default; "
                   "hidden² once the model is known)"));
  REQUIRE_FALSE(
      resolved("{train_batch_size: 1, zero_optimization: {stage: 2}}").config.zero.overlap_comm);
}

TEST_CASE(
    "what torch's optimizers refuse is refused: nesterov without momentum or with dampening, betas "
    "of 1") {
  const auto first = [](const std::string& params) {
    const ResolvedConfig r = resolved(
        "train_batch_size: 8\noptimizer: {type: SGD, params: {lr: 0.1, " + params + "}}\n");
    return r.problems.empty() ? std::string() : r.problems.front().message;
  };
  CHECK(first("momentum: 0.9, nesterov: true").empty());
  for (const char* params : {"nesterov: true", "momentum: 0.9, dampening: 0.5, nesterov: true"})
    CHECK(first(params) == "optimizer.params.nesterov needs a momentum above 0 and dampening 0");
  const LoadResult loaded =
      load_config_text("c.yaml", "optimizer: {type: AdamW, params: {lr: 0.1, betas: [0.9, 1]}}\n");
  REQUIRE_FALSE(loaded.problems.empty());
  CHECK_THAT(loaded.problems.front().message, Catch::Contains("betas"));
}

TEST_CASE("characters that only a shell expands are refused in paths") {
  const auto first = [](const std::string& text) {
    const ResolvedConfig r = resolved("train_batch_size: 8\n" + text);
    return r.problems.empty() ? std::string() : to_text(r.problems.front());
  };
  CHECK(first("output_dir: ~/runs/x\n") ==
        "c.yaml:2:13: error: output_dir: ~/runs/x: ftrun does not expand ~\n  remedy: write the "
        "whole path");
  CHECK(first("output_dir: ${HOME}/x\n") ==
        "c.yaml:2:13: error: output_dir: ${HOME}/x: ftrun does not expand variables\n  remedy: "
        "write the whole path, or give it on the command line: --set output_dir=\"${HOME}/x\"");
  CHECK(first("output_dir: runs~/$x\n").find("does not expand") == std::string::npos);
  // If the path exists, it is used literally.
  namespace fs = std::filesystem;
  const fs::path before = fs::current_path();
  const testing::TemporaryFolder folder;
  fs::create_directories(folder / "$models");
  fs::current_path(folder.path());
  const std::string there = first("model: {path: $models}\ndata: {train: $models/train}\n"),
                    not_there = first("model: {path: $models/x}\n");
  fs::current_path(before);
  CHECK(there.find("does not expand") == std::string::npos);
  CHECK(not_there.find("model.path: $models/x: ftrun does not expand variables") !=
        std::string::npos);
}

TEST_CASE("contradictions between keys are errors with their position") {
  const auto first = [](const std::string& text, ResolveContext context = {}) {
    const ResolvedConfig r = resolved("train_batch_size: 8\n" + text, context);
    return r.problems.empty() ? std::string() : to_text(r.problems.front());
  };
  REQUIRE(first("fp16: {enabled: true}\nbf16: {enabled: true}\n") ==
          "c.yaml:2:17: error: fp16.enabled and bf16.enabled are both true "
          "(bf16.enabled at c.yaml:3:17)\n"
          "  remedy: switch one of them off; bf16 needs no loss scaling");
  REQUIRE(
      first("fp16: {enabled: true, loss_scale_window: 0}\n") ==
      "c.yaml:2:42: error: fp16.loss_scale_window: expected a whole number above 0, found 0\n"
      "  remedy: write the number of steps without overflow after which the scale is doubled, for "
      "example 1000");
  REQUIRE(first("gradient_allreduce_op: SUM\nzero_optimization: {stage: 3}\n") ==
          "c.yaml:2:24: error: gradient_allreduce_op sum cannot be used with ZeRO stage 3\n"
          "  remedy: use another stage, or remove it and, if the optimizer does not normalize "
          "gradients, multiply the learning rate by the number of data-parallel ranks");
  REQUIRE(first("prescale_gradients: true\nzero_optimization: {stage: 2}\n") ==
          "c.yaml:2:21: error: prescale_gradients cannot be used with ZeRO stage 2\n"
          "  remedy: remove it: the mean is the same");
  REQUIRE(
      first("zero_optimization: {stage: 1, allgather_bucket_size: 7}\n") ==
      "c.yaml:2:54: error: zero_optimization.allgather_bucket_size 7 is odd; stages 1 and 2 need "
      "an even number\n  remedy: use 6");
  REQUIRE(first("train: {steps: 3, epochs: 1}\n") ==
          "c.yaml:2:27: error: train.steps 3 and train.epochs 1 both say how long to train\n"
          "  remedy: keep one of the two");
  REQUIRE(first("train: {epochs: 1, steps: 3}\n") ==
          "c.yaml:2:17: error: train.steps 3 and train.epochs 1 both say how long to train\n"
          "  remedy: keep one of the two");
  REQUIRE(first("comm: {backend: nccl}\n") ==
          "c.yaml:2:17: error: comm.backend nccl is for GPUs, but the ranks compute on CPUs\n  "
          "remedy: remove it: auto uses shared memory within a machine and gloo between machines");
  REQUIRE(first("train: {learning_rate: 1}\noptimizer: {type: Adam, params: {lr: 2}}\n") ==
          "c.yaml:3:38: error: optimizer.params.lr 2 contradicts train.learning_rate 1\n"
          "  remedy: keep one of the two, or write \"auto\" for optimizer.params.lr");
  REQUIRE(first("scheduler: {type: WarmupLR}\n") ==
          "c.yaml:2:1: error: scheduler: WarmupLR needs a section params\n"
          "  remedy: write params: {} for all defaults");
  REQUIRE(first("scheduler: {type: WarmupLR, params: {warmup_num_steps: 0}}\n") ==
          "c.yaml:2:56: error: scheduler.params.warmup_num_steps: expected a whole number of at "
          "least 1, found 0\n  remedy: write scheduler: {type: constant} for no warm-up; a "
          "WarmupLR begins with one");
  REQUIRE(first("scheduler: {type: OneCycle, params: {cycle_max_lr: 1}}\n") ==
          "c.yaml:2:1: error: scheduler.params.cycle_min_lr is missing: OneCycle needs it\n"
          "  remedy: write scheduler.params.cycle_min_lr, for example 1.0e-4");
  REQUIRE(
      first("elasticity: {enabled: true, max_train_batch_size: 6, micro_batch_sizes: [2]}\n") ==
      "c.yaml:2:23: error: elasticity chooses train_batch_size 4 = micro 2 × accumulation 2 × "
      "data-parallel 1, but the batch keys give other values\n"
      "  remedy: remove the batch keys, or write elasticity.ignore_non_elastic_batch_info: true");
  REQUIRE(first("data_types: {param_dtype: bf16}\n") ==
          "c.yaml:2:27: error: data_types.param_dtype bf16 contradicts training in fp32\n"
          "  remedy: remove it, or write bf16.enabled: true");
  REQUIRE(first("zero_optimization: {stage: 3, offload_param: {device: nvme}}\n") ==
          "c.yaml:2:55: error: zero_optimization.offload_param: device nvme needs nvme_path\n"
          "  remedy: name a folder on the fastest local disk, for example nvme_path: "
          "/mnt/nvme/ftrun");
  REQUIRE(first("zero_optimization: {stage: 2, offload_optimizer: {ratio: 0.5}}\n") ==
          "c.yaml:2:58: error: zero_optimization.offload_optimizer.ratio 0.5 needs stage 3, found "
          "stage 2\n  remedy: remove ratio, or set zero_optimization.stage: 3");
}

TEST_CASE("keys that act on evaluations need some before the last step") {
  const auto messages_of = [](const std::string& text) {
    return problem_texts(
        resolved("train_batch_size: 1\ndata: {validation: [v.bin]}\n" + text).problems);
  };
  const std::string remedy =
      "\n  remedy: set train.evaluation.every (steps) or train.evaluation.every_minutes";
  REQUIRE(
      messages_of("train: {early_stopping: {metric: validation.loss}}\n") ==
      Lines{"c.yaml:3:34: error: train.early_stopping: can never stop the run: "
            "train.evaluation.every and every_minutes are 0, so that nothing is evaluated before "
            "the last step" +
            remedy});
  REQUIRE(
      messages_of("checkpoint: {keep_best: {metric: validation.loss}}\n") ==
      Lines{
          "c.yaml:3:34: notice: checkpoint.keep_best: the best checkpoint is always the last one: "
          "train.evaluation.every and every_minutes are 0, so that nothing is evaluated before the "
          "last step" +
          remedy});
  for (const char* interval : {"every: 5", "every_minutes: 5"})
    REQUIRE(messages_of(cat("train: {early_stopping: {metric: validation.loss}, evaluation: {",
                            interval, "}}\n",
                            "checkpoint: {keep_best: {metric: validation.loss}}\n")) == Lines{});
}

TEST_CASE("only steps and ranks of the run can be traced") {
  const auto messages_of = [](const std::string& trace, const std::string& more = "") {
    return problem_texts(
        resolved(cat("train_batch_size: 1\ntrain: {steps: 10, trace: {", trace, "}}\n", more))
            .problems);
  };
  REQUIRE(messages_of("steps: [1, 10], ranks: [0]") == Lines{});
  REQUIRE(messages_of("steps: [1, 11]") ==
          Lines{"c.yaml:2:35: error: train.trace.steps: step 11 is beyond the run's 10 steps\n"
                "  remedy: write steps from 1 to 10"});
  REQUIRE(messages_of("ranks: [0]") ==
          Lines{"c.yaml:2:35: error: train.trace.ranks: no step is traced: train.trace.steps is "
                "empty\n  remedy: write the steps, for example train: {trace: {steps: [10]}}"});
  REQUIRE(messages_of("steps: [1], ranks: [1]") ==
          Lines{"c.yaml:2:47: error: train.trace.ranks: there is no rank 1: the run has only "
                "rank 0\n  remedy: list ranks of this run, or remove train.trace.ranks"});
  // A run that may lose ranks continues with the remaining ones, so a missing rank is no error.
  REQUIRE(messages_of("steps: [1], ranks: [1]", "elastic: {min_ranks: 1}\n") == Lines{});
  std::string many = "1";
  for (int step = 0; step < 32; ++step) many += ", 2";
  REQUIRE(messages_of(cat("steps: [", many, "]"))
              .front()
              .ends_with("error: train.trace.steps: 33 steps, and a trace holds at most 32\n"
                         "  remedy: list at most 32 steps"));
}

TEST_CASE("texts that have no documents to continue cause a notice") {
  const auto messages_of = [](const std::string& text) {
    return problem_texts(
        resolved("train_batch_size: 1\ntrain: {generate: {prompt_tokens: 4}}\n" + text).problems);
  };
  REQUIRE(messages_of("") ==
          Lines{"c.yaml:2:35: notice: train.generate has no effect: it continues documents "
                "of data.validation, which is not set\n"
                "  remedy: set data.validation"});
  REQUIRE(messages_of("data: {validation: [v.bin]}\n") == Lines{});
}

TEST_CASE("the lengths of a schedule and of the run are compared") {
  const auto messages_of = [](const std::string& steps, const std::string& scheduler) {
    return problem_texts(
        resolved(
            "train_batch_size: 1\noptimizer: {type: AdamW, params: {lr: 0.5}}\ntrain: {steps: " +
            steps + "}\nscheduler: " + scheduler)
            .problems);
  };
  const std::string remedy = "\n  remedy: remove total_num_steps for a schedule as long as the run";
  const auto short_one = [&](const std::string& place, const std::string& rate) {
    return Lines{place +
                 ": notice: scheduler: total_num_steps 10 < the run's 20 steps: those after the "
                 "schedule's end train with its last learning rate, " +
                 rate + remedy};
  };
  REQUIRE(messages_of("20", "{type: linear, params: {total_num_steps: 10}}") ==
          short_one("c.yaml:4:53", "0"));
  REQUIRE(messages_of("20",
                      "{type: WarmupDecayLR, params: {total_num_steps: 10, warmup_num_steps: 2, "
                      "warmup_min_lr: 0.25}}") == short_one("c.yaml:4:60", "0.25"));
  REQUIRE(messages_of("20",
                      "{type: WarmupCosineLR, params: {total_num_steps: 10, warmup_num_steps: 2, "
                      "cos_min_ratio: 0.5}}") == short_one("c.yaml:4:61", "0.25"));
  REQUIRE(messages_of("20", "{type: cosine, params: {total_num_steps: 20}}") == Lines{});
  REQUIRE(messages_of("5", "{type: linear, params: {total_num_steps: 20, warmup_num_steps: 6}}") ==
          Lines{"c.yaml:4:75: notice: scheduler: warmup_num_steps 6 > the run's 5 steps: training "
                "ends inside the warm-up"});
  REQUIRE(messages_of("6", "{type: linear, params: {total_num_steps: 20, warmup_num_steps: 6}}") ==
          Lines{});
}

TEST_CASE("a warm-up that is longer than the run is reported even if the schedule does not decay") {
  const auto messages_of = [](const std::string& steps, const std::string& rest) {
    return problem_texts(resolved("train_batch_size: 1\ntrain: {steps: " + steps + rest).problems);
  };
  const std::string text =
      ": notice: scheduler: warmup_num_steps 6 > the run's 5 steps: training ends inside the "
      "warm-up";
  REQUIRE(messages_of("5", "}\nscheduler: {type: WarmupLR, params: {warmup_num_steps: 6}}\n") ==
          Lines{"c.yaml:3:56" + text});
  REQUIRE(messages_of("5", "}\nscheduler: {type: constant, params: {warmup_num_steps: 6}}\n") ==
          Lines{"c.yaml:3:56" + text});
  REQUIRE(messages_of("5", ", warmup_steps: 6}\n") == Lines{"c.yaml:2:33" + text});
  REQUIRE(messages_of("6", "}\nscheduler: {type: WarmupLR, params: {warmup_num_steps: 6}}\n") ==
          Lines{});
  REQUIRE(
      messages_of("5",
                  "}\nscheduler: {type: OneCycle, params: {cycle_min_lr: 0.1, cycle_max_lr: 0.2, "
                  "cycle_first_step_size: 6}}\n") ==
      Lines{"c.yaml:3:99: notice: scheduler: cycle_first_step_size 6 > the run's 5 steps: "
            "training ends before the learning rate falls"});
}

TEST_CASE("an automatic value that has no effect says which key counts") {
  const auto line = [](const std::string& text, const std::string& key) {
    for (const ResolvedLine& shown : resolved("train_batch_size: 1\n" + text).lines)
      if (shown.text.find(key + " = ") != std::string::npos) return shown.text;
    return std::string();
  };
  REQUIRE(line("train: {steps: auto, epochs: auto}\n", "train.steps") ==
          "auto: train.steps = 0 (unset: train.epochs counts)");
  REQUIRE(line("train: {steps: 5, epochs: auto}\n", "train.epochs") ==
          "auto: train.epochs = 0 (unset: train.steps counts)");
  REQUIRE(
      line("scheduler: {type: WarmupLR, params: {warmup_num_steps: auto}}\n", "warmup_num_steps") ==
      "auto: scheduler.params.warmup_num_steps = 1 (the least of a WarmupLR; train.warmup_steps is "
      "0)");
}

TEST_CASE("ranks that the mesh does not divide are explained with the arithmetic") {
  const auto first = [](const std::string& text, int64_t ranks) {
    const ResolvedConfig r =
        resolved("train_micro_batch_size_per_gpu: 1\n" + text, {.world_size = ranks});
    return r.problems.empty() ? cat("data ", r.config.parallel.data) : to_text(r.problems.front());
  };
  REQUIRE(first("parallel: {tensor: 2, pipeline: 2}\n", 8) == "data 2");
  REQUIRE(first("sequence_parallel_size: 2\n", 8) == "data 4");
  REQUIRE(first("parallel: {tensor: 3}\n", 4) ==
          "c.yaml:2:1: error: 4 ranks cannot be divided by tensor 3\n"
          "  remedy: start 3 or 6 ranks, or write parallel.tensor: 1, 2 or 4");
  REQUIRE(first("parallel: {tensor: 4}\n", 1) ==
          "c.yaml:2:1: error: 1 rank cannot be divided by tensor 4\n"
          "  remedy: start 4 ranks or a multiple of them, or write parallel.tensor: 1");
  REQUIRE(first("parallel: {tensor: 4, pipeline: 2}\n", 12) ==
          "c.yaml:2:1: error: 12 ranks cannot be divided by tensor 4 × pipeline 2 = 8\n"
          "  remedy: start 8 or 16 ranks, or write parallel.tensor: 1, 2, 3 or 6");
  REQUIRE(first("parallel: {pipeline: 2}\n", 3) ==
          "c.yaml:2:1: error: 3 ranks cannot be divided by pipeline 2\n"
          "  remedy: start 2 or 4 ranks");
  REQUIRE(first("tensor_parallel: {autotp_size: 3}\n", 4) ==
          "c.yaml:2:32: error: 4 ranks cannot be divided by tensor 3\n"
          "  remedy: start 3 or 6 ranks, or write tensor_parallel.autotp_size: 1, 2 or 4");
  REQUIRE(
      first("parallel: {tensor: 4e18, pipeline: 4e18}\n", 4) ==
      "c.yaml:2:1: error: tensor 4000000000000000000 × pipeline 4000000000000000000 is too large\n"
      "  remedy: lower one of the degrees");
  REQUIRE(first("parallel: {data: 4, tensor: 2}\n", 4) ==
          "c.yaml:2:18: error: parallel.data 4 × tensor 2 = 8 ≠ 4 ranks\n"
          "  remedy: write parallel.data: 2 or auto");
  REQUIRE(first("parallel: {data: 2}\n", 3) ==
          "c.yaml:2:18: error: parallel.data 2 ≠ 3 ranks\n"
          "  remedy: write parallel.data: 3 or auto");
  REQUIRE(first("parallel: {data_replicate: 3}\n", 4) ==
          "c.yaml:2:28: error: 4 data-parallel ranks cannot be divided by data_replicate 3\n"
          "  remedy: use a divisor of 4");
  REQUIRE(
      first("parallel: {expert: 8}\n", 4) ==
      "c.yaml:2:20: error: data-parallel 4 × context 1 = 4 ranks cannot be divided by expert 8\n"
      "  remedy: use a divisor of 4");
  REQUIRE(first("parallel: {context: 2}\nsequence_parallel_size: 4\n", 8) ==
          "c.yaml:3:25: error: sequence_parallel_size 4 contradicts parallel.context 2\n"
          "  remedy: keep one of the two");
}

TEST_CASE("at least two checkpoints are kept") {
  const ResolvedConfig raised = resolved(cat("{", kT, "8, checkpoint: {keep_last: 1}}"));
  REQUIRE(raised.config.checkpoint.keep_last == 2);
  REQUIRE(raised.problems.size() == 1);
  REQUIRE(to_text(raised.problems.front()) ==
          "c.yaml:1:47: notice: checkpoint.keep_last 1 is raised to 2, so that an older "
          "checkpoint remains if the newest is damaged");
  for (const int64_t kept : {0, 2, 3}) {
    const ResolvedConfig as_written =
        resolved(cat("{", kT, "8, checkpoint: {keep_last: ", kept, "}}"));
    REQUIRE(as_written.config.checkpoint.keep_last == kept);
    REQUIRE(as_written.problems.empty());
  }
}

TEST_CASE("a run needs a model and data, a check does not") {
  const std::string text = "train_batch_size: 8\n";
  REQUIRE(problem_texts(resolved(text).problems) == Lines{});
  REQUIRE(problem_texts(resolved(text, {.for_training = true}).problems) ==
          Lines{"config: error: model.path is missing: it names the model to train\n  remedy: name "
                "a Hugging Face folder, for example --set model.path=models/SmolLM2-135M",
                "config: error: data.train is missing: it names the data to train on\n  remedy: "
                "name a tokenized data set, as scripts/prepare_data.py writes it: --set "
                "data.train=data/train.bin"});
  const ResolvedConfig r =
      resolved(text + "model: {path: m}\ndata: {train: d.bin}\n", {.for_training = true});
  REQUIRE(problem_texts(r.problems) == Lines{});
  REQUIRE(r.config.train.epochs == 1);
  REQUIRE(has_line(r, "default: train.epochs = 1 (neither steps nor epochs is given)"));
}

TEST_CASE("a fault in reading a key is not reported a second time as missing") {
  const LoadResult loaded = load_config_text("c.yaml", "train_batch_size: many\n");
  REQUIRE_FALSE(loaded.ok());
  REQUIRE(problem_texts(resolve(loaded.written, {}).problems) == Lines{});
  const LoadResult foreign = load_config_text("c.yaml", "base_model: x\n");
  REQUIRE(problem_texts(resolve(foreign.written, {.for_training = true}).problems) == Lines{});
}

TEST_CASE("a change of a resolved config reports the problems that it causes") {
  const auto added = [](const std::string& text, const std::function<void(Config&)>& change) {
    Config config = resolved(text, {.world_size = 4}).config;
    REQUIRE(list_objections(config) == std::set<std::string>{});
    change(config);
    return list_objections(config);
  };
  using Texts = std::set<std::string>;
  const auto stage = [](int64_t wanted) { return [wanted](Config& c) { c.zero.stage = wanted; }; };
  const std::string micro = "train_micro_batch_size_per_gpu: 2\n";
  REQUIRE(added(micro + "gradient_allreduce_op: sum", stage(2)) == Texts{});
  REQUIRE(added(micro + "gradient_allreduce_op: sum", stage(3)) ==
          Texts{"gradient_allreduce_op sum cannot be used with ZeRO stage 3"});
  REQUIRE(added(micro + "prescale_gradients: true", stage(2)) ==
          Texts{"prescale_gradients cannot be used with ZeRO stage 2"});
  REQUIRE(added(micro + "zero_optimization: {mics_shard_size: 3}", stage(3)) ==
          Texts{"4 data-parallel ranks cannot be divided by mics_shard_size 3"});
  REQUIRE(added(micro, [](Config& c) { c.parallel.expert = 2; }) == Texts{"expert parallelism"});
  REQUIRE(added(micro, [](Config& c) { c.train_micro_batch_size_per_gpu = 3; }) ==
          Texts{"train_batch_size 8 ≠ micro 3 × accumulation 1 × data-parallel 4 = 12"});
  // "auto" keeps the value to which it was resolved.
  REQUIRE(added(micro + "bf16: {enabled: auto}\nfp16: {enabled: auto}\ntrain: {steps: 5}\n"
                        "scheduler: {type: linear}",
                stage(1)) == Texts{});
}

TEST_CASE("conversations are packed with documents unless the config says otherwise") {
  const auto packing = [](const std::string& text, bool conversations) {
    const ResolvedConfig r =
        resolved(std::string(kM) + text,
                 {.world_size = 1, .conversations = conversations, .for_training = true});
    return std::pair{std::string(name_of(r.config.data.packing)), r};
  };
  CHECK(packing("1", false).first == "concat");
  const auto [chats, resolved_chats] = packing("1", true);
  CHECK(chats == "documents");
  CHECK(has_line(resolved_chats,
                 "default: data.packing = documents (data.train holds conversations)"));
  CHECK(packing("1\ndata: {packing: auto}", true).first == "documents");
  CHECK(packing("1\ndata: {packing: auto}", false).first == "concat");
  CHECK(packing("1\ndata: {packing: concat}", true).first == "concat");
}

TEST_CASE("device: auto is a GPU if each rank can have one that supports the config") {
  const auto device = [](const std::string& text, ResolveContext context) {
    return resolved(text, context).config.device;
  };
  const ResolveContext two{.world_size = 2, .gpus = 2, .local_ranks = 2};
  REQUIRE(device("{}", {}) == DeviceKind::kCpu);
  REQUIRE(device("{}", two) == DeviceKind::kCuda);
  REQUIRE(device("{device: cpu}", two) == DeviceKind::kCpu);
  REQUIRE(has_line(resolved("{}", two), "default: device = cuda (this machine shows 2 GPUs)"));
  REQUIRE(device("{parallel: {tensor: 2}}", two) == DeviceKind::kCuda);
}

TEST_CASE("device: auto says why it does not use GPUs") {
  const auto notice = [](const std::string& text, ResolveContext context) {
    const ResolvedConfig r = resolved(text, context);
    REQUIRE(r.config.device == DeviceKind::kCpu);
    REQUIRE(r.config.auto_keys.contains("device"));
    for (const Problem& problem : r.problems)
      if (problem.message.starts_with("device:")) return to_text(problem);
    return std::string();
  };
  REQUIRE(notice("{device: auto}", {.world_size = 2, .gpus = 1, .local_ranks = 2}) ==
          "c.yaml:1:10: notice: device: auto selects the CPU, although this machine shows 1 "
          "GPU: it has 2 ranks, and "
          "each needs its own GPU\n  remedy: start one rank per GPU, or write device: cpu");
  REQUIRE(notice("{device: auto, comm: {backend: gloo}}", {.gpus = 1}) ==
          "c.yaml:1:10: notice: device: auto selects the CPU, although this machine shows 1 GPU: "
          "comm.backend gloo is not supported there\n  remedy: remove it to train on GPUs, or "
          "write device: cpu");
}

}  // namespace ftrun
