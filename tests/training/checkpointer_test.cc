// These tests check checkpoints of a run while it trains: the checkpointer itself and its files.
// The model is a few numbers, and tests control the clock and the disk.
#include "training/checkpointer.h"

#include <cerrno>
#include <filesystem>
#include <future>
#include <limits>
#include <string>
#include <vector>

#include "../checkpoint/fault_files.h"
#include "../checkpoint/test_support.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "fake_journal.h"
#include "fake_model.h"
#include "run_ranks.h"
#include "waiting.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {
namespace fs = std::filesystem;

using testing::await_that;
using testing::capture_log;
using testing::FakeJournal;
using testing::FakeModel;
using testing::MemoryFolder;
using testing::request_of;
using testing::run_sessions;
using testing::single_rank_session;
using testing::ToyState;
using Lines = std::vector<std::string>;

/// A disk that does not create ranks' files while its gate is closed.
class GatedDisk : public testing::FaultFileSystem {
 public:
  using FaultFileSystem::FaultFileSystem;

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    if (path.find("/rank-") != std::string::npos)
      await_that([this] { return open.load(); }, "the gate of the disk", std::chrono::seconds(30));
    return FaultFileSystem::create(path);
  }

  std::atomic<bool> open = true;
};

/// Returns a run that saves in the foreground every `steps` steps.
Config saving_every(int64_t steps) {
  Config config;
  config.train_batch_size = 4;
  config.checkpoint.every = steps;
  config.checkpoint.background = false;
  config.model_export.enabled = false;
  return config;
}

Config with_background_saves(Config config = saving_every(1)) {
  config.checkpoint.background = true;
  return config;
}

/// Returns the config of a run that keeps the checkpoint of the lowest loss.
Config with_best(Config config) {
  config.data.validation = {"v.bin"};
  config.checkpoint.keep_best.metric = "validation.loss";
  return config;
}

/// SavingRun is one rank's run, whose progress the test controls.
struct SavingRun {
  /// Starts a run; a rank among others passes the shared session and disk.
  SavingRun(const std::string& folder, const Config& config, bool resumes = false,
            Session* among = nullptr, GatedDisk* shared = nullptr)
      : root(folder + "/run/checkpoints"),
        request(request_of(among ? among->rank() : 0, among ? among->world_size() : 1, config)),
        progress(config) {
    request.config.output_dir = folder + "/run";
    request.resume.is_requested = resumes;
    if (!among) alone = single_rank_session(request);
    session = among ? among : alone.get();
    model.emplace(request.launch.world_size, request.launch.rank);
    if (resumes && session->is_first()) folder_writer.emplace(request);
    if (!shared) own_disk = std::make_unique<GatedDisk>(folder);
    disk = shared ? shared : own_disk.get();
    checkpointer.emplace(
        request, *session,
        CheckpointerDependencies{.model = *model,
                                 .journal = journal,
                                 .folder_writer = folder_writer ? &*folder_writer : nullptr,
                                 .files = *disk,
                                 .clock = [this] { return time; },
                                 .patience_after_failure = {}});
  }

  std::optional<ResumedRun> load() {
    return checkpointer->load([this] { return describe(); });
  }
  /// Returns the record of the run that run.json holds.
  RunManifest describe() const {
    RunManifest manifest = make_manifest(request);
    manifest.model.fingerprint = "folder";
    manifest.data["train"].fingerprint = "data";
    return manifest;
  }

  /// Trains a step and acts on the flags of all ranks.
  bool step(const RankFlags& flags) {
    checkpointer->read_flags(flags);
    model->train_to(static_cast<int>(++progress.step));
    return checkpointer->save_if_due(progress, "data");
  }
  /// Trains a step of a run that has only this rank.
  bool step() { return step(own_flags()); }
  RankFlags own_flags() const {
    RankFlags flags;
    checkpointer->add_flags(flags);
    return flags;
  }
  bool save_has_ended() const { return own_flags().count_of(RankFlag::kSaveEnded) == 1; }
  void await_save() const {
    await_that([this] { return save_has_ended(); }, "the end of the save in the background");
  }
  /// Records this loss as the evaluation after the current step.
  void evaluate(double loss) {
    progress.evaluations.add(
        progress.step,
        {{.set = "validation", .loss = loss, .accuracy = std::nullopt, .tokens = 8}});
  }

  /// Lists the steps whose checkpoints are in the run folder.
  std::vector<int64_t> steps() const {
    std::vector<int64_t> found;
    if (fs::exists(root))
      for (const auto& entry : fs::directory_iterator(root))
        if (const auto number = step_of_folder(entry.path().filename().string()))
          found.push_back(*number);
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string folder_of(int64_t step) const { return cat(root, "/", step_folder_name(step)); }
  /// Returns the version of the state in the checkpoint after `step`; -1 if it holds none of them.
  int saved_version(int64_t step) const {
    Checkpoint checkpoint(folder_of(step));
    ToyState found(1, 0, 0);
    found.clear();
    checkpoint.read(found.slices());
    for (int version = 0; version <= progress.step; ++version)
      if (found.equals(version)) return version;
    return -1;
  }
  int64_t counter(const std::string& name) const {
    RunManifest manifest;
    checkpointer->add_counters(manifest);
    return manifest.counters.at(name);
  }
  std::optional<int64_t> best_on_disk() {
    const auto best = read_best_record(*disk, root);
    return best ? std::optional(best->step) : std::nullopt;
  }

  std::string root;
  TrainRequest request;
  std::unique_ptr<GatedDisk> own_disk;
  GatedDisk* disk;
  FakeJournal journal;
  TrainingProgress progress;
  double time = 0;
  std::unique_ptr<Session> alone;
  Session* session;
  std::optional<RunFolderWriter> folder_writer;
  std::optional<FakeModel> model;
  std::optional<Checkpointer> checkpointer;
};

using StepNumbers = std::vector<int64_t>;

/// Returns whether there are as many lines as `beginnings`, and each begins with the text at its
/// index.
bool begin_with(const Lines& lines, const Lines& beginnings) {
  return std::equal(lines.begin(), lines.end(), beginnings.begin(), beginnings.end(),
                    [](const auto& line, const auto& begin) { return line.starts_with(begin); });
}

TEST_CASE(
    "the state is saved at each step at which a checkpoint is due, and reported once it is in "
    "place") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), saving_every(2));
  run.journal.on_print = [&](const std::string&) {
    CHECK(fs::exists(run.folder_of(run.progress.step) + "/checkpoint.json"));
    CHECK(fs::exists(run.root + "/latest"));
  };
  for (const bool saves : {false, true, false, true, false}) {
    run.progress.step += 1;
    CHECK(run.checkpointer->will_save(run.progress) == saves);
    run.progress.step -= 1;
    CHECK(run.step() == saves);
    CHECK(run.checkpointer->has_saved(run.progress.step) == saves);
  }
  CHECK(begin_with(run.journal.printed, {cat("saved ", run.folder_of(2), " ("),  //
                                         cat("saved ", run.folder_of(4), " (")}));
  CHECK(run.steps() == StepNumbers{2, 4});
  CHECK(run.saved_version(2) == 2);
  CHECK(run.saved_version(4) == 4);
  CHECK(run.counter("checkpoints_saved") == 2);
  CHECK(run.counter("checkpoints_failed") == 0);
  CHECK(run.model->populations == 0);  // saving in the foreground makes no copy
}

TEST_CASE("as many checkpoints are kept as the config says, and additionally the best one") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), saving_every(1));
  for (int i = 0; i < 5; ++i) run.step();
  CHECK(run.steps() == StepNumbers{4, 5});

  const MemoryFolder other;
  SavingRun best(other.path(), with_best(saving_every(1)));
  for (const double loss : {3.0, 1.0, 2.0, 2.0, 2.0}) {
    ++best.progress.step;
    best.evaluate(loss);
    best.checkpointer->save_if_due(best.progress, "data");
  }
  CHECK(best.steps() == StepNumbers{2, 4, 5});
  CHECK(best.best_on_disk() == 2);
}

TEST_CASE("the best state is saved even if no checkpoint is due") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(saving_every(0)));
  for (const double loss : {3.0, 4.0, 2.0}) {
    ++run.progress.step;
    run.evaluate(loss);
    CHECK(run.checkpointer->will_save(run.progress) == (loss != 4.0));
    CHECK(run.checkpointer->save_if_due(run.progress, "data") == (loss != 4.0));
  }
  CHECK(run.steps() == StepNumbers{1, 3});
  CHECK(run.best_on_disk() == 3);
}

TEST_CASE("a checkpoint records what a run needs to continue from it") {
  const MemoryFolder folder;
  Config config = saving_every(1);
  config.train.seed = 7;
  config.zero.stage = 2;
  SavingRun run(folder.path(), config);
  run.request.config_json = R"({"token": "hf_secret", "train": {"steps": 5}})";
  run.model->base = "frozen";
  run.load();
  run.progress.tokens = 99;
  run.step();
  const CheckpointMeta meta = Checkpoint(run.folder_of(1)).meta();
  CHECK(meta.ftrun_version == "1.2.3");
  CHECK(meta.step == 1);
  CHECK(meta.tokens == 99);
  CHECK(meta.samples == 4);
  CHECK(meta.seed == 7);
  CHECK(meta.data_fingerprint == "data");
  CHECK(meta.model_fingerprint == "folder");
  CHECK(meta.extra.at(kBaseRecord) == "frozen");
  CHECK(meta.extra.at(kConfigRecord).find("hf_secret") == std::string::npos);
  CHECK(meta.extra.at(kConfigRecord).find("\"steps\"") != std::string::npos);
  CHECK(meta.topology ==
        std::map<std::string, int64_t>{{"data", 1}, {"world_size", 1}, {"zero_stage", 2}});
}

TEST_CASE("a save in the background holds the state as it was, and counts once it has ended") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_background_saves(saving_every(2)));
  run.step();
  CHECK(run.model->calls == Lines{});
  run.disk->open = false;
  CHECK_FALSE(run.step());
  CHECK_FALSE(run.save_has_ended());
  CHECK_FALSE(run.step());
  CHECK(run.journal.printed == Lines{});
  CHECK_FALSE(run.checkpointer->has_saved(2));
  CHECK(run.checkpointer->longest_save_seconds() == 0);
  run.disk->open = true;
  run.await_save();
  run.step();
  CHECK(begin_with(run.journal.printed, {cat("saved ", run.folder_of(2), " (")}));
  CHECK(run.checkpointer->has_saved(2));
  CHECK(run.saved_version(2) == 2);
  CHECK(run.model->populations == 1);
  CHECK(run.checkpointer->longest_save_seconds() > 0);
  // The next copy is made only after the previous one was released.
  run.await_save();
  CHECK(run.model->calls == Lines{"snapshot", "release", "snapshot"});
}

TEST_CASE(
    "a save that is due waits for the save in progress, and reports a pause longer than a copy") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_background_saves());
  run.disk->open = false;
  CHECK_FALSE(run.step());
  std::future<void> opener = std::async(std::launch::async, [&] {
    await_that(
        [&] {
          return run.session->board().state().phase.what ==
                 std::string("copying the checkpoint of step 2");
        },
        "the second save");
    run.disk->open = true;
  });
  CHECK(run.step());
  opener.get();
  CHECK(run.checkpointer->has_saved(1));
  run.checkpointer->save(run.progress, "data");
  CHECK(run.steps() == StepNumbers{1, 2});
  CHECK(run.counter("checkpoints_saved") == 2);
  CHECK(run.model->calls == Lines{"snapshot", "release", "snapshot", "release"});
}

TEST_CASE(
    "with checkpoint.if_busy: skip, a checkpoint that is due while another is written is skipped, "
    "except the best") {
  const MemoryFolder folder;
  Config config = with_best(with_background_saves());
  config.checkpoint.if_busy = BusySavePolicy::kSkip;
  SavingRun run(folder.path(), config);
  run.disk->open = false;
  run.step();
  ++run.progress.step;
  CHECK_FALSE(run.checkpointer->will_save(run.progress));
  CHECK_FALSE(run.checkpointer->save_if_due(run.progress, "data"));
  CHECK(run.journal.printed ==
        Lines{cat("no checkpoint after step 2: the one after step 1 is still ",
                  "being written (checkpoint.if_busy: skip)")});
  CHECK(run.counter("checkpoints_skipped") == 1);
  ++run.progress.step;
  run.evaluate(1);
  CHECK(run.checkpointer->will_save(run.progress));
  run.disk->open = true;
  CHECK(run.checkpointer->save_if_due(run.progress, "data"));
  run.await_save();
  CHECK(run.steps() == StepNumbers{1, 3});
  CHECK(run.best_on_disk() == 3);
}

TEST_CASE("a save in the background has ended when all ranks report that theirs has") {
  const MemoryFolder folder;
  Config config = with_background_saves();
  config.checkpoint.if_busy = BusySavePolicy::kSkip;
  std::vector<Lines> printed(2);
  std::vector<StepNumbers> saved(2);
  GatedDisk disk(folder.path());
  const Lines failures = run_sessions(2, config, [&](Session& session) {
    SavingRun run(folder.path(), config, false, &session, &disk);
    RankFlags all, one;
    one.add(RankFlag::kSaveEnded);
    all.add(RankFlag::kSaveEnded);
    all.add(RankFlag::kSaveEnded);
    run.step(all);
    run.await_save();
    const auto place = static_cast<size_t>(session.rank());
    for (const RankFlags& flags : {one, all}) {
      run.step(flags);
      saved[place].push_back(run.checkpointer->has_saved(1) ? 1 : 0);
    }
    printed[place] = run.journal.printed;
    run.checkpointer->save(run.progress, "data");
  });
  REQUIRE(failures == Lines(2, ""));
  CHECK(saved == std::vector<StepNumbers>(2, StepNumbers{0, 1}));
  for (const Lines& lines : printed)
    CHECK(begin_with(lines, {"no checkpoint after step 2:", "saved "}));
}

TEST_CASE("rank 0's clock says when a checkpoint is due, counted from the previous one") {
  const MemoryFolder folder;
  Config config = saving_every(0);
  config.checkpoint.every_minutes = 2;
  SavingRun run(folder.path(), config);
  const auto is_due = [&] { return run.own_flags().count_of(RankFlag::kSaveDue) == 1; };
  run.time = 119;
  CHECK_FALSE(is_due());
  CHECK_FALSE(run.step());
  run.time = 120;
  CHECK(is_due());
  CHECK(run.step());
  CHECK_FALSE(is_due());
  CHECK_FALSE(run.checkpointer->will_save(run.progress));
  run.time = 239;
  CHECK_FALSE(run.step());
  run.time = 240;
  CHECK(run.step());
  CHECK(run.steps() == StepNumbers{2, 4});
}

TEST_CASE("a skipped checkpoint by the clock is due again after the same time as a saved one") {
  const MemoryFolder folder;
  Config config = with_background_saves(saving_every(0));
  config.checkpoint.every_minutes = 2;
  config.checkpoint.if_busy = BusySavePolicy::kSkip;
  SavingRun run(folder.path(), config);
  run.disk->open = false;
  run.time = 120;
  run.step();
  run.time = 240;
  run.step();
  CHECK(run.counter("checkpoints_skipped") == 1);
  CHECK(run.own_flags().count_of(RankFlag::kSaveDue) == 0);
  run.time = 359;
  CHECK(run.own_flags().count_of(RankFlag::kSaveDue) == 0);
  run.time = 360;
  CHECK(run.own_flags().count_of(RankFlag::kSaveDue) == 1);
  run.disk->open = true;
  run.await_save();
}

TEST_CASE("only rank 0's clock decides when a checkpoint is due") {
  const MemoryFolder folder;
  Config config = saving_every(0);
  config.checkpoint.every_minutes = 2;
  std::vector<int64_t> due(2);
  GatedDisk disk(folder.path());
  const Lines failures = run_sessions(2, config, [&](Session& session) {
    SavingRun run(folder.path(), config, false, &session, &disk);
    run.time = 1000;
    const auto place = static_cast<size_t>(session.rank());
    due[place] = run.own_flags().count_of(RankFlag::kSaveDue);
    RankFlags flags;
    flags.add(RankFlag::kSaveDue);
    run.step(flags);
    if (!run.checkpointer->has_saved(1)) due[place] = -1;
  });
  REQUIRE(failures == Lines(2, ""));
  CHECK(due == std::vector<int64_t>{1, 0});
}

TEST_CASE("a failed background save ends neither training nor earlier checkpoints") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(with_background_saves()));
  run.disk->fail_next("sync", "rank-00000", ENOSPC);
  ++run.progress.step;
  run.evaluate(1);
  CHECK(run.progress.evaluations.is_best(1));
  run.checkpointer->save_if_due(run.progress, "data");
  run.await_save();
  CHECK_FALSE(run.step());
  REQUIRE(run.journal.warnings.size() == 1);
  CHECK(run.journal.warnings[0].starts_with("checkpoint step-00000001 was not written: "));
  CHECK(run.journal.warnings[0].ends_with(
      "; training continues, and the next checkpoint is written when it is due"));
  CHECK(run.journal.manifest.counters.at("checkpoints_failed") == 1);
  CHECK(run.journal.manifest.counters.at("checkpoints_saved") == 0);
  CHECK_FALSE(run.checkpointer->has_saved(1));
  CHECK_FALSE(run.progress.evaluations.best());
  run.await_save();
  run.checkpointer->save(run.progress, "data");
  CHECK(run.steps() == StepNumbers{2});
  CHECK_FALSE(run.best_on_disk());
}

TEST_CASE("a best state whose save in the background failed is the best once it is saved") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(with_background_saves()));
  run.disk->fail_next("sync", "rank-00000", ENOSPC);
  ++run.progress.step;
  run.evaluate(1);
  run.checkpointer->save_if_due(run.progress, "data");
  run.await_save();
  run.checkpointer->save(run.progress, "data");
  REQUIRE(run.journal.warnings.size() == 1);
  CHECK(run.steps() == StepNumbers{1});
  REQUIRE(run.progress.evaluations.best());
  CHECK(run.best_on_disk() == 1);
}

TEST_CASE("two failed background saves of better states in a row leave the best one saved") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(with_background_saves(saving_every(100))));
  const auto evaluate_and_save = [&](double loss) {
    ++run.progress.step;
    run.evaluate(loss);
    run.checkpointer->save_if_due(run.progress, "data");
  };
  evaluate_and_save(3);
  run.await_save();
  for (const double better : {2.0, 1.0}) {
    run.disk->fail_next("sync", "rank-00000", ENOSPC);
    evaluate_and_save(better);
    run.await_save();
  }
  run.step();
  CHECK(run.journal.warnings.size() == 2);
  REQUIRE(run.progress.evaluations.best());
  CHECK(run.progress.evaluations.best()->step == 1);
  evaluate_and_save(2.5);  // better than the best
  run.await_save();
  run.step();
  CHECK(run.steps() == StepNumbers{1, 5});
  CHECK(run.best_on_disk() == 5);
}

TEST_CASE("a save in the foreground that fails ends the run, and nothing is reported as saved") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), saving_every(1));
  run.disk->fail_next("sync", "rank-00000", ENOSPC);
  const std::string message = testing::require_error(ExitCode::kEnvironment, [&] { run.step(); });
  CHECK(message.starts_with("checkpoint step-00000001 was not written: "));
  CHECK(run.journal.printed == Lines{});
  CHECK_FALSE(run.checkpointer->has_saved(1));
  CHECK(run.counter("checkpoints_saved") == 0);
  CHECK(run.steps() == StepNumbers{});
}

TEST_CASE("a state that is saved already is not written again, but recorded if it is the best") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(saving_every(1)));
  run.step();
  const int64_t calls = run.disk->calls();
  run.checkpointer->save(run.progress, "data");
  CHECK(run.disk->calls() == calls);
  CHECK_FALSE(run.best_on_disk());
  run.evaluate(1);
  run.checkpointer->save(run.progress, "data");
  CHECK(run.best_on_disk() == 1);
  CHECK(run.model->calls == Lines{"slices"});
  // The checkpoint is recorded once.
  remove_best_record(*run.disk, run.root);
  run.checkpointer->save(run.progress, "data");
  CHECK_FALSE(run.best_on_disk());
}

TEST_CASE("the last save follows a background save of another step") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_background_saves());
  run.disk->open = false;
  run.step();
  ++run.progress.step;
  run.model->train_to(2);
  run.disk->open = true;
  run.checkpointer->save(run.progress, "data");
  CHECK(run.model->calls == Lines{"snapshot", "release", "slices"});
  CHECK(run.steps() == StepNumbers{1, 2});
  CHECK(run.saved_version(2) == 2);
}

TEST_CASE("a run begins with the model's weights, and removes what a killed save left") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), saving_every(1));
  run.disk->make_folder(run.root + "/step-00000009.tmp-0123abcd");
  CHECK_FALSE(run.load());
  CHECK(run.model->calls == Lines{"first weights"});
  CHECK(run.model->bases_read == 1);
  CHECK(fs::is_empty(run.root));
}

/// Runs until it has saved after steps 2 and 4, with its record.
void run_with_saves(const std::string& folder, const Config& config = saving_every(2)) {
  SavingRun run(folder, config, true);  // a resumable run has a record
  run.folder_writer->start(run.describe(), 1, 5);
  for (int i = 0; i < 5; ++i) run.step();
  run.folder_writer->update_manifest(
      [&](RunManifest& manifest) { run.checkpointer->add_counters(manifest); });
}

TEST_CASE("a run that is resumed continues from the newest checkpoint, or the one asked for") {
  const MemoryFolder folder;
  run_with_saves(folder.path());
  for (const int64_t step : {4, 2}) {
    SavingRun run(folder.path(), saving_every(2), true);
    if (step == 2) run.request.resume.step = 2;
    run.model->train_to(77);
    const std::optional<ResumedRun> resumed = run.load();
    REQUIRE(resumed);
    CHECK(resumed->folder == run.folder_of(step));
    CHECK(resumed->meta.step == step);
    CHECK(run.model->calls == Lines{cat("load ", step)});
    CHECK(run.model->state.equals(static_cast<int>(step)));
    CHECK(run.checkpointer->has_saved(step));
    CHECK(
        begin_with(run.journal.printed, {cat("resumed from ", run.folder_of(step), " (read in ")}));
  }
}

TEST_CASE("a resume of another run is refused before anything is read") {
  const MemoryFolder folder;
  run_with_saves(folder.path());
  SavingRun run(folder.path(), saving_every(2), true);
  run.request.config_json = R"({"train": {"seed": 8, "steps": 5}})";
  CHECK(testing::require_error(ExitCode::kUsage, [&] { run.load(); })
            .find("this is not the run that was started there; 1 thing differs:\n  "
                  "config.train.seed: was ") != std::string::npos);
  CHECK(run.model->calls == Lines{});
}

TEST_CASE("a resume on other base weights is refused before the state is read") {
  const MemoryFolder folder;
  {
    SavingRun run(folder.path(), saving_every(1), true);
    run.model->base = "frozen";
    run.load();
    run.folder_writer->start(run.describe(), 1, 5);
    run.step();
  }
  SavingRun run(folder.path(), saving_every(1), true);
  run.model->base = "other";
  CHECK(testing::require_error(ExitCode::kBadInput, [&] { run.load(); }) ==
        cat(run.folder_of(1), ": another base"));
  CHECK(run.model->calls == Lines{});
}

TEST_CASE("a run whose checkpoints are gone does not start over by itself") {
  const MemoryFolder folder;
  run_with_saves(folder.path());
  fs::remove_all(folder / "run/checkpoints");
  SavingRun run(folder.path(), saving_every(2), true);
  CHECK(testing::require_error(ExitCode::kBadInput, [&] { run.load(); }) ==
        cat(folder / "run/run.json", ": the run saved checkpoints, but ", run.root,
            " contains none"));
}

TEST_CASE("a resumed run that had saved nothing starts from the beginning") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), saving_every(2), true);
  const std::string log = capture_log([&] { CHECK_FALSE(run.load()); });
  CHECK(run.model->calls == Lines{"first weights"});
  CHECK(log.find("held no run: training starts from the beginning") != std::string::npos);
}

TEST_CASE("the best checkpoint of a resumed run is one that exists") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(saving_every(1)));
  for (const double loss : {3.0, 2.0}) {
    ++run.progress.step;
    run.evaluate(loss);
    run.checkpointer->save_if_due(run.progress, "data");
  }
  run.disk->remove_all(run.folder_of(2));
  run.checkpointer->restore_best(run.progress);
  CHECK(run.journal.warnings ==
        Lines{cat(run.folder_of(2), ": the best checkpoint is missing; the ",
                  "one before it or a later one replaces it")});
  REQUIRE(run.progress.evaluations.best());
  CHECK(run.progress.evaluations.best()->step == 1);
  CHECK(run.best_on_disk() == 1);
}

TEST_CASE("a run has no best checkpoint if all that it knows of are gone") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(saving_every(1)));
  for (const double loss : {3.0, 2.0}) {
    ++run.progress.step;
    run.evaluate(loss);
    run.checkpointer->save_if_due(run.progress, "data");
  }
  for (const int64_t step : {1, 2}) run.disk->remove_all(run.folder_of(step));
  run.checkpointer->restore_best(run.progress);
  CHECK_FALSE(run.progress.evaluations.best());
  CHECK(run.journal.warnings.size() == 2);
}

TEST_CASE("a run resumed from before its first best removes the record of a later best") {
  const MemoryFolder folder;
  const Config config = with_best(saving_every(1));
  SavingRun before(folder.path(), config);
  before.step();
  ++before.progress.step;
  before.evaluate(1);
  before.checkpointer->save_if_due(before.progress, "data");
  REQUIRE(before.best_on_disk() == 2);
  for (const int64_t step : {2, 1}) {
    SavingRun run(folder.path(), config);
    run.progress.restore(Checkpoint(run.folder_of(step)).meta());
    run.checkpointer->restore_best(run.progress);
    CHECK(run.best_on_disk().has_value() == (step == 2));
  }
}

TEST_CASE("a run resumed without a best of its own keeps the record of an earlier step") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(saving_every(1)));
  ++run.progress.step;
  run.evaluate(1);
  run.checkpointer->save_if_due(run.progress, "data");
  run.step();
  Config other = with_best(saving_every(1));
  other.checkpoint.keep_best.mode = BestMode::kMax;
  SavingRun resumed(folder.path(), other);
  resumed.progress.restore(Checkpoint(run.folder_of(2)).meta());
  resumed.checkpointer->restore_best(resumed.progress);
  CHECK_FALSE(resumed.progress.evaluations.best());
  CHECK(resumed.best_on_disk() == 1);
}

TEST_CASE(
    "best weights that are not the last ones are loaded for the export, which names their step") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_best(saving_every(1)));
  StopAgreement stop([] { return 0; }, [](int signal) { return signal; });
  for (const double loss : {3.0, 0.5, 2.0}) {
    ++run.progress.step;
    run.model->train_to(static_cast<int>(run.progress.step));
    run.evaluate(loss);
    run.checkpointer->save_if_due(run.progress, "data");
  }
  run.model->calls.clear();
  run.journal.printed.clear();
  run.checkpointer->load_best(run.progress);
  CHECK(run.model->state.equals(2));
  run.checkpointer->export_model(stop);
  CHECK(run.model->calls == Lines{"load 2", "export"});
  CHECK(run.journal.printed == Lines{cat("exported ", folder / "run/export/model",
                                         " (of step 2, the best by validation.loss: 0.5)")});

  ++run.progress.step;
  run.evaluate(0.25);
  run.model->calls.clear();
  run.checkpointer->load_best(run.progress);
  CHECK(run.model->calls == Lines{});
}

TEST_CASE(
    "an export is reported, with weights that did not change, unless it was stopped or failed") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), saving_every(1));
  int signal = 0;
  StopAgreement stop([&] { return signal; }, [](int own) { return own; });
  run.model->exported.unchanged_warning = "2 tensors are as they were";
  run.checkpointer->export_model(stop);
  CHECK(run.journal.printed == Lines{cat("exported ", folder / "run/export/model")});
  CHECK(run.journal.warnings == Lines{"2 tensors are as they were"});

  signal = 15;
  run.checkpointer->export_model(stop);
  CHECK(run.journal.printed.size() == 1);
  CHECK(run.journal.warnings.size() == 1);

  signal = 0;
  run.model->exported.failure =
      std::make_exception_ptr(Error(ExitCode::kEnvironment, "the disk is full", "make room"));
  CHECK(testing::require_error(ExitCode::kEnvironment, [&] {
          run.checkpointer->export_model(stop);
        }) == "the disk is full");
  CHECK(run.journal.printed.size() == 1);
}

TEST_CASE("a failing run waits for its background save, and names the checkpoint") {
  const MemoryFolder folder;
  SavingRun run(folder.path(), with_background_saves());
  run.disk->open = false;
  run.step();
  const std::future<void> opener = std::async(std::launch::async, [&] { run.disk->open = true; });
  const std::string log = capture_log([&] {
    run.checkpointer->end_background_save(
        Error(ExitCode::kNumerical, "the loss is nan", "lower it"));
  });
  CHECK(log.find(cat("saved ", run.folder_of(1))) != std::string::npos);
  CHECK(run.steps() == StepNumbers{1});
}

TEST_CASE("a failing run gives up a background save whose disk does not answer") {
  const MemoryFolder folder;
  Config config = with_background_saves();
  config.comm.timeout = 1;
  // The save continues after the checkpointer is destroyed, so its files must exist until this
  // program ends.
  static auto* const run = new SavingRun(folder.path(), config);
  run->disk->open = false;
  run->step();
  const std::string log = capture_log([&] {
    run->checkpointer->end_background_save(
        Error(ExitCode::kNumerical, "the loss is nan", "lower it"));
  });
  CHECK_THAT(log, Catch::Contains(
                      "the checkpoint after step 1 was not written within 1.0s, and is given up"));
  CHECK(run->steps() == StepNumbers{});
  run->disk->open = true;
  await_that([] { return fs::exists(run->root + "/latest"); }, "the save that was left",
             std::chrono::seconds(60));
}

TEST_CASE("a run that has lost a peer does not wait for its save, which needs the peer") {
  const MemoryFolder folder;
  // The save continues after the checkpointer is destroyed, so its files must exist until this
  // program ends.
  static auto* const run = new SavingRun(folder.path(), with_background_saves());
  run->disk->open = false;
  run->step();
  run->checkpointer->end_background_save(
      Error(ExitCode::kPeerLost, "rank 1 is gone", "look at it"));
  CHECK(run->steps() == StepNumbers{});
  run->disk->open = true;
  await_that([] { return fs::exists(run->root + "/latest"); }, "the save that was left",
             std::chrono::seconds(60));
}

TEST_CASE("ranks save and load together, each its own part") {
  const MemoryFolder folder;
  const Config config = saving_every(2);
  const auto together = [&](const std::function<void(SavingRun&)>& body) {
    GatedDisk disk(folder.path());
    return run_sessions(2, config, [&](Session& session) {
      SavingRun run(folder.path(), config, true, &session, &disk);
      body(run);
    });
  };
  std::vector<int> bases(2), equal(2);
  const RankFlags none;
  REQUIRE(together([&](SavingRun& run) {
            run.load();
            if (run.folder_writer) run.folder_writer->start(run.describe(), 1, 5);
            bases[static_cast<size_t>(run.session->rank())] = run.model->bases_read;
            for (int i = 0; i < 4; ++i) run.step(none);
          }) == Lines(2, ""));
  CHECK(bases == std::vector<int>{1, 0});  // rank 0's record counts
  CHECK(SavingRun(folder.path(), config).steps() == StepNumbers{2, 4});
  CHECK(Checkpoint(folder / "run/checkpoints/step-00000004").manifest().files.size() == 2);
  REQUIRE(together([&](SavingRun& run) {
            const auto resumed = run.load();
            equal[static_cast<size_t>(run.session->rank())] =
                resumed && resumed->meta.step == 4 && run.model->state.equals(4) ? 1 : 0;
          }) == Lines(2, ""));
  CHECK(equal == std::vector<int>{1, 1});
}

TEST_CASE("a failure of one rank's disk fails all ranks") {
  const MemoryFolder folder;
  const Config config = saving_every(1);
  GatedDisk disk(folder.path());
  disk.fail_next("sync", "rank-00001", ENOSPC);
  const Lines failures = run_sessions(2, config, [&](Session& session) {
    SavingRun run(folder.path(), config, false, &session, &disk);
    run.step({});
  });
  for (const std::string& failure : failures)
    CHECK(failure.starts_with("checkpoint step-00000001 was not written: rank 1: "));
}

}  // namespace
}  // namespace ftrun
