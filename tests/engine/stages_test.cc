#include <optional>

#include "kernels/kernels.h"
#include "mesh_runs.h"
#include "optimizers/optimizers.h"

#include <catch2/catch.hpp>

// Wherever state is stored and whenever it moves, no bit of the training may change. Stage 0 is the
// reference: its programs move nothing but whole gradients.

namespace ftrun {
namespace {

using testing::RankFixture;

constexpr int kRanks = 3;
constexpr int kSteps = 3;

using Outcome = testing::TrainingOutcome;

Outcome train_on_shards(const Config& config, const ModelConfig& model, int replicas = 1,
                        int shards = kRanks, PipelineSchedule schedule = PipelineSchedule::k1F1B) {
  Outcome outcome;
  testing::CombinedState whole;
  Config config_on_mesh = config;
  config_on_mesh.parallel.data_replicate = replicas;
  const auto rank = [&](Rendezvous&, const RankCommunicators& communicators) {
    RankFixture fixture(config_on_mesh, model, communicators, nullptr, {.schedule = schedule});
    testing::train_steps(fixture, kSteps, outcome);
    whole.add(fixture.state.slices());
  };
  testing::run_on_mesh(replicas, shards, rank, static_cast<int>(config.zero.hpz_partition_size));
  outcome.state = whole.contents();
  return outcome;
}

Config stage_config(int64_t stage, int64_t accumulation, int64_t small) {
  Config config = testing::config_of_stage(stage);
  config.gradient_accumulation_steps = accumulation;
  config.zero.param_persistence_threshold = small;
  return config;
}

/// Lists configs that must train the same bits as `plain`. They differ in tiers, buckets, overlap,
/// what stage 3 keeps and prefetches, and recompute.
std::vector<std::pair<std::string, Config>> variants(const Config& plain) {
  std::vector<std::pair<std::string, Config>> all;
  const auto with = [&](const std::string& name, const std::function<void(Config&)>& change) {
    all.emplace_back(name, plain);
    change(all.back().second);
  };
  with("plain", [](Config&) {});
  with("overlap", [](Config& c) { c.zero.overlap_comm = true; });
  with("tiny buckets", [](Config& c) {
    c.zero.overlap_comm = true;
    c.zero.reduce_bucket_size = 1;
    c.zero.allgather_bucket_size = 1;
  });
  with("buckets of two units", [](Config& c) {
    c.zero.reduce_bucket_size = 50'000;
    c.zero.allgather_bucket_size = 50'000;
  });
  with("full recompute, inputs on the host", [](Config& c) {
    c.recompute.policy = RecomputeLevel::kFull;
    c.activation_checkpointing.cpu_checkpointing = true;
    c.zero.overlap_comm = true;
  });
  with("selective recompute of every other layer", [](Config& c) {
    c.recompute.policy = RecomputeLevel::kSelective;
    c.recompute.every = 2;
  });
  if (plain.zero.stage == 0) return all;
  for (const OffloadDevice device : {OffloadDevice::kCpu, OffloadDevice::kNvme})
    for (const bool overlap : {false, true})
      with(cat("tier ", name_of(device), overlap ? ", overlap" : ""), [&](Config& c) {
        testing::offload_to(c, device);
        c.zero.overlap_comm = overlap;
      });
  with("half of the optimizer on the host", [](Config& c) {
    testing::offload_to(c, OffloadDevice::kCpu);
    c.zero.offload_optimizer.ratio = 0.5;
    c.zero.offload_param.device = OffloadDevice::kNone;
  });
  if (plain.zero.stage == 1) with("all-reduced", [](Config& c) { c.zero.reduce_scatter = false; });
  if (plain.zero.stage < 3) return all;
  with("no prefetch", [](Config& c) {
    c.zero.overlap_comm = true;
    c.zero.prefetch_bucket_size = 0;
  });
  with("prefetch of all, little live", [](Config& c) {
    c.zero.overlap_comm = true;
    c.zero.prefetch_bucket_size = 1'000'000'000;
    c.zero.max_live_parameters = 100'000;
  });
  with("reuse of all", [](Config& c) {
    c.zero.max_reuse_distance = 1'000'000'000;
    c.zero.overlap_comm = true;
  });
  with("parameters on disk, the optimizer on the host", [](Config& c) {
    testing::offload_to(c, OffloadDevice::kNvme);
    c.zero.offload_optimizer.device = OffloadDevice::kCpu;
    c.zero.overlap_comm = true;
    c.zero.max_reuse_distance = 100'000;
  });
  with("parameters on the host, the optimizer on the device", [](Config& c) {
    testing::offload_to(c, OffloadDevice::kCpu);
    c.zero.offload_optimizer.device = OffloadDevice::kNone;
  });
  return all;
}

/// Returns every second variant, beginning with the first or the second depending on stage and
/// precision. It serves tests of other features than stage, tier and precision, whose full product
/// is tested elsewhere in this file.
std::vector<std::pair<std::string, Config>> half_of_variants(const Config& plain) {
  const std::vector<std::pair<std::string, Config>> all = variants(plain);
  std::vector<std::pair<std::string, Config>> half;
  for (size_t i = (plain.zero.stage + (plain.bf16.enabled ? 1 : 0)) % 2; i < all.size(); i += 2)
    half.push_back(all[i]);
  return half;
}

using Variants = decltype(variants);

/// Requires that all variants of every stage train exactly like the first stage's plain config.
void require_alike(const std::vector<int64_t>& stages, int64_t accumulation, int64_t small,
                   const std::function<void(Config&)>& change, const ModelConfig& model,
                   Variants* chosen = variants) {
  Config first = stage_config(stages[0], accumulation, small);
  change(first);
  const Outcome expected = train_on_shards(first, model);
  REQUIRE(expected.losses[0] != expected.losses[2]);
  for (const int64_t stage : stages) {
    Config plain = stage_config(stage, accumulation, small);
    change(plain);
    for (const auto& [name, config] : chosen(plain)) {
      // This config is the reference itself.
      if (stage == stages[0] && name == "plain") continue;
      INFO("stage " << stage << ", accumulation " << accumulation << ", small up to " << small
                    << ", " << name);
      const Outcome outcome = train_on_shards(config, model);
      REQUIRE(outcome.losses == expected.losses);
      REQUIRE(outcome.norms == expected.norms);
      REQUIRE(outcome.state == expected.state);
    }
  }
}

TEST_CASE("all stages, tiers and schedules give the same bits with one micro-batch per step") {
  set_kernel_threads(1);
  // The three limits shard all tensors, all except norms (64 elements), and none.
  for (const int64_t small : {0, 64, 100'000})
    require_alike(
        {0, 1, 2, 3}, 1, small, [](Config&) {}, testing::model_of_many_blocks());
}

TEST_CASE("with accumulation, stages 0 and 1 agree, as do 2 and 3, which first add across ranks") {
  set_kernel_threads(1);
  for (const int64_t small : {0, 64}) {
    require_alike(
        {0, 1}, 2, small, [](Config&) {}, testing::model_of_many_blocks());
    require_alike(
        {2, 3}, 2, small, [](Config&) {}, testing::model_of_many_blocks());
  }
}

TEST_CASE(
    "all stages, tiers and schedules give the same bits in 16 bits, with gradients and sums in 16 "
    "or 32") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  require_alike(
      {0, 1, 2, 3}, 1, 64, [](Config& c) { c.bf16.enabled = true; }, model);
  require_alike(
      {0, 1, 2, 3}, 1, 0, [](Config& c) { c.fp16.enabled = true; }, model);
  require_alike(
      {2, 3}, 2, 64,
      [](Config& c) {
        c.bf16.enabled = true;
        c.data_types.grad_accum_dtype = ConfigDtype::kFp32;
      },
      model, half_of_variants);
  require_alike(
      {0, 1, 2, 3}, 1, 0,
      [](Config& c) {
        c.bf16.enabled = true;
        c.data_types.grad_accum_dtype = ConfigDtype::kFp32;
        c.reduction.communication_data_type = ConfigDtype::kBf16;
      },
      model, half_of_variants);
  require_alike(
      {1, 2, 3}, 1, 64,
      [](Config& c) {
        c.bf16.enabled = true;
        c.bf16.bf16_master_weights_and_grads = true;
        c.bf16.bf16_optimizer_states = true;
      },
      model, half_of_variants);
}

TEST_CASE(
    "all stages and tiers give the same bits with adapters' magnitudes in fp32 and the rest in 16 "
    "bits") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  const auto with_magnitudes = [](Config& c) {
    c = testing::with_dropout(c);
    c.adapter.use_dora = true;
    c.bf16.enabled = true;
  };
  const auto with_small_masters = [&](Config& c) {
    with_magnitudes(c);
    c.bf16.bf16_master_weights_and_grads = true;
  };
  require_alike({0, 1, 2, 3}, 1, 0, with_magnitudes, model, half_of_variants);
  require_alike({1, 2, 3}, 1, 64, with_small_masters, model, half_of_variants);
  Config config = stage_config(2, 1, 64);
  with_small_masters(config);
  const Outcome outcome = train_on_shards(config, model);
  const auto bytes = [&](const char* name) {
    return outcome.state.at(cat("model.layers.0.self_attn.q_proj.", name, ".param")).size();
  };
  CHECK(bytes("lora_B.weight") == 2 * 4 * 64);
  CHECK(bytes("lora_magnitude_vector") == 4 * 64);
}

TEST_CASE(
    "a tied matrix, other optimizers, and units that fit one block give the same bits at all "
    "stages and tiers") {
  set_kernel_threads(1);
  const ModelConfig tied = testing::model_of_many_blocks(true);
  require_alike(
      {0, 1, 2, 3}, 1, 64, [](Config&) {}, tied, half_of_variants);
  require_alike(
      {2, 3}, 2, 0, [](Config& c) { c.bf16.enabled = true; }, tied, half_of_variants);
  require_alike(
      {0, 1, 2, 3}, 1, 0,
      [](Config& c) {
        c.optimizer.type = OptimizerType::kSgd;
        c.optimizer.momentum = 0.9;
        c.optimizer.weight_decay = 0.1;
      },
      testing::model_of_many_blocks(), half_of_variants);
  require_alike(
      {0, 1, 2, 3}, 1, 0,
      [](Config& c) {
        c.optimizer.type = OptimizerType::kSgd;
        c.bf16.enabled = true;
      },
      testing::model_of_many_blocks(), half_of_variants);
  require_alike(
      {0, 1, 2, 3}, 1, 0, [](Config& c) { c.optimizer.weight_decay = 0.1; },
      testing::small_model(true), half_of_variants);
}

TEST_CASE(
    "8-bit states, of all tensors or of large ones, give the same bits at all stages and tiers") {
  set_kernel_threads(1);
  const auto codes_from = [](double elements, const std::function<void(Config&)>& change = {}) {
    return [=](Config& c) {
      c.optimizer = optimizer_traits(OptimizerType::kAdamW8bit).defaults;
      c.optimizer.type = OptimizerType::kAdamW8bit;
      c.optimizer.min_8bit_size = elements;
      if (change) change(c);
    };
  };
  const ModelConfig model = testing::model_of_many_blocks();
  require_alike({0, 1, 2, 3}, 1, 64, codes_from(4096), model, half_of_variants);
  require_alike({2, 3}, 2, 0, codes_from(1), model, half_of_variants);
  require_alike({0, 1, 2, 3}, 1, 0, codes_from(1, [](Config& c) { c.bf16.enabled = true; }), model,
                half_of_variants);
  require_alike({1, 2, 3}, 1, 64,
                codes_from(4096,
                           [](Config& c) {
                             c.bf16.enabled = true;
                             c.bf16.bf16_master_weights_and_grads = true;
                           }),
                model, half_of_variants);
  // Heads have 36 elements, so that k and v begin, and rows end, within blocks.
  ModelConfig odd = testing::model_of_many_blocks();
  odd.hidden = 60;
  odd.head_size = 6;
  odd.query_heads = 10;
  require_alike({0, 1, 2, 3}, 1, 0, codes_from(1), odd, half_of_variants);
  Config config = stage_config(1, 1, 0);
  codes_from(4096)(config);
  const Outcome outcome = train_on_shards(config, model);
  const auto bytes = [&](const char* kind) {
    return outcome.state.at(cat("model.layers.0.self_attn.q_proj.weight.", kind)).size();
  };
  CHECK(bytes("exp_avg") == 64 * 64);
  CHECK(bytes("exp_avg_sq") == 64 * 64);
  CHECK(bytes("exp_avg_absmax") == 4 * 64 * 64 / 256);
  CHECK(bytes("exp_avg_sq_absmax") == 4 * 64 * 64 / 256);
  CHECK(outcome.state.at("model.norm.weight.exp_avg").size() == 4 * 64);
  CHECK_FALSE(outcome.state.contains("model.norm.weight.exp_avg_absmax"));
}

TEST_CASE("every partition of the model gives the same bits") {
  set_kernel_threads(1);
  for (const UnitGranularity unit : {UnitGranularity::kBlock, UnitGranularity::kModel})
    require_alike(
        {0, 1, 2, 3}, 1, 64, [&](Config& c) { c.partition.unit = unit; },
        testing::model_of_many_blocks(), half_of_variants);
}

TEST_CASE("one rank gets the same bits at every tier, and at stages with one order of sums") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  for (const bool bf16 : {false, true})
    for (const int64_t accumulation : {1, 2}) {
      // With two micro-batches, stages 2 and 3 sum whole gradients of micro-batches, while stages 0
      // and 1 add each part inside its layer, so the order of additions differs.
      std::map<bool, Outcome> expected;
      for (const int64_t stage : {0, 1, 2, 3}) {
        Config plain = stage_config(stage, accumulation, 64);
        plain.bf16.enabled = bf16;
        for (const auto& [name, config] : variants(plain)) {
          INFO("stage " << stage << (bf16 ? " bf16" : " fp32") << ", accumulation " << accumulation
                        << ", " << name);
          const Outcome outcome = train_on_shards(config, model, 1, 1);
          const Outcome& first =
              expected.emplace(accumulation > 1 && stage >= 2, outcome).first->second;
          REQUIRE(outcome.losses[0] == expected.begin()->second.losses[0]);
          REQUIRE(outcome == first);
        }
      }
    }
}

TEST_CASE("hybrid groups of 2 x 2 get the same bits at every stage and tier") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  for (const bool bf16 : {false, true}) {
    std::optional<Outcome> expected;
    for (const int64_t stage : {1, 2, 3}) {
      Config plain = stage_config(stage, 1, 64);
      plain.bf16.enabled = bf16;
      for (const auto& [name, config] : half_of_variants(plain)) {
        INFO("stage " << stage << (bf16 ? " bf16" : " fp32") << ", " << name);
        const Outcome outcome = train_on_shards(config, model, 2, 2);
        if (!expected) expected = outcome;
        REQUIRE(outcome == *expected);
      }
    }
  }
}

TEST_CASE("replicas of a single shard get the same bits at every tier, also with accumulation") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  std::optional<Outcome> expected;
  for (const int64_t stage : {2, 3})
    for (auto& [name, config] : variants(stage_config(stage, 3, 64))) {
      INFO("stage " << stage << ", " << name);
      const Outcome outcome = train_on_shards(config, model, 2, 1);
      if (!expected) expected = outcome;
      REQUIRE(outcome == *expected);
    }
}

TEST_CASE("secondary shards change no bit, in one replica or two") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  for (const bool bf16 : {false, true})
    for (const int replicas : {1, 2}) {
      Config plain = stage_config(3, 2, 64);
      plain.bf16.enabled = bf16;
      const Outcome expected = train_on_shards(plain, model, replicas, 4);
      plain.zero.hpz_partition_size = 2;
      for (const auto& [name, config] : half_of_variants(plain)) {
        INFO(replicas << " replicas" << (bf16 ? " bf16" : " fp32") << ", " << name);
        REQUIRE(train_on_shards(config, model, replicas, 4) == expected);
      }
    }
}

TEST_CASE(
    "secondary shards on one node of all ranks train the same bits, wherever the primary ones "
    "are") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  Config config = stage_config(3, 2, 64);
  config.zero.overlap_comm = true;
  const Outcome expected = train_on_shards(config, model);
  config.zero.hpz_partition_size = kRanks;
  for (const OffloadDevice device :
       {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    testing::offload_to(config, device);
    INFO(name_of(device));
    REQUIRE(train_on_shards(config, model) == expected);
  }
}

TEST_CASE("hybrid groups train what all ranks together train, up to rounding") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  const Outcome whole = train_on_shards(stage_config(0, 2, 64), model, 1, 4);
  for (const int64_t stage : {1, 2, 3})
    for (const int shards : {1, 2}) {
      INFO("stage " << stage << ", shards " << shards);
      const Outcome hybrid = train_on_shards(stage_config(stage, 2, 64), model, 4 / shards, shards);
      REQUIRE(hybrid.losses[0] == whole.losses[0]);
      for (size_t step = 0; step < kSteps; ++step) {
        REQUIRE(hybrid.losses[step] == Approx(whole.losses[step]).epsilon(1e-5));
        REQUIRE(hybrid.norms[step] == Approx(whole.norms[step]).epsilon(1e-4));
      }
    }
}

TEST_CASE("neither the order of passes nor separate weight gradients change a bit") {
  set_kernel_threads(1);
  for (const int64_t stage : {0, 1, 2, 3})
    for (const bool tied : {false, true}) {
      const ModelConfig model = testing::model_of_many_blocks(tied);
      Config config = stage_config(stage, 3, 64);
      config.zero.overlap_comm = true;
      config.recompute.policy = tied ? RecomputeLevel::kNone : RecomputeLevel::kSelective;
      config.activation_checkpointing.cpu_checkpointing = !tied;
      const Outcome expected = train_on_shards(config, model);
      for (const PipelineSchedule schedule : {PipelineSchedule::kGpipe, PipelineSchedule::kZbH1}) {
        // When stages 0 and 1 accumulate in place, the gradients of the head and the embedding of a
        // tied matrix are added in the order of passes, which GPipe changes.
        if (tied && stage < 2 && schedule == PipelineSchedule::kGpipe) continue;
        INFO("stage " << stage << ", tied " << tied << ", " << traits_of(schedule).name);
        const Outcome outcome = train_on_shards(config, model, 1, kRanks, schedule);
        REQUIRE(outcome.losses == expected.losses);
        REQUIRE(outcome.norms == expected.norms);
        REQUIRE(outcome.state == expected.state);
      }
    }
}

TEST_CASE("the validation loss depends neither on the stage nor on the tier") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  std::vector<double> losses;
  for (const int64_t stage : {0, 1, 2, 3})
    for (const auto& [name, config] : variants(stage_config(stage, 1, 64))) {
      double loss = 0;
      testing::run_on_mesh(1, kRanks,
                           [&](Rendezvous& rendezvous, const RankCommunicators& communicators) {
                             RankFixture fixture(config, model, communicators);
                             fixture.train(1);
                             ForwardRun run;
                             run.micro_batches = {fixture.batches.data(), 1};
                             fixture.evaluation_executor.run_forward(run);
                             if (rendezvous.rank() == 0) loss = run.result.loss_sum;
                             // Training continues as if there had been no evaluation.
                             require(fixture.train(2).result.finite, "evaluation changes nothing");
                           });
      INFO("stage " << stage << ", " << name);
      losses.push_back(loss);
      REQUIRE(losses.back() == losses.front());
    }
}

}  // namespace
}  // namespace ftrun
