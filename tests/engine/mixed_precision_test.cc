#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "kernels/kernels.h"
#include "mesh_runs.h"
#include "training/prepare_step.h"
#include "training/training_progress.h"

#include <catch2/catch.hpp>

// These tests train in 16 bits on tensor ranks and on pipeline stages. The results must equal those
// of one process in the same precision, except for rounding, and all ranks must share one loss
// scale, whichever of them overflows.

namespace ftrun {
namespace {

using testing::RankFixture;
using testing::saved_slices;
using testing::state_saved_on;
using testing::TrainingMesh;
using testing::TrainingOutcome;

using enum PipelineSchedule;

/// NarrowLayout describes the layout of a run in 16 bits.
struct NarrowLayout {
  TrainingMesh mesh;
  int64_t stage = 0;
  PipelineSchedule schedule = k1F1B;
  bool tied = false;
  bool sequence = true;

  std::string text() const {
    return cat("stage ", stage, ", ", name_of(schedule), ", ", mesh.text(), tied ? ", tied" : "",
               sequence ? "" : ", whole norms");
  }
};

Config narrow_run(ConfigDtype precision, const NarrowLayout& layout = {}) {
  Config config = testing::config_of_stage(layout.stage);
  config.bf16.enabled = precision == ConfigDtype::kBf16;
  config.fp16.enabled = precision == ConfigDtype::kFp16;
  config.parallel.schedule = layout.schedule;
  config.parallel.virtual_stages =
      layout.schedule == kInterleaved || layout.schedule == kZbV ? 2 : 1;
  config.parallel.sequence = layout.sequence;
  return config;
}

ModelConfig narrow_model(bool tied = false) {
  return testing::with_layers(testing::model_of_many_blocks(tied), 4);
}

/// Runs the step after `progress` on the mesh's batches, prepared and counted as the trainer does.
StepRun take_step(RankFixture& fixture, TrainingProgress& progress) {
  testing::set_batches(fixture, progress.step + 1);
  StepBatch batch;
  batch.counted_tokens_global = static_cast<int64_t>(fixture.batches.size()) *
                                data_parallel_place(fixture.plan.options.state).count *
                                fixture.plan.train.model.batch.tokens();
  StepRun run = prepare_step(fixture.config, {fixture.config.scheduler, 1}, progress, batch);
  run.micro_batches = fixture.batches;
  fixture.train_executor.run(run);
  ++progress.step;
  progress.skipped.add_step(progress.step, run.result.finite, std::nullopt);
  return run;
}

// Comparison with one process.

constexpr int64_t kNarrowSteps = 3;

TrainingOutcome train_narrow(const Config& config, const ModelConfig& model,
                             const TrainingMesh& mesh) {
  TrainingOutcome outcome;
  outcome.state =
      state_saved_on(config, model, mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
        TrainingProgress progress(fixture.config);
        for (int64_t step = 1; step <= kNarrowSteps; ++step) {
          const StepRun run = take_step(fixture, progress);
          require(run.result.finite, "the steps are finite");
          if (rendezvous.rank() > 0) continue;
          outcome.losses.push_back(run.result.loss_sum);
          outcome.norms.push_back(run.result.gradient_norm);
        }
      });
  return outcome;
}

/// Returns the config with an optimizer whose updates are proportional to the gradients, so that
/// the error of a weight shows the error of its gradients. AdamW divides gradients by their size,
/// as clipping does: a wrong scale would not show, and the rounding error of a tiny gradient would
/// become a full step.
Config with_proportional_updates(Config config) {
  config.gradient_clipping = 0;
  config.optimizer.type = OptimizerType::kSgd;
  config.optimizer.momentum = 0.9;
  config.optimizer.lr = 0.1;
  return config;
}

/// Returns the relative error of each parameter's movement: ||found - expected|| / ||expected -
/// begun||, where `begun` is its value before training.
std::map<std::string, double> relative_errors_of_movement(const TrainingOutcome& found,
                                                          const TrainingOutcome& expected) {
  std::map<std::string, double> errors;
  for (const auto& [name, bytes] : expected.state) {
    if (!name.ends_with(".param")) continue;
    const std::string tensor = name.substr(0, name.size() - std::string(".param").size());
    const auto* a = reinterpret_cast<const float*>(found.state.at(name).data());
    const auto* b = reinterpret_cast<const float*>(bytes.data());
    double difference = 0, movement = 0;
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
      difference += std::pow(double{a[i]} - b[i], 2);
      movement += std::pow(double{b[i]} - testing::weight_of(tensor, static_cast<int64_t>(i)), 2);
    }
    errors[tensor] = std::sqrt(difference / movement);
  }
  return errors;
}

/// Trains one process in fp32. The gradients of the mean over all tokens are used as they are,
/// without the functions that prepare and decide the other runs' steps, so that an error in these
/// shows.
TrainingOutcome train_plainly(const ModelConfig& model) {
  TrainingOutcome outcome;
  outcome.state = state_saved_on(with_proportional_updates(narrow_run(ConfigDtype::kFp32)), model,
                                 {}, [&](Rendezvous&, RankFixture& fixture) {
                                   for (int64_t step = 1; step <= kNarrowSteps; ++step) {
                                     testing::set_batches(fixture, step);
                                     StepRun run = fixture.prepare_step(step);
                                     const int64_t tokens =
                                         static_cast<int64_t>(fixture.batches.size()) *
                                         fixture.plan.train.model.batch.tokens();
                                     run.scalars.token_loss_factor = 1 / static_cast<float>(tokens);
                                     run.policy = [](const StepSums& sums) {
                                       return StepDecision{.gradient_norm = sums.gradient_norm};
                                     };
                                     run.scalars.update = step;
                                     fixture.train_executor.run(run);
                                     outcome.losses.push_back(run.result.loss_sum);
                                     outcome.norms.push_back(run.result.gradient_norm);
                                   }
                                 });
  return outcome;
}

/// OneProcess holds the outcomes of one process in 16 bits and in fp32, and the difference that
/// rounding to 16 bits makes for each parameter.
struct OneProcess {
  OneProcess(ConfigDtype precision, bool tied)
      : narrow(
            train_narrow(with_proportional_updates(narrow_run(precision)), narrow_model(tied), {})),
        plain(train_plainly(narrow_model(tied))),
        rounding(relative_errors_of_movement(narrow, plain)) {}
  TrainingOutcome narrow;
  TrainingOutcome plain;
  std::map<std::string, double> rounding;
};

/// Returns the largest relative error of rounding to a precision: half a unit in the last place of
/// a significand of 8 (bf16) or 11 (fp16) bits.
double rounding_unit_of(ConfigDtype precision) {
  return precision == ConfigDtype::kBf16 ? 0x1p-8 : 0x1p-11;
}

/// Requires that losses and norms agree within these bounds, in units of the rounding error `unit`:
/// * Norm: 1. Rounding errors of the elements have random signs, so their sum is nearly orthogonal
/// to the gradient. The gradient is off by a few units of its length, its length by less than one.
/// * Loss: 1/32. The logits here are of size 0.1, and about twenty successive roundings leave them
/// off by about 0.5 units. The mean over 192 tokens is then off by 0.04 units, which is less than a
/// hundredth of a unit of a loss of 5.3. The bound is three times that.
/// Weights are compared in require_result_of_one_process(). Another layout rounds at other places,
/// so it may differ from the exact run as much as one process does, but in the opposite direction:
/// the bound of each tensor is twice the rounding error of one process.
void require_near(const TrainingOutcome& found, const TrainingOutcome& expected, double unit) {
  const testing::Differences differences = testing::differences(found, expected);
  CHECK(differences.loss < unit / 32);
  CHECK(differences.norm < unit);
}

/// Requires that the error of one process is only rounding. It is a few units of the update's
/// length: two to three were measured, and up to ten for queries and keys in fp16, whose smallest
/// numbers hold fewer bits of the softmax's results. The limit is twice that.
void require_rounding_alone(const OneProcess& one, double unit) {
  require_near(one.narrow, one.plain, unit);
  for (const auto& [tensor, rounding] : one.rounding) {
    INFO(tensor);
    const bool from_softmax =
        tensor.find("q_proj") != std::string::npos || tensor.find("k_proj") != std::string::npos;
    CHECK(rounding < (from_softmax ? 20 : 6.5) * unit);
  }
}

void require_result_of_one_process(const TrainingOutcome& found, const OneProcess& one,
                                   double unit) {
  require_near(found, one.narrow, unit);
  const auto off = relative_errors_of_movement(found, one.narrow);
  CHECK(off.size() == one.rounding.size());
  for (const auto& [tensor, rounding] : one.rounding) {
    INFO(tensor);
    CHECK(off.at(tensor) < 2 * rounding);
  }
}

TEST_CASE(
    "in 16 bits, tensor ranks and stages train what one process trains in 16 bits, up to "
    "rounding") {
  set_kernel_threads(1);
  const std::vector<NarrowLayout> layouts{
      {{.stages = 2}, 0, kGpipe},
      {{.stages = 2}, 1, k1F1B, true},
      {{.shards = 2, .stages = 2}, 3, kInterleaved},
      {{.shards = 2, .stages = 2}, 0, kZbH1, true},
      {{.shards = 2, .stages = 2}, 1, kZbV},
      {{.shards = 2, .stages = 2}, 3, k1F1B, true},
      {{.stages = 4}, 0, k1F1B},
      {{.shards = 2, .stages = 2}, 1, kGpipe, true},
      {{.shards = 2, .stages = 2}, 3, kZbH1},
      {{.stages = 2}, 0, kInterleaved, true},
      {{.stages = 2}, 3, kZbV, true},
      {{.tensor = 2, .shards = 2}, 1, k1F1B, true},
      {{.tensor = 2}, 0},
      {{.tensor = 2}, 0, k1F1B, true, false},
      {{.tensor = 2, .shards = 2}, 1, k1F1B, false, false},
      {{.tensor = 2}, 3, k1F1B, true, false},
      {{.tensor = 2, .shards = 2}, 3},
      {{.tensor = 2, .stages = 2}, 1, kZbV, true},
      {{.tensor = 2, .shards = 2, .stages = 2}, 3, kInterleaved, false, false},
  };
  for (const ConfigDtype precision : {ConfigDtype::kBf16, ConfigDtype::kFp16}) {
    std::map<bool, OneProcess> one;
    for (const bool tied : {false, true}) {
      one.try_emplace(tied, precision, tied);
      INFO(name_of(precision) << " in one process" << (tied ? ", tied" : ""));
      require_rounding_alone(one.at(tied), rounding_unit_of(precision));
    }
    size_t turn = 0;
    for (const NarrowLayout& layout : layouts) {
      // fp16 moves and sums the same values as bf16, so every second layout suffices; each schedule
      // and each stage occurs in them.
      if (precision == ConfigDtype::kFp16 && turn++ % 2 == 1) continue;
      INFO(name_of(precision) << ", " << layout.text());
      require_result_of_one_process(
          train_narrow(with_proportional_updates(narrow_run(precision, layout)),
                       narrow_model(layout.tied), layout.mesh),
          one.at(layout.tied), rounding_unit_of(precision));
    }
  }
}

// Overflows.

/// Makes one neuron of a layer large on one tensor rank. No other layer reads the neuron, so only
/// one gradient becomes large: that of the neuron's column in the down projection.
void write_large_neuron(RankFixture& fixture, int layer, int tensor_rank) {
  const StateOptions& ranks = fixture.plan.options.state;
  if (ranks.tensor.index != tensor_rank) return;
  const ModelConfig model = narrow_model();
  const int64_t neurons = model.feed_forward / ranks.tensor.count;
  const std::string mlp = cat("model.layers.", layer, ".mlp.");
  for (int64_t i = 0; i < model.hidden; ++i) {
    testing::overwrite_weight(fixture, mlp + "gate_proj.weight", i, 60);
    testing::overwrite_weight(fixture, mlp + "up_proj.weight", i, 60);
    testing::overwrite_weight(fixture, mlp + "down_proj.weight", i * neurons, 0);
  }
}

Config scaled_run(const NarrowLayout& layout) {
  Config config = narrow_run(ConfigDtype::kFp16, layout);
  config.fp16.hysteresis = 1;
  return config;
}

/// Account holds what a rank observed in a run.
struct Account {
  std::vector<bool> finite;
  std::vector<double> scales;
  /// The message that names where the first step that was not finite failed.
  std::string location;
};

constexpr size_t kMaxSteps = 16;

/// Trains one step; plants a loud neuron in a layer of one tensor rank; repeats the step until the
/// loss scale is small enough for it to be finite; then trains one more step.
std::vector<Account> overflow_on(const NarrowLayout& layout, int layer, int tensor_rank) {
  std::vector<Account> accounts(static_cast<size_t>(layout.mesh.ranks()));
  state_saved_on(scaled_run(layout), narrow_model(), layout.mesh,
                 [&](Rendezvous& rendezvous, RankFixture& fixture) {
                   Account& account = accounts[static_cast<size_t>(rendezvous.rank())];
                   TrainingProgress progress(fixture.config);
                   const auto step = [&] {
                     const auto before = saved_slices(fixture.state);
                     const StepRun run = take_step(fixture, progress);
                     account.finite.push_back(run.result.finite);
                     account.scales.push_back(progress.skipped.loss_scale());
                     require((saved_slices(fixture.state) == before) != run.result.finite,
                             "finite steps change the weights, others nothing");
                     return run;
                   };
                   step();
                   // The neuron is written into the 16-bit copy that layers compute with. The next
                   // finite update rebuilds this copy from the master weights, which removes it.
                   write_large_neuron(fixture, layer, tensor_rank);
                   StepRun run = step();
                   account.location = fixture.train_executor.find_nonfinite(run).text;
                   while (!account.finite.back() && account.finite.size() < kMaxSteps) step();
                   step();
                 });
  return accounts;
}

TEST_CASE(
    "an fp16 overflow of one stage or tensor rank skips the step and halves the scale on all "
    "ranks") {
  set_kernel_threads(1);
  struct Overflow {
    NarrowLayout layout;
    int layer;
    int tensor_rank = 0;
  };
  const std::vector<Overflow> overflows{
      {{{.stages = 2}, 0, kGpipe}, 0},
      {{{.shards = 2, .stages = 2}, 1, k1F1B}, 3},
      {{{.shards = 2, .stages = 2}, 3, kInterleaved}, 1},
      {{{.stages = 4}, 0, kZbH1}, 2},
      {{{.shards = 2, .stages = 2}, 1, kZbV}, 2},
      {{{.stages = 2}, 3, kZbV}, 3},
      {{{.tensor = 2}, 0}, 1, 0},
      {{{.tensor = 2, .shards = 2}, 1, k1F1B, false, false}, 0, 1},
      {{{.tensor = 2, .shards = 2}, 3}, 3, 1},
      {{{.tensor = 2, .stages = 2}, 0, k1F1B}, 3, 1},
  };
  for (const auto& [layout, layer, tensor_rank] : overflows) {
    INFO(layout.text() << ", layer " << layer << " of tensor rank " << tensor_rank);
    const auto pipeline =
        testing::options_of(layout.mesh, scaled_run(layout), narrow_model()).pipeline;
    const std::vector<Account> accounts = overflow_on(layout, layer, tensor_rank);
    const Account& first = accounts.front();
    CHECK(first.finite[0]);
    CHECK_FALSE(first.finite[1]);
    CHECK(first.finite[first.finite.size() - 2]);
    CHECK(first.finite.back());
    double scale = 0x1p16;
    for (size_t i = 0; i < first.finite.size(); ++i) {
      if (!first.finite[i]) scale /= 2;
      CHECK(first.scales[i] == scale);
    }
    bool met = false;
    for (size_t rank = 0; rank < accounts.size(); ++rank) {
      const Account& account = accounts[rank];
      INFO("rank " << rank << ": " << account.location);
      CHECK(account.finite == first.finite);
      CHECK(account.scales == first.scales);
      if (account.location.empty()) continue;
      met = true;
      const int ranks_a_stage = layout.mesh.ranks() / layout.mesh.stages;
      // Layers are counted from the embedding, which is layer 0.
      CHECK(pipeline.stage_has_layer(static_cast<int>(rank) / ranks_a_stage, layer + 1));
      CHECK(static_cast<int>(rank) % layout.mesh.tensor == tensor_rank);
      CHECK(account.location.find(cat("(layers.", layer, "): d_")) != std::string::npos);
    }
    CHECK(met);
  }
}

TEST_CASE(
    "an fp16 run on stages continues bit for bit from a checkpoint, including its loss scale") {
  set_kernel_threads(1);
  struct Tail {
    std::vector<double> losses, norms, scales;
  };
  constexpr int kTail = 6;
  const NarrowLayout layout{{.shards = 2, .stages = 2}, 1, kInterleaved};
  Config config = narrow_run(ConfigDtype::kFp16, layout);
  // The scale doubles soon after an overflow; the step where it does depends on all counters of the
  // scaler, so a counter that the checkpoint lost would show.
  config.fp16.loss_scale_window = 3;
  const auto train_last_steps = [&](Rendezvous& rendezvous, RankFixture& fixture,
                                    TrainingProgress& progress, Tail& tail) {
    for (int step = 0; step < kTail; ++step) {
      const StepRun run = take_step(fixture, progress);
      if (rendezvous.rank() > 0) continue;
      tail.losses.push_back(run.result.loss_sum);
      tail.norms.push_back(run.result.finite ? run.result.gradient_norm : -1);
      tail.scales.push_back(progress.skipped.loss_scale());
    }
  };
  const testing::TemporaryFolder scratch;
  Tail straight, resumed;
  const auto straight_state = state_saved_on(
      config, narrow_model(), layout.mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
        TrainingProgress progress(fixture.config);
        take_step(fixture, progress);
        write_large_neuron(fixture, 1, 0);
        require(!take_step(fixture, progress).result.finite, "the neuron is too loud");
        for (size_t tries = 0; !take_step(fixture, progress).result.finite; ++tries)
          require(tries < kMaxSteps, "the scale fits in the end");
        CheckpointMeta meta;
        meta.step = progress.step;
        meta.skipped_steps = progress.skipped.total();
        meta.loss_scaler = progress.skipped.scaler_state();
        save_checkpoint(posix_files(), {scratch.path()}, meta, fixture.state.slices(),
                        {rendezvous.rank(), rendezvous.world_size(), [&](const std::string& text) {
                           return rendezvous.all_gather_text("save", text);
                         }});
        train_last_steps(rendezvous, fixture, progress, straight);
      });
  const auto resumed_state = state_saved_on(
      config, narrow_model(), layout.mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
        Checkpoint checkpoint(list_checkpoints(scratch.path()).front().folder);
        fixture.load(checkpoint);
        TrainingProgress progress(fixture.config);
        progress.step = checkpoint.meta().step;
        progress.skipped.restore(checkpoint.meta().skipped_steps, checkpoint.meta().loss_scaler);
        train_last_steps(rendezvous, fixture, progress, resumed);
      });
  CHECK(straight.scales.front() < 0x1p16);
  CHECK(straight.scales.back() > straight.scales.front());
  CHECK(resumed.scales == straight.scales);
  CHECK(resumed.losses == straight.losses);
  CHECK(resumed.norms == straight.norms);
  CHECK(resumed_state == straight_state);
}

}  // namespace
}  // namespace ftrun
