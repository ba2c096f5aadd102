#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include "checkpoint/save.h"
#include "kernels/kernels.h"
#include "mesh_runs.h"
#include "optimizers/optimizers.h"
#include "rank_fixture.h"

#include <catch2/catch.hpp>

// Tensor parallelism changes which rank computes what, not what is computed. One process that
// trains the same global batch is the reference, up to rounding.

namespace ftrun {
namespace {

using testing::config_on_mesh;
using testing::options_of;
using testing::RankFixture;
using testing::require_within_bounds;
using testing::train_on_mesh;
using testing::TrainingMesh;
using testing::TrainingOutcome;

TEST_CASE("tensor ranks train what one process trains, at every ZeRO stage") {
  set_kernel_threads(1);
  const ModelConfig model = testing::small_model();
  for (const int64_t stage : {0, 1, 2, 3}) {
    const Config config = testing::config_of_stage(stage);
    const TrainingOutcome expected = train_on_mesh(config, model, {}, 3);
    for (const TrainingMesh& mesh : {TrainingMesh{2}, TrainingMesh{4}, TrainingMesh{2, 2}}) {
      INFO("stage " << stage << ", " << mesh.text());
      require_within_bounds(train_on_mesh(config, model, mesh, 3), expected);
    }
  }
}

TEST_CASE("every mesh of up to 8 ranks trains what one process trains for 20 steps", "[long]") {
  set_kernel_threads(1);
  const ModelConfig model = testing::small_model();
  for (const int64_t stage : {0, 1, 2, 3}) {
    const Config config = testing::config_of_stage(stage);
    const TrainingOutcome expected = train_on_mesh(config, model, {}, 20);
    for (const int tensor : {1, 2, 4})
      for (const int shards : {1, 2, 3})
        for (const int replicas : {1, 2}) {
          const TrainingMesh mesh{tensor, shards, replicas};
          const bool same = stage == 0 && replicas > 1;  // stage 0 does not shard
          if (same || mesh.data() * tensor > 8 || mesh.data() * tensor == 1) continue;
          INFO("stage " << stage << ", " << mesh.text());
          require_within_bounds(train_on_mesh(config, model, mesh, 20), expected);
        }
  }
}

TEST_CASE("rows that ranks cannot divide evenly are padded, and train what one process trains") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  for (const bool drops : {false, true})
    for (const int64_t rows : {1, 3}) {
      Config config = testing::config_of_stage(2);
      if (drops) config = testing::with_dropout(config);
      config.data.sequence_length = 7;
      config.train_micro_batch_size_per_gpu = rows;
      const TrainingOutcome expected = train_on_mesh(config, model, {}, 3);
      for (const TrainingMesh& mesh : {TrainingMesh{2}, TrainingMesh{4}, TrainingMesh{2, 2}}) {
        INFO("rows " << rows << ", dropout " << drops << ", " << mesh.text());
        require_within_bounds(train_on_mesh(config, model, mesh, 3), expected);
      }
    }
}

/// Returns a small model to which `change` adds one feature of a family, or several.
ModelConfig model_with(const std::function<void(ModelConfig&)>& change, bool tied = false) {
  ModelConfig model = testing::model_of_many_blocks(tied);
  change(model);
  return model;
}

TEST_CASE(
    "tensor ranks train every family like one process, also with recompute, ZeRO and offload") {
  set_kernel_threads(1);
  struct Family {
    const char* name;
    ModelConfig model;
    std::function<void(Config&)> change;
    TrainingMesh mesh;
  };
  const auto plain = [](Config&) {};
  const auto whole_norms = [](Config& c) { c.parallel.sequence = false; };
  const std::vector<Family> families{
      {"llama, inputs made again",
       model_with([](ModelConfig&) {}),
       [](Config& c) {
         c.zero.stage = 2;
         c.recompute.policy = RecomputeLevel::kFull;
       },
       {2, 2}},
      {"llama, tied",
       model_with([](ModelConfig&) {}, true),
       [](Config& c) {
         c.zero.stage = 3;
         c.zero.overlap_comm = true;
       },
       {4, 1, 2}},
      {"mistral",
       model_with([](ModelConfig& m) { m.windows.assign(m.windows.size(), 3); }),
       [](Config& c) {
         c.zero.stage = 1;
         c.recompute.policy = RecomputeLevel::kSelective;
       },
       {2, 1, 2}},
      {"qwen2", model_with([](ModelConfig& m) { m.qkv_bias = true; }), plain, {4, 2}},
      {"qwen2, whole norms",
       model_with([](ModelConfig& m) { m.qkv_bias = true; }, true),
       whole_norms,
       {2, 3}},
      {"qwen3",
       model_with([](ModelConfig& m) { m.qk_norm = QkNorm::kEachHead; }),
       [](Config& c) {
         c.zero.stage = 3;
         c.zero.offload_param.device = c.zero.offload_optimizer.device = OffloadDevice::kCpu;
       },
       {2, 2, 2}},
      {"qwen3, whole norms",
       model_with([](ModelConfig& m) { m.qk_norm = QkNorm::kEachHead; }, true),
       whole_norms,
       {4}},
      {"biases behind sums",
       model_with([](ModelConfig& m) { m.attention_out_bias = m.mlp_bias = m.qkv_bias = true; }),
       [](Config& c) {
         c.zero.stage = 2;
         c.zero.offload_optimizer.device = OffloadDevice::kCpu;
         c.recompute.policy = RecomputeLevel::kFull;
         c.activation_checkpointing.cpu_checkpointing = true;
       },
       {4, 2}},
      {"biases behind sums, whole norms",
       model_with([](ModelConfig& m) { m.attention_out_bias = m.mlp_bias = true; }),
       whole_norms,
       {2, 2}},
      {"norms without weights, tied",
       model_with(testing::remove_norm_weights, true),
       [](Config& c) {
         c.zero.stage = 3;
         c.recompute.policy = RecomputeLevel::kSelective;
       },
       {2, 2, 2}},
      {"norms without weights, whole", model_with(testing::remove_norm_weights), whole_norms, {4}},
  };
  for (const Family& family : families) {
    INFO(family.name << ", " << family.mesh.text());
    Config config = testing::config_of_stage(0);
    family.change(config);
    require_within_bounds(train_on_mesh(config, family.model, family.mesh, 3),
                          train_on_mesh(config, family.model, {}, 3));
  }
}

TEST_CASE("on a fixed mesh, buckets, overlap, tiers and reuse change no bit") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  for (const int64_t stage : {0, 1, 2, 3}) {
    Config plain = testing::config_of_stage(stage);
    plain.zero.overlap_comm = false;
    const TrainingMesh mesh = stage == 0 ? TrainingMesh{2, 3} : TrainingMesh{2, 2, 2};
    const TrainingOutcome expected = train_on_mesh(plain, model, mesh, 3);
    for (const auto& [name, change] : testing::bit_preserving_changes(stage)) {
      INFO("stage " << stage << ", " << name);
      Config config = plain;
      change(config);
      testing::require_identical(train_on_mesh(config, model, mesh, 3), expected);
    }
  }
}

TEST_CASE("an export collects a split model's tensors whole") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  for (const int64_t stage : {0, 3}) {
    const auto collected =
        testing::tensors_collected_on(testing::config_of_stage(stage), model, {4, 2});
    REQUIRE_FALSE(collected.empty());
    for (const auto& [tensor, values] : collected)
      for (size_t i = 0; i < values.size(); ++i)
        REQUIRE(values[i] == testing::weight_of(tensor, static_cast<int64_t>(i)));
  }
}

TEST_CASE(
    "any mesh reads back what another saved, bit for bit, and the same mesh continues unchanged") {
  set_kernel_threads(1);
  struct RunLayout {
    TrainingMesh mesh;
    int64_t stage;
  };
  const std::vector<RunLayout> layouts{{{1}, 0},    {{2}, 0},       {{4}, 1},
                                       {{2, 2}, 3}, {{4, 1, 2}, 2}, {{1, 3}, 3}};
  const ModelConfig model = testing::model_of_many_blocks();
  for (const RunLayout& writer : layouts) {
    const testing::TemporaryFolder scratch;
    const auto saved = testing::state_saved_on(
        testing::config_of_stage(writer.stage), model, writer.mesh,
        [&](Rendezvous& rendezvous, RankFixture& fixture) {
          testing::train_step(fixture, 1);
          testing::train_step(fixture, 2);
          save_checkpoint(
              posix_files(), {scratch.path()}, {}, fixture.state.slices(),
              {rendezvous.rank(), rendezvous.world_size(),
               [&](const std::string& text) { return rendezvous.all_gather_text("save", text); }});
        });
    const auto resumed = [&](const RunLayout& layout, bool trains) {
      return testing::state_saved_on(testing::config_of_stage(layout.stage), model, layout.mesh,
                                     [&](Rendezvous&, RankFixture& fixture) {
                                       Checkpoint checkpoint(scratch / "step-00000000");
                                       fixture.load(checkpoint);
                                       if (trains) testing::train_step(fixture, 3);
                                     });
    };
    for (const RunLayout& reader : layouts) {
      INFO(writer.mesh.text() << " -> " << reader.mesh.text());
      REQUIRE(resumed(reader, false) == saved);
    }
    INFO(writer.mesh.text());
    const auto straight =
        testing::state_saved_on(testing::config_of_stage(writer.stage), model, writer.mesh,
                                [&](Rendezvous&, RankFixture& fixture) {
                                  for (const int64_t number : {1, 2, 3})
                                    testing::train_step(fixture, number);
                                });
    REQUIRE(straight != saved);
    REQUIRE(resumed(writer, true) == straight);
  }
}

/// Requires that each block's scale is the largest absolute value among the block's decoded
/// numbers. An element with that value has the code of 1, or the code next to that of -1.
void require_scales_of_blocks(const testing::SavedState& state, const std::string& tensor) {
  for (const bool second : {false, true}) {
    const std::string kind = second ? ".exp_avg_sq" : ".exp_avg";
    const std::vector<std::byte>& codes = state.at(tensor + kind);
    const std::vector<std::byte>& scales = state.at(cat(tensor, kind, "_absmax"));
    INFO(tensor << kind);
    REQUIRE(scales.size() / 4 == (codes.size() + 255) / 256);
    for (size_t block = 0; block < scales.size() / 4; ++block) {
      float scale = 0;
      std::memcpy(&scale, scales.data() + 4 * block, 4);
      bool reached = scale == 0;
      for (size_t i = 256 * block; i < std::min(codes.size(), 256 * (block + 1)); ++i)
        reached = reached || codes[i] == std::byte{255} || (!second && codes[i] == std::byte{0});
      REQUIRE(reached);
    }
  }
}

TEST_CASE(
    "8-bit states have the blocks of whole tensors on every mesh, and move between meshes "
    "unchanged") {
  set_kernel_threads(1);
  struct RunLayout {
    TrainingMesh mesh;
    int64_t stage;
    OffloadDevice device = OffloadDevice::kNone;
  };
  const std::vector<RunLayout> layouts{{{1}, 0},
                                       {{2}, 0},
                                       {{4}, 1, OffloadDevice::kCpu},
                                       {{2, 2}, 3},
                                       {{4, 1, 2}, 2, OffloadDevice::kNvme},
                                       {{2, 2}, 1, OffloadDevice::kNvme},
                                       {{1, 3}, 3, OffloadDevice::kCpu}};
  const ModelConfig model = model_with([](ModelConfig& m) { m.qkv_bias = true; });
  const auto config_of = [](const RunLayout& layout) {
    Config config = testing::config_of_stage(layout.stage);
    config.optimizer = optimizer_traits(OptimizerType::kAdamW8bit).defaults;
    config.optimizer.type = OptimizerType::kAdamW8bit;
    config.optimizer.min_8bit_size = 1000;
    if (layout.device != OffloadDevice::kNone) {
      testing::offload_to(config, layout.device);
      if (layout.stage == 3) config.zero.offload_param.device = OffloadDevice::kNone;
    }
    return config;
  };
  const TrainingOutcome expected = train_on_mesh(config_of(layouts[0]), model, {}, 2);
  for (const RunLayout& writer : layouts) {
    INFO(writer.mesh.text() << ", stage " << writer.stage);
    const testing::TemporaryFolder scratch;
    TrainingOutcome outcome;
    outcome.state = testing::state_saved_on(
        config_of(writer), model, writer.mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
          for (const int64_t number : {1, 2}) {
            const StepRun run = testing::train_step(fixture, number);
            if (rendezvous.rank() > 0) continue;
            outcome.losses.push_back(run.result.loss_sum / run.result.counted_tokens);
            outcome.norms.push_back(run.result.gradient_norm);
          }
          save_checkpoint(
              posix_files(), {scratch.path()}, {}, fixture.state.slices(),
              {rendezvous.rank(), rendezvous.world_size(),
               [&](const std::string& text) { return rendezvous.all_gather_text("save", text); }});
        });
    require_within_bounds(outcome, expected);
    for (const char* tensor :
         {"self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.up_proj"})
      require_scales_of_blocks(outcome.state, cat("model.layers.1.", tensor, ".weight"));
    const auto resumed = [&](const RunLayout& layout, bool trains) {
      return testing::state_saved_on(config_of(layout), model, layout.mesh,
                                     [&](Rendezvous&, RankFixture& fixture) {
                                       Checkpoint checkpoint(scratch / "step-00000000");
                                       fixture.load(checkpoint);
                                       if (trains) testing::train_step(fixture, 3);
                                     });
    };
    for (const RunLayout& reader : layouts) {
      INFO(" -> " << reader.mesh.text() << ", stage " << reader.stage);
      REQUIRE(resumed(reader, false) == outcome.state);
    }
    const auto straight = testing::state_saved_on(config_of(writer), model, writer.mesh,
                                                  [&](Rendezvous&, RankFixture& fixture) {
                                                    for (const int64_t number : {1, 2, 3})
                                                      testing::train_step(fixture, number);
                                                  });
    REQUIRE(straight != outcome.state);
    REQUIRE(resumed(writer, true) == straight);
  }
}

/// Returns the parameters and moments that this rank holds of tensors that other tensor-parallel
/// ranks hold as well, keyed by tensor, offset and kind.
std::map<std::string, std::vector<std::byte>> shared_state(const RankFixture& fixture) {
  std::map<std::string, std::vector<std::byte>> all;
  const ProgramPlan& train = fixture.plan.train;
  for (const UnitStatePiece& piece : train.pieces)
    for (const TensorSlice& slice :
         slices_in(fixture.plan.partition.unit(piece.unit), piece.begin, piece.end)) {
      const TensorInfo& tensor = train.model.tensor(slice.tensor);
      if (tensor.copies == 1) continue;
      const int64_t size = dtype_bytes(train.program.at(piece.range.buffer).format.dtype);
      const std::byte* at = fixture.memory.at(train.program, piece.range) +
                            (slice.position_in_unit - piece.begin) * size;
      all[cat(tensor.name, " ", tensor.local.offset[0], " ", piece.state, " ", slice.offset)] = {
          at, at + slice.extent * size};
    }
  return all;
}

TEST_CASE("tensors that several tensor-parallel ranks hold stay the same on all of them") {
  set_kernel_threads(1);
  const ModelConfig model =
      model_with([](ModelConfig& m) { m.qkv_bias = m.attention_out_bias = m.mlp_bias = true; });
  for (const bool sequence : {true, false})
    for (const bool rounded : {false, true})
      for (const int64_t stage : {1, 3}) {
        INFO("stage " << stage << (sequence ? "" : ", whole norms")
                      << (rounded ? ", rounded" : ""));
        Config config = testing::config_of_stage(stage);
        config.parallel.sequence = sequence;
        config.bf16.enabled = config.bf16.bf16_optimizer_states =
            config.bf16.bf16_master_weights_and_grads = rounded;
        const TrainingMesh mesh{4, 2};
        config = config_on_mesh(config, mesh);
        std::mutex mutex;
        std::map<std::string, std::vector<std::byte>> held;
        int64_t compared = 0;
        testing::run_on_mesh(options_of(mesh, config, model),
                             [&](Rendezvous&, const RankCommunicators& open) {
                               RankFixture fixture(config, model, open);
                               for (const int64_t step : {1, 2, 3})
                                 testing::train_step(fixture, step);
                               const std::lock_guard lock(mutex);
                               for (const auto& [name, bytes] : shared_state(fixture)) {
                                 const auto [known, is_new] = held.emplace(name, bytes);
                                 require(is_new || known->second == bytes,
                                         cat("all ranks hold the same ", name).c_str());
                                 compared += is_new ? 0 : 1;
                               }
                             });
        REQUIRE(compared > 40);
      }
}

}  // namespace
}  // namespace ftrun
