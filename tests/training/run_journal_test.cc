// These tests run the journal on each rank of a run.
#include "training/run_journal.h"

#include <filesystem>
#include <string>
#include <vector>

#include "../checkpoint/test_support.h"
#include "base/error.h"
#include "base/log.h"
#include "run_ranks.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {
namespace fs = std::filesystem;

using testing::capture_log;
using testing::capture_output;
using testing::MemoryFolder;
using testing::request_of;
using testing::run_sessions;
using testing::single_rank_session;
using Lines = std::vector<std::string>;

Config config_in(const std::string& folder) {
  Config config;
  config.train_batch_size = 4;
  config.train.log.every = 1;
  config.train.log.tensorboard = false;
  config.output_dir = folder;
  return config;
}

/// JournalOfRank is a rank's journal with the objects that it borrows.
struct JournalOfRank {
  JournalOfRank(Session& among, const Config& config)
      : request(request_of(among.rank(), among.world_size(), config)),
        session(among),
        journal(request, session, [this](const LogOptions& options) {
          has_record = fs::exists(request.config.output_dir + "/run.json");
          logs.push_back(options);
        }) {}

  /// Opens the journal for a run that has done `steps_done` of 9 steps.
  void open(int64_t steps_done = 0) {
    journal.open_folder();
    journal.open([this] { return make_manifest(request); }, steps_done, 9);
  }

  TrainRequest request;
  Session& session;
  /// The options of the logs that were opened; they say whether the run's record existed before.
  std::vector<LogOptions> logs;
  bool has_record = false;
  RunJournal journal;
};

/// The journal of a run's only rank.
struct SingleRankJournal {
  explicit SingleRankJournal(const Config& config)
      : session(single_rank_session(request_of(0, 1, config))), rank(*session, config) {}

  RunPaths paths() const { return RunPaths(rank.request.config.output_dir); }

  std::unique_ptr<Session> session;
  JournalOfRank rank;
  RunJournal& journal = rank.journal;
};

StepMetrics journaled_step(int64_t number) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = 2;
  metrics.tokens = 8;
  metrics.step_seconds = 0.5;
  return metrics;
}

TEST_CASE("only rank 0 writes the run folder; what other ranks report is ignored") {
  const MemoryFolder folder;
  const Config config = config_in(folder / "run");
  std::vector<int> writers(2), updates(2);
  const std::string text = capture_output([&] {
    const Lines failures = run_sessions(2, config, [&](Session& session) {
      JournalOfRank rank(session, config);
      const auto place = static_cast<size_t>(session.rank());
      rank.open();
      writers[place] = rank.journal.folder_writer() ? 1 : 0;
      rank.journal.print(cat("line of rank ", session.rank()));
      rank.journal.update_manifest([&](RunManifest&) { ++updates[place]; });
      rank.journal.update_manifest_collectively("noting", [&](RunManifest&) { ++updates[place]; });
      rank.journal.record_step(journaled_step(1));
      rank.journal.record_texts(1, {TextSample{}});
      rank.journal.finish(0, "done");
      session.run_on_all_ranks("leaving", [] {});
    });
    REQUIRE(failures == Lines(2, ""));
  });
  CHECK(writers == std::vector<int>{1, 0});
  CHECK(updates == std::vector<int>{2, 0});
  CHECK(text.find("line of rank 0") != std::string::npos);
  CHECK(text.find("line of rank 1") == std::string::npos);
  CHECK(read_metrics(folder / "run/metrics.jsonl").size() == 1);
  CHECK(read_manifest(folder / "run/run.json").exit_code == 0);
}

TEST_CASE("a folder that rank 0 cannot use is refused on every rank") {
  const MemoryFolder folder;
  testing::write_text(folder / "run", "no folder");
  const Config config = config_in(folder / "run");
  const Lines failures = run_sessions(
      2, config, [&](Session& session) { JournalOfRank(session, config).journal.open_folder(); });
  for (const std::string& failure : failures)
    CHECK(failure.starts_with(cat("taking the run folder: rank 0: output_dir ", folder / "run",
                                  ": it exists and is not a folder")));
}

TEST_CASE(
    "a collective update that fails on rank 0 fails on all ranks, any other update only on rank "
    "0") {
  const MemoryFolder folder;
  const Config config = config_in(folder / "run");
  const auto fail = [](RunManifest&) {
    throw Error(ExitCode::kEnvironment, "the disk is full", "make room");
  };
  Lines alone(2);
  const Lines failures = run_sessions(2, config, [&](Session& session) {
    JournalOfRank rank(session, config);
    rank.open();
    try {
      rank.journal.update_manifest(fail);
    } catch (const Error& error) {
      alone[static_cast<size_t>(session.rank())] = error.message();
    }
    rank.journal.update_manifest_collectively("noting the memory", fail);
  });
  CHECK(alone == Lines{"the disk is full", ""});
  for (const std::string& failure : failures)
    CHECK(failure.starts_with("noting the memory: rank 0: the disk is full"));
}

TEST_CASE("logs are opened after run.json is written") {
  const MemoryFolder folder;
  SingleRankJournal run(config_in(folder / "run"));
  run.journal.open_folder();
  const auto fail = []() -> RunManifest {
    throw Error(ExitCode::kEnvironment, "no machine", "look at it");
  };
  CHECK(testing::require_error(ExitCode::kEnvironment, [&] { run.journal.open(fail, 0, 9); }) ==
        "no machine");
  CHECK(run.rank.logs.empty());
  run.journal.open([&] { return make_manifest(run.rank.request); }, 0, 9);
  CHECK(run.rank.logs.size() == 1);
  CHECK(run.rank.has_record);
}

TEST_CASE("each rank has its own log, whose lines name the rank unless the supervisor does") {
  const MemoryFolder folder;
  const auto logs_of = [&](const std::string& name, LaunchKind kind, int world_size) {
    Config config = config_in(folder / name);
    config.log_level = LogLevel::kWarning;
    std::vector<LogOptions> logs(static_cast<size_t>(world_size));
    const Lines failures = run_sessions(world_size, config, [&](Session& session) {
      JournalOfRank rank(session, config);
      rank.request.launch.kind = kind;
      rank.open();
      logs[static_cast<size_t>(session.rank())] = rank.logs.at(0);
    });
    REQUIRE(failures == Lines(static_cast<size_t>(world_size), ""));
    return logs;
  };
  const auto own = logs_of("a", LaunchKind::kTorchrun, 2);
  CHECK(own[0].prefix == "rank 0");
  CHECK(own[1].prefix == "rank 1");
  CHECK(own[1].file == folder / "a/logs/rank-1.log");
  CHECK(own[1].level == LogLevel::kWarning);
  CHECK(logs_of("b", LaunchKind::kSupervised, 2)[1].prefix.empty());
  CHECK(logs_of("c", LaunchKind::kSingle, 1)[0].prefix.empty());
}

TEST_CASE("the record begins with the step after those that are done") {
  const MemoryFolder folder;
  const auto steps = [&] {
    std::vector<int64_t> found;
    for (const StepMetrics& metrics : read_metrics(folder / "run/metrics.jsonl"))
      found.push_back(metrics.step);
    return found;
  };
  struct Start {
    int64_t done;
    bool resumes;
    int64_t last;
    std::vector<int64_t> found;
  };
  for (const Start& start : {Start{0, false, 4, {0, 1, 2, 3, 4}},  //
                             Start{2, true, 4, {0, 1, 2, 3, 4}},   //
                             Start{0, true, 1, {0, 1}}}) {
    SingleRankJournal run(config_in(folder / "run"));
    run.rank.request.resume.is_requested = start.resumes;
    capture_output([&] {
      run.rank.open(start.done);
      // The evaluation before the first step belongs to step 1.
      for (int64_t i = start.done == 0 ? 0 : start.done + 1; i <= start.last; ++i)
        run.journal.record_step(journaled_step(i));
    });
    CHECK(steps() == start.found);
  }
}

TEST_CASE("the duration of the start is noted when the first step has its data") {
  const MemoryFolder folder;
  SingleRankJournal run(config_in(folder / "run"));
  run.rank.open();
  const auto noted = [&] {
    return read_manifest(run.paths().manifest()).counters.count("ready_milliseconds");
  };
  CHECK(noted() == 0);
  run.journal.record_first_batch();
  CHECK(noted() == 1);
  run.journal.update_manifest(
      [](RunManifest& manifest) { manifest.counters.erase("ready_milliseconds"); });
  run.journal.record_first_batch();
  CHECK(noted() == 0);
}

TEST_CASE(
    "DeepSpeed's line is shown as often as the config says, with the number of skipped steps") {
  const MemoryFolder folder;
  Config config = config_in(folder / "run");
  SingleRankJournal run(config);
  run.rank.open();
  TrainingProgress progress(config);
  StepRun of_step;
  of_step.scalars.learning_rate = 0.5F;
  of_step.scalars.beta1 = 0.5F;
  of_step.scalars.beta2 = 0.75F;
  const auto shown = [&](int64_t every) {
    run.rank.request.config.steps_per_print = every;
    return capture_output([&] {
      for (progress.step = 1; progress.step <= 4; ++progress.step)
        run.journal.print_step_details(progress, of_step, journaled_step(progress.step));
    });
  };
  CHECK(shown(0).empty());
  CHECK(shown(3) == "step=3, skipped=0, lr=[0.5], mom=[[0.5, 0.75]]\n");
  progress.skipped.restore(2, std::nullopt);
  CHECK(shown(4) == "step=4, skipped=2, lr=[0.5], mom=[[0.5, 0.75]]\n");
}

TEST_CASE("a run that continues with fewer ranks says why") {
  const MemoryFolder folder;
  const Config config = [&] {
    Config two = config_in(folder / "run");
    two.parallel.data = 1;
    return two;
  }();
  SingleRankJournal run(config);
  run.rank.request.ranks.removed_ranks = {1};
  run.rank.request.ranks.removed_reason = "rank 1 failed twice";
  CHECK(capture_log([&] {
          run.rank.open();
        }).find("continues with 1 data-parallel rank of 2 since rank 1 failed twice") !=
        std::string::npos);
}

TEST_CASE("the activity of a rank is on its board") {
  const MemoryFolder folder;
  SingleRankJournal run(config_in(folder / "run"));
  run.journal.show_phase("step 12");
  CHECK(run.session->board().state().phase.what == std::string("step 12"));
}

TEST_CASE("the end of a run is printed, a failure is only recorded") {
  const MemoryFolder folder;
  SingleRankJournal run(config_in(folder / "run"));
  run.rank.open();
  CHECK(capture_output([&] {
          run.journal.record_step(journaled_step(1));
          run.journal.fail(7, "the loss is nan");
        }).find("effective training time") == std::string::npos);
  CHECK(read_manifest(run.paths().manifest()).exit_code == 7);
  CHECK(capture_output([&] { run.journal.finish(0, "done"); }).find("effective training time: ") !=
        std::string::npos);
  const RunManifest manifest = read_manifest(run.paths().manifest());
  CHECK(manifest.exit_code == 0);
  CHECK(manifest.exit_reason == "done");
}

}  // namespace
}  // namespace ftrun
