// These tests check the record of a run: the writer of the run folder and its files.
#include "training/run_folder_writer.h"

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "../checkpoint/test_support.h"
#include "base/error.h"
#include "base/file.h"
#include "run_ranks.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {
namespace fs = std::filesystem;

using testing::capture_log;
using testing::capture_output;
using testing::MemoryFolder;
using testing::read_text;
using testing::request_of;
using testing::require_error;
using Lines = std::vector<std::string>;

/// Returns the request of rank 0 of `world_size` ranks for a run in `folder`, which prints a line
/// of progress for each step.
TrainRequest request_in(const std::string& folder, int world_size = 1) {
  Config config;
  config.train_batch_size = 4;
  config.train.log.every = 1;
  config.train.log.tensorboard = false;
  TrainRequest request = request_of(0, world_size, config);
  request.config.output_dir = folder;
  return request;
}

TrainRequest resuming(TrainRequest request) {
  request.resume.is_requested = true;
  return request;
}

StepMetrics recorded_step(int64_t number) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.samples = 4 * number;
  metrics.loss = 2;
  metrics.tokens = 8;
  metrics.step_seconds = 0.5;
  return metrics;
}

/// Returns a step with an evaluation after it.
StepMetrics evaluated_step(int64_t number, double loss) {
  StepMetrics metrics = recorded_step(number);
  metrics.evaluations = {{.set = "validation", .loss = loss, .accuracy = 0.5, .tokens = 8}};
  return metrics;
}

std::vector<int64_t> steps_of(const RunPaths& paths) {
  std::vector<int64_t> steps;
  for (const StepMetrics& metrics : read_metrics(paths.metrics())) steps.push_back(metrics.step);
  return steps;
}

/// Returns the last evaluation of the set "validation" in run.json.
nlohmann::json validation_of(const RunFolderWriter& writer) {
  return nlohmann::json::parse(read_text(writer.paths().manifest()))
      .at("evaluations")
      .at("validation");
}

using StepNumbers = std::vector<int64_t>;

/// Records a run of `steps` steps that ends with `exit_code`.
void record_run(const TrainRequest& request, int64_t steps, int exit_code = 0,
                const std::string& reason = "done") {
  capture_output([&] {
    RunFolderWriter writer(request);
    writer.start(make_manifest(request), 1, steps);
    for (int64_t i = 1; i <= steps; ++i) writer.record_step(recorded_step(i));
    writer.finish(exit_code, reason);
  });
}

TEST_CASE("nothing but the lock is written to the run folder before the run starts") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  const RunPaths& paths = writer.paths();
  CHECK(fs::exists(paths.lock()));
  CHECK_FALSE(fs::exists(paths.manifest()));
  CHECK_FALSE(fs::exists(paths.metrics()));
  CHECK_FALSE(writer.earlier_manifest());

  writer.start(make_manifest(request), 1, 5);
  const RunManifest manifest = read_manifest(paths.manifest());
  CHECK(manifest.build.version == "1.2.3");
  CHECK(manifest.start_state == "the model's weights");
  CHECK(manifest.restarts.empty());
  CHECK_FALSE(manifest.exit_code);
  CHECK(read_text(paths.config()) == request.config_yaml);
  CHECK(fs::exists(paths.metrics()));
  CHECK_FALSE(fs::exists(paths.samples()));
}

TEST_CASE("a step is in its file before it is printed") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 1, 5);
  /// Watch is the output stream; it reads the file each time something is printed.
  struct Watch : std::streambuf {
    explicit Watch(const RunPaths& paths) : paths(paths) {}
    std::streamsize xsputn(const char*, std::streamsize count) override {
      seen.push_back(std::ssize(steps_of(paths)));
      return count;
    }
    int overflow(int c) override { return c; }
    const RunPaths& paths;
    StepNumbers seen;
  } watch(writer.paths());
  std::streambuf* const before = std::cout.rdbuf(&watch);
  writer.record_step(recorded_step(1));
  std::cout.rdbuf(before);
  REQUIRE_FALSE(watch.seen.empty());
  for (const int64_t seen : watch.seen) CHECK(seen == 1);
}

TEST_CASE("steps are recorded and shown, and evaluations are also recorded in the manifest") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 1, 5);
  const std::string text = capture_output([&] {
    writer.record_step(recorded_step(1));
    writer.record_step(evaluated_step(2, 1.5));
    writer.record_step(evaluated_step(3, 1.25));
  });
  CHECK(steps_of(writer.paths()) == StepNumbers{1, 2, 3});
  CHECK(text.find("step 1/5  loss 2.0000") != std::string::npos);
  CHECK(text.find("step 3/5  loss 2.0000") != std::string::npos);
  const auto figures = validation_of(writer);
  CHECK(figures.at("step") == 3);
  CHECK(figures.at("loss") == 1.25);
  CHECK(figures.at("accuracy") == 0.5);
  CHECK(figures.at("tokens") == 8);
}

TEST_CASE("an evaluation without an accuracy has none in the manifest") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 1, 5);
  StepMetrics metrics = evaluated_step(1, 1);
  metrics.evaluations[0].accuracy.reset();
  capture_output([&] { writer.record_step(metrics); });
  const auto figures = validation_of(writer);
  CHECK(figures.at("loss") == 1);
  CHECK_FALSE(figures.contains("accuracy"));
}

TEST_CASE("nothing is recorded in a folder that another run has taken over") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 1, 5);
  fs::remove_all(folder / "run");
  const TrainRequest again = request_in(folder / "run");
  RunFolderWriter other(again);
  other.start(make_manifest(again), 1, 5);
  capture_output([&] {
    require_error(ExitCode::kEnvironment, [&] { writer.record_step(recorded_step(1)); });
    writer.fail(7, "lost");
  });
  CHECK(steps_of(other.paths()).empty());
  CHECK_FALSE(read_manifest(other.paths().manifest()).exit_code);
}

TEST_CASE("a resumed run keeps the steps before its first, and reports the earlier starts") {
  const MemoryFolder folder;
  record_run(request_in(folder / "run"), 5, 143, "stopped by SIGTERM after step 5");
  const TrainRequest request = resuming(request_in(folder / "run", 2));
  RunFolderWriter writer(request);
  REQUIRE(writer.earlier_manifest());
  CHECK(writer.earlier_manifest()->exit_code == 143);
  RunManifest manifest = make_manifest(request);
  manifest.start_time = "now";
  writer.start(manifest, 4, 9);
  CHECK(steps_of(writer.paths()) == StepNumbers{1, 2, 3});
  const RunManifest written = read_manifest(writer.paths().manifest());
  CHECK_FALSE(written.exit_code);
  REQUIRE(written.restarts.size() == 1);
  CHECK(written.restarts[0].time == "now");
  CHECK(written.restarts[0].reason == "stopped by SIGTERM after step 5");
  CHECK(written.restarts[0].from_step == 5);
  CHECK(written.restarts[0].to_step == 3);
  CHECK(written.restarts[0].ranks.count == 2);
}

TEST_CASE("a killed run is recorded as ended without a reason, and keeps its counters") {
  const MemoryFolder folder;
  {
    const TrainRequest request = request_in(folder / "run");
    RunFolderWriter writer(request);
    writer.start(make_manifest(request), 1, 5);
    writer.update_manifest(
        [](RunManifest& manifest) { manifest.counters["checkpoints_saved"] = 3; });
  }
  const TrainRequest request = resuming(request_in(folder / "run"));
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 0, 5);
  const RunManifest written = read_manifest(writer.paths().manifest());
  CHECK(written.counters.at("checkpoints_saved") == 3);
  REQUIRE(written.restarts.size() == 1);
  CHECK(written.restarts[0].reason == "the previous run ended without recording a reason");
  CHECK(written.restarts[0].to_step == 0);
}

TEST_CASE("a resume with another config is refused, unless the field is allowed") {
  const MemoryFolder folder;
  record_run(request_in(folder / "run"), 2);
  TrainRequest request = resuming(request_in(folder / "run"));
  request.config_json = R"({"train": {"seed": 8, "steps": 5}})";
  {
    RunFolderWriter writer(request);
    const std::string expected =
        cat(writer.paths().manifest(),
            ": this is not the run that was started there; 1 thing differs:\n  config.train.seed: "
            "was ");
    CHECK(require_error(ExitCode::kUsage, [&] {
            writer.check_resumed_run(make_manifest(request));
          }).starts_with(expected));
  }
  request.resume.allowed = {"config.train.seed"};
  RunFolderWriter writer(request);
  writer.check_resumed_run(make_manifest(request));
}

TEST_CASE("an allowed change at a resume is noted once, though both run and checkpoint show it") {
  const MemoryFolder folder;
  const TrainRequest first = request_in(folder / "run");
  record_run(first, 2);
  TrainRequest request = resuming(request_in(folder / "run"));
  request.config_json =
      cat(R"({"train": {"seed": )", request.config.train.seed, R"(, "steps": 9}})");
  CheckpointMeta saved = testing::toy_meta(2, 1);
  saved.seed = static_cast<uint64_t>(request.config.train.seed);
  saved.extra[kConfigRecord] = first.config_json;
  saved.model_fingerprint = saved.data_fingerprint = "";
  RunFolderWriter writer(request);
  const std::string log = capture_log([&] {
    writer.check_resumed_run(make_manifest(request));
    writer.check_resumed_checkpoint(folder / "run/checkpoints/step-00000002", saved,
                                    make_manifest(request));
  });
  const std::string note = "the resumed run has another config.train.steps: was 5, is now 9";
  const size_t found = log.find(note);
  REQUIRE(found != std::string::npos);
  CHECK(log.find(note, found + 1) == std::string::npos);
  writer.start(make_manifest(request), 3, 9);
  CHECK(read_manifest(writer.paths().manifest()).start_state ==
        folder / "run/checkpoints/step-00000002");
}

TEST_CASE("without run.json the checkpoint's own record shows whether it is the same run") {
  const MemoryFolder folder;
  const TrainRequest request = resuming(request_in(folder / "run"));
  RunFolderWriter writer(request);
  CHECK(capture_log([&] {
          writer.check_resumed_run(make_manifest(request));
        }).find("run.json: is missing; the run is compared with what its checkpoint records") !=
        std::string::npos);
  CheckpointMeta saved = testing::toy_meta(2, 1);
  saved.seed = static_cast<uint64_t>(request.config.train.seed);
  saved.model_fingerprint = saved.data_fingerprint = "";
  saved.extra[kConfigRecord] = request.config_json;
  writer.check_resumed_checkpoint("checkpoints/step-2", saved, make_manifest(request));
}

TEST_CASE("a run that has saved checkpoints is refused if none are left") {
  const MemoryFolder folder;
  record_run(request_in(folder / "run"), 2);
  const TrainRequest request = resuming(request_in(folder / "run"));
  {
    RunFolderWriter writer(request);
    writer.refuse_if_checkpoints_are_gone();  // the run had saved none
    const std::string checkpoints = writer.paths().checkpoints();
    testing::write_text(checkpoints + "/latest", "step-00000002");
    CHECK(require_error(ExitCode::kBadInput, [&] { writer.refuse_if_checkpoints_are_gone(); }) ==
          cat(writer.paths().manifest(), ": the run saved checkpoints, but ", checkpoints,
              " contains none"));
    fs::remove(checkpoints + "/latest");
    writer.start(make_manifest(request), 1, 2);
    writer.update_manifest(
        [](RunManifest& manifest) { manifest.counters["checkpoints_saved"] = 1; });
  }
  RunFolderWriter writer(request);
  require_error(ExitCode::kBadInput, [&] { writer.refuse_if_checkpoints_are_gone(); });
}

TEST_CASE("a resumed run that starts from the beginning says so in run.json") {
  const MemoryFolder folder;
  const auto start_of = [&](const TrainRequest& request) {
    std::string start;
    capture_output([&] {
      RunFolderWriter writer(request);
      writer.record_new_start();
      writer.start(make_manifest(request), 1, 2);
      start = read_manifest(writer.paths().manifest()).start_state;
    });
    return start;
  };
  CHECK(start_of(request_in(folder / "fresh")) == "the model's weights");
  std::string start;
  const std::string log =
      capture_log([&] { start = start_of(resuming(request_in(folder / "elsewhere"))); });
  CHECK(start == "the model's weights: --resume found no run in output_dir");
  CHECK(
      log.find(cat("--resume auto: output_dir ", folder / "elsewhere",
                   " held no run: training starts from the beginning, with the model's weights")) !=
      std::string::npos);
  CHECK(start_of(resuming(request_in(folder / "elsewhere"))) ==
        "the model's weights: --resume found a run that had saved no checkpoint");
}

TEST_CASE("the end of a run is in run.json, its report, and the table that is returned") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 1, 2);
  std::string table;
  capture_output([&] {
    writer.record_step(recorded_step(1));
    writer.record_step(recorded_step(2));
    table = writer.finish(143, "stopped by SIGTERM after step 2");
  });
  CHECK(table.find("loss") != std::string::npos);
  CHECK(table.find("effective training time: ") != std::string::npos);
  const RunManifest manifest = read_manifest(writer.paths().manifest());
  CHECK(manifest.exit_code == 143);
  CHECK(manifest.exit_reason == "stopped by SIGTERM after step 2");
  CHECK_FALSE(manifest.end_time.empty());
  CHECK(fs::exists(writer.paths().report()));
}

TEST_CASE("a run that never trained a step has no table") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 1, 2);
  CHECK(writer.finish(0, "done").empty());
  CHECK(read_manifest(writer.paths().manifest()).exit_code == 0);
}

TEST_CASE(
    "a failed run of one rank records that rank as the cause, a run of several ranks records "
    "none") {
  for (const int world_size : {1, 2}) {
    const MemoryFolder folder;
    const TrainRequest request = request_in(folder / "run", world_size);
    RunFolderWriter writer(request);
    writer.start(make_manifest(request), 1, 2);
    capture_output([&] {
      writer.record_step(recorded_step(1));
      writer.fail(7, "the loss is nan");
    });
    const RunManifest manifest = read_manifest(writer.paths().manifest());
    CHECK(manifest.exit_code == 7);
    CHECK(manifest.exit_reason == "the loss is nan");
    CHECK(manifest.exit_rank == (world_size == 1 ? 0 : -1));
    CHECK(fs::exists(writer.paths().report()));
  }
}

TEST_CASE("a run that fails before it starts leaves its folder as it was") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  writer.fail(2, "no such model");
  CHECK_FALSE(fs::exists(writer.paths().manifest()));
}

TEST_CASE(
    "samples.jsonl is kept if the run makes text samples, or an earlier start has made some") {
  const MemoryFolder folder;
  TrainRequest request = request_in(folder / "run");
  const TextSample sample{.prompt_tokens = 4, .prompt = "a", .answer = "b"};
  {
    RunFolderWriter writer(request);
    writer.start(make_manifest(request), 1, 5);
    writer.record_texts(1, {sample});
    CHECK_FALSE(fs::exists(writer.paths().samples()));
  }
  request = resuming(request);
  request.config.train.generate.prompt_tokens = 4;
  {
    RunFolderWriter writer(request);
    writer.start(make_manifest(request), 1, 5);
    writer.record_texts(1, {sample, sample});
    writer.record_texts(4, {sample});
    const std::string text = read_text(writer.paths().samples());
    CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  }
  request.config.train.generate.prompt_tokens = 0;
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 3, 5);  // what follows step 2 is recorded again
  const std::string text = read_text(writer.paths().samples());
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
}

TEST_CASE("the files of csv_monitor have only trained steps") {
  const MemoryFolder folder;
  TrainRequest request = request_in(folder / "run");
  request.config.csv_monitor.enabled = true;
  request.config.csv_monitor.output_path = folder / "csv";
  request.config.csv_monitor.job_name = "job";
  RunFolderWriter writer(request);
  writer.start(make_manifest(request), 0, 5);
  StepMetrics before = evaluated_step(0, 3);
  before.trained = false;
  capture_output([&] {
    writer.record_step(before);
    writer.record_step(recorded_step(1));
  });
  CHECK(read_text(folder / "csv/job/Train_Samples_train_loss.csv") ==
        "step,train_loss\r\n4,2.0\r\n");
}

TEST_CASE("a printed line is on standard output, above the line of progress") {
  const MemoryFolder folder;
  const TrainRequest request = request_in(folder / "run");
  RunFolderWriter writer(request);
  CHECK(capture_output([&] { writer.print("before the start"); }) == "before the start\n");
  writer.start(make_manifest(request), 1, 5);
  CHECK(capture_output([&] { writer.print("a\x1b[31mline"); }) == "a\\x1B[31mline\n");
}

}  // namespace
}  // namespace ftrun
