// These tests check that a run that ends after any of its steps continues from the checkpoint of
// that step as if it had not ended: with the same bits of every later loss, norm, learning rate,
// loss scale and batch, of all weights and moments, and the same best evaluation. The loop is that
// of real runs (TrainingLoop). FTRUN_SOAK_STOPS sets after how many different steps each layout
// ends (scripts/soak.sh). FTRUN_SOAK_LAYOUT selects a single layout, so that a long test can be
// continued.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/save.h"
#include "comm/rendezvous.h"
#include "data/loader.h"
#include "fake_run.h"
#include "inputs/run_data.h"
#include "kernels/kernels.h"
#include "mesh_runs.h"
#include "training/background_save.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::RankFixture;
using testing::SavedState;
using testing::state_saved_on;
using testing::TemporaryFolder;
using testing::TrainingMesh;

constexpr int64_t kStopSeed = 20261124;
constexpr int64_t kStopVocabulary = 200;

/// Layout is a mesh with the further settings of a run; all layouts train the same model.
struct Layout {
  std::string name;
  TrainingMesh mesh;
  int64_t stage = 0;
  std::function<void(Config&)> change = [](Config&) {};
  /// Writes saves while training continues.
  bool background = false;
};

void train_in_fp16(Config& config) {
  // The initial scale overflows, and it does again whenever it has grown.
  config.fp16.enabled = true;
  config.fp16.initial_scale_power = 17;
  config.fp16.loss_scale_window = 2;
}

std::vector<Layout> layouts() {
  const auto scheduled = [](PipelineSchedule schedule) {
    return [schedule](Config& c) { c.parallel.schedule = schedule; };
  };
  const TrainingMesh two{.shards = 2, .micro_batches = 4};
  return {
      {"one rank", {.micro_batches = 2}},
      {"data parallel", two},
      {"tensor", {.tensor = 2, .micro_batches = 2}},
      {"pipeline, 1f1b", {.stages = 2, .micro_batches = 4}, 0, scheduled(PipelineSchedule::k1F1B)},
      {"pipeline, zb-h1", {.stages = 2, .micro_batches = 4}, 0, scheduled(PipelineSchedule::kZbH1)},
      {"ZeRO 1", two, 1},
      {"ZeRO 2", two, 2},
      {"ZeRO 3", {.shards = 3, .micro_batches = 3}, 3},
      {"hybrid", {.shards = 2, .replicas = 2, .micro_batches = 4}, 3},
      {"tensor x pipeline x data", {.tensor = 2, .shards = 2, .stages = 2, .micro_batches = 4}, 1},
      {"accumulation", {.shards = 2, .micro_batches = 10}, 1},
      {"mid-epoch of a mix", two, 0, [](Config& c) { c.data.drop_last = true; }},
      {"fp16", two, 2, train_in_fp16},
      {"dropout", two, 2, [](Config& c) { c = testing::with_dropout(std::move(c)); }},
      {"host", two, 3, [](Config& c) { testing::offload_to(c, OffloadDevice::kCpu); }},
      {"disk", two, 3, [](Config& c) { testing::offload_to(c, OffloadDevice::kNvme); }},
      {"background", two, 2, train_in_fp16, true},
      {"background from the disk", two, 3,
       [](Config& c) { testing::offload_to(c, OffloadDevice::kNvme); }, true},
  };
}

/// Writes token ids drawn from a seed: `rows` rows of 8, and the last label.
std::string write_tokens(const std::string& path, int rows, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> ids(static_cast<size_t>(rows * 8 + 1));
  for (uint16_t& id : ids) id = static_cast<uint16_t>(random() % kStopVocabulary);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()),
             static_cast<std::streamsize>(2 * ids.size()));
  return path;
}

/// Returns a config with a few steps per epoch, so that most steps end in the middle of an epoch.
Config config_of(const Layout& layout, const std::string& folder, int64_t steps) {
  Config config = testing::config_of_stage(layout.stage);
  config.data.train = {write_tokens(folder + "/a.bin", 41, 1)};
  if (layout.name.starts_with("mid-epoch")) {
    config.data.train.push_back(write_tokens(folder + "/b.bin", 23, 2));
    config.data.train_weights = {3, 1};
  }
  config.data.token_dtype = TokenDtype::kUint16;
  config.scheduler.type = SchedulerType::kCosine;
  config.scheduler.warmup_num_steps = 3;
  config.scheduler.total_num_steps = config.train.steps = steps;
  config.train.seed = 7;
  config.parallel.virtual_stages = 1;
  config.gradient_clipping = 1.0;
  config.checkpoint.background = layout.background;
  config.checkpoint.every = 1;
  layout.change(config);
  return config;
}

std::string bits_text(double value) {
  return hex64(std::bit_cast<uint64_t>(value));
}

std::string text_of(const std::optional<LossScalerState>& scaler) {
  if (!scaler) return "none";
  return cat(scaler->scale, " ", scaler->iteration, " ", scaler->last_overflow, " ",
             scaler->hysteresis);
}

uint64_t hash_of(const StepBatch& batch) {
  Xxh3Stream hash;
  for (const MicroBatch& one : batch.micro_batches)
    for (const auto* ids : {&one.tokens, &one.labels, &one.positions})
      hash.update(ids->data(), ids->size() * sizeof(ids->front()));
  return hash.digest();
}

/// Returns the config with which the loop evaluates and keeps the best. The ranks' programs are
/// made without these keys.
Config with_evaluation(Config config) {
  config.data.validation = {"unread"};
  config.train.evaluation.every = 3;
  config.checkpoint.keep_best.metric = "validation.loss";
  return config;
}

/// RankRun is one rank's part of a run from its start to its end. The loop reads data and trains;
/// it saves after the steps that a test names, and takes the loss of the previous step as the
/// result of an evaluation.
class RankRun : public testing::FakeRun {
 public:
  RankRun(Rendezvous& rendezvous, RankFixture& fixture, const SequenceSet& sequences,
          const std::string& root)
      : FakeRun(with_evaluation(fixture.config), fixture.config.train.steps),
        rig_(fixture),
        sequences_(sequences),
        root_(root),
        rendezvous_(rendezvous) {
    if (config.checkpoint.background) beside_ = rendezvous.make_connection_for_thread();
  }

  void resume(int64_t step) {
    Checkpoint checkpoint(cat(root_, "/", step_folder_name(step)));
    rig_.load(checkpoint);
    progress.restore(checkpoint.meta());
    resumed = true;
  }

  /// Trains until the end of the run, and saves after the steps in `saved`. Returns a line for each
  /// step that this rank has seen.
  std::vector<std::string> train_to_end(const std::vector<int64_t>& saved) {
    saved_ = saved;
    Loader loader(sequences_, loader_options(config, rig_.plan, progress.step, config.train.steps));
    next_step_batch = [&] {
      const int64_t position = loader.next_step();
      const Loader::FetchedBatch fetched = loader.next();
      data_ =
          cat(position, " ", bits_text(fetched.batch.epoch), " ", hex64(hash_of(fetched.batch)));
      return fetched;
    };
    loop().run();
    write_on();
    settle();
    seen_.push_back(cat("end: step ", progress.step, ", ", progress.tokens, " tokens, ",
                        progress.skipped.total(), " skipped, scaler ",
                        text_of(progress.skipped.scaler_state()), ", evaluations ",
                        progress.evaluations.text()));
    return std::move(seen_);
  }

  void run(StepRun& step) override { rig_.train_executor.run(step); }

  void print_step_details(const TrainingProgress& now, const StepRun& step,
                          const StepMetrics& metrics) override {
    loss_ = metrics.loss;
    seen_.push_back(cat("step ", now.step, ": loss ", bits_text(step.result.loss_sum), ", norm ",
                        bits_text(step.result.gradient_norm),
                        step.result.finite ? "" : " (not finite)", ", rate ",
                        bits_text(step.scalars.learning_rate), ", scale ", now.skipped.loss_scale(),
                        ", tokens ", now.tokens, ", data ", data_));
  }

  std::optional<std::vector<EvaluationResult>> evaluate(StopAgreement&) override {
    return std::vector<EvaluationResult>{
        {.set = "validation", .loss = loss_, .accuracy = std::nullopt, .tokens = 1}};
  }

  bool will_save(const TrainingProgress& now) const override {
    return std::binary_search(saved_.begin(), saved_.end(), now.step);
  }

  bool save_if_due(TrainingProgress& now, const std::string&) override {
    write_on();
    if (will_save(now)) save_state();
    return false;
  }

 private:
  CheckpointMeta meta() const {
    CheckpointMeta meta;
    progress.add_to(meta);
    return meta;
  }

  CheckpointGroup group(Rendezvous& rendezvous) const {
    return {rendezvous_.rank(), rendezvous_.world_size(), [&rendezvous](const std::string& text) {
              return rendezvous.all_gather_text("save", text, WaitPolicy::kWhileAlive);
            }};
  }

  void save_state() {
    if (!beside_) {
      save_checkpoint(posix_files(), {.root = root_}, meta(), rig_.state.slices(),
                      group(rendezvous_));
      return;
    }
    settle();
    gate_.emplace();
    under_way_ = std::make_unique<BackgroundSave>(
        progress.step,
        [root = root_, meta = meta(), slices = rig_.state.take_snapshot(), group = group(*beside_),
         gate = std::make_shared<std::future<void>>(gate_->get_future())] {
          gate->wait();
          return save_checkpoint(posix_files(), {.root = root}, meta, slices, group);
        });
  }

  /// Starts writing a save one step after its state was copied, when the state has changed already.
  /// Writing continues during the next steps.
  void write_on() {
    if (!gate_) return;
    gate_->set_value();
    gate_.reset();
  }

  void settle() {
    if (!under_way_) return;
    const std::string failure = under_way_->finish().failure;
    under_way_.reset();
    rig_.state.release_snapshot();
    require(failure.empty(), failure.c_str());
  }

  RankFixture& rig_;
  const SequenceSet& sequences_;
  const std::string root_;
  Rendezvous& rendezvous_;
  std::vector<int64_t> saved_;
  std::vector<std::string> seen_;
  /// The position of the last batch in the data and its hash.
  std::string data_;
  double loss_ = 1;
  std::unique_ptr<Rendezvous> beside_;
  std::unique_ptr<BackgroundSave> under_way_;
  /// Declared after the save, so that a rank that fails destroys the gate first, which releases the
  /// save's thread.
  std::optional<std::promise<void>> gate_;
};

/// ObservedRun holds what all ranks saw of a run, and the state at its end.
struct ObservedRun {
  /// The lines of each rank: one per step, and one more.
  std::vector<std::vector<std::string>> rank_lines;
  SavedState state;
  int64_t skipped = 0;
};

/// Runs of one layout; they share a folder of checkpoints.
class StoppedRuns {
 public:
  StoppedRuns(const Layout& layout, int64_t steps)
      : layout_(layout),
        config_(config_of(layout, scratch_.path(), steps)),
        sequences_(std::move(open_run_data(config_).train)) {}

  /// Runs new ranks from the beginning (`from` is 0) or from the checkpoint of a step.
  ObservedRun run(int64_t from, const std::vector<int64_t>& saved = {}) {
    ObservedRun all;
    all.rank_lines.resize(static_cast<size_t>(layout_.mesh.ranks()));
    std::mutex mutex;
    all.state =
        state_saved_on(config_, testing::model_of_many_blocks(), layout_.mesh,
                 [&](Rendezvous& rendezvous, RankFixture& fixture) {
                   RankRun run(rendezvous, fixture, *sequences_, scratch_ / "checkpoints");
                   if (from > 0) run.resume(from);
                   all.rank_lines[static_cast<size_t>(rendezvous.rank())] = run.train_to_end(saved);
                   const std::lock_guard lock(mutex);
                   all.skipped = run.progress.skipped.total();
                 });
    return all;
  }

 private:
  const TemporaryFolder scratch_;
  const Layout& layout_;
  const Config config_;
  const std::unique_ptr<SequenceSet> sequences_;
};

/// Draws the steps after which runs end, in order.
std::vector<int64_t> draw_stops(int64_t count, int64_t steps, uint64_t seed) {
  std::vector<int64_t> all(static_cast<size_t>(steps - 1));
  std::iota(all.begin(), all.end(), 1);
  std::shuffle(all.begin(), all.end(), std::mt19937_64(seed));
  all.resize(static_cast<size_t>(count));
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::vector<std::string>> lines_after(
    const std::vector<std::vector<std::string>>& rank_lines, int64_t step) {
  std::vector<std::vector<std::string>> rest;
  for (const auto& rank : rank_lines) rest.emplace_back(rank.begin() + step, rank.end());
  return rest;
}

TEST_CASE(
    "a run that was stopped after any step continues bit for bit as one that was not stopped") {
  set_kernel_threads(1);
  const char* const stops_setting = std::getenv("FTRUN_SOAK_STOPS");
  const int64_t stops = stops_setting == nullptr ? 2 : std::atoll(stops_setting);
  const int64_t steps = std::max<int64_t>(12, stops + 1);
  const char* const only = std::getenv("FTRUN_SOAK_LAYOUT");
  int64_t points = 0, layouts_run = 0, seed = kStopSeed - 1;
  for (const Layout& layout : layouts()) {
    ++seed;  // a layout's seed does not depend on the others
    if (only != nullptr && layout.name != only) continue;
    INFO(layout.name);
    StoppedRuns runs(layout, steps);
    const ObservedRun straight = runs.run(0);
    if (layout.name.starts_with("fp16") || layout.name == "background") {
      INFO(straight.skipped << " of " << steps << " steps skipped");
      REQUIRE(straight.skipped >= 2);
      REQUIRE(straight.skipped <= steps / 2);
    }
    const std::vector<int64_t> at = draw_stops(stops, steps, static_cast<uint64_t>(seed));
    const ObservedRun saving = runs.run(0, at);
    CHECK(saving.rank_lines == straight.rank_lines);
    CHECK(saving.state == straight.state);
    for (const int64_t stop : at) {
      INFO("stopped after step " << stop << " of " << steps);
      const ObservedRun resumed = runs.run(stop);
      CHECK(resumed.rank_lines == lines_after(straight.rank_lines, stop));
      CHECK(resumed.state == straight.state);
      ++points;
    }
    ++layouts_run;
    std::cout << "stop points: " << at.size() << " of " << layout.name
              << std::endl;  // shows the progress of a long test
  }
  std::cout << "stop points: " << points << " in " << layouts_run << " layouts, runs of " << steps
            << " steps, seed " << kStopSeed << "\n";
  REQUIRE(layouts_run > 0);
}

}  // namespace
}  // namespace ftrun
