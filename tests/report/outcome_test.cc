#include "base/launch_variables.h"
#include "report/launch_record.h"

#include "base/error.h"
#include "base/file.h"
#include "report/run_manifest.h"
#include "report/wall_time.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::TemporaryFolder;

constexpr int64_t kStarted = 1000000000;

RunManifest running_manifest(const std::string& supervisor, int64_t started) {
  RunManifest manifest;
  manifest.environment = {{"FTRUN_SUPERVISOR", supervisor}};
  manifest.start_time = utc_text(started);
  manifest.config = R"({"train":{"steps":60}})";
  manifest.counters = {{"skipped_steps", 3}};
  return manifest;
}

TEST_CASE("the supervisor's report of a failure replaces rank 0's") {
  const TemporaryFolder folder;
  RunManifest manifest = running_manifest("77", kStarted + 2);
  manifest.exit_code = 6;
  manifest.exit_reason = "rank 1 is gone";
  manifest.end_time = utc_text(kStarted + 9);
  put_file(folder / "run.json", manifest_text(manifest));
  REQUIRE(record_failure(folder / "run.json", {77, kStarted},
                         {4, 1, "data.bin: bad id\nline 2\n  remedy: prepare it again"}));
  manifest.exit_code = 4;
  manifest.exit_reason = "data.bin: bad id\nline 2";
  manifest.exit_rank = 1;
  REQUIRE(read_file(folder / "run.json") == manifest_text(manifest));
}

TEST_CASE("a run whose rank 0 was killed gets its end from the supervisor") {
  const TemporaryFolder folder;
  put_file(folder / "run.json", manifest_text(running_manifest("77", kStarted)));
  REQUIRE(record_failure(folder / "run.json", {77, kStarted}, {137, 0, "killed by signal 9"}));
  const RunManifest after = read_manifest(folder / "run.json");
  REQUIRE(after.exit_code == 137);
  REQUIRE(after.exit_rank == 0);
  REQUIRE(after.end_time >= utc_text(kStarted));
}

TEST_CASE("a start that wrote no manifest keeps the previous failure in the list of restarts") {
  const TemporaryFolder folder;
  RunManifest manifest = running_manifest("77", kStarted + 2);
  manifest.exit_code = 137;
  manifest.exit_reason = "killed by signal 9";
  manifest.exit_rank = 1;
  manifest.end_time = utc_text(kStarted + 9);
  manifest.restarts = {{utc_text(kStarted), "earlier", 0, 8, 5}};
  const std::string path = folder / "run.json";
  put_file(path, manifest_text(manifest));
  REQUIRE(wrote_manifest(path, {77, kStarted}));
  REQUIRE_FALSE(wrote_manifest(path, {77, kStarted + 3}));
  REQUIRE_FALSE(wrote_manifest(folder / "none.json", {77, kStarted}));
  REQUIRE(record_failure(path, {77, kStarted, kStarted + 20}, {6, 0, "rank 2 never came"}));
  const RunManifest after = read_manifest(path);
  REQUIRE(after.restarts.size() == 2);
  REQUIRE(after.restarts[1].time == utc_text(kStarted + 20));
  REQUIRE(after.restarts[1].reason == "killed by signal 9");
  REQUIRE(after.restarts[1].rank == 1);
  REQUIRE((after.restarts[1].from_step == 5 && after.restarts[1].to_step == 5));
  REQUIRE((after.exit_code == 6 && after.exit_rank == 0 && after.end_time > manifest.end_time));
}

/// A file system whose renames fail, as on a full or read-only disk.
class RefusingFiles : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path) override { refuse(path); }
  void make_folder(const std::string& path) override { refuse(path); }
  void rename(const std::string& from, const std::string&) override { refuse(from); }
  bool swap_names(const std::string&, const std::string&) override { return false; }
  void remove_all(const std::string&) override {}
  void sync_folder(const std::string&) override {}
  std::vector<std::string> list(const std::string& folder) override {
    return posix_files().list(folder);
  }
  bool exists(const std::string& path) override { return posix_files().exists(path); }
  int64_t free_bytes(const std::string&) override { return 0; }

 private:
  [[noreturn]] static void refuse(const std::string& path) {
    throw Error(ExitCode::kEnvironment, path + ": No space left on device");
  }
};

TEST_CASE("a run whose run.json cannot be written has begun nevertheless") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.json";
  RefusingFiles refusing;
  LaunchRecord record(path, {77, kStarted, kStarted}, refusing);
  record.record_failure({137, 0, "killed by signal 9"});
  REQUIRE(record.found_manifest() == LaunchRecord::FoundManifest::kNone);
  const std::string text = manifest_text(running_manifest("77", kStarted + 2));
  put_file(path, text);
  record.record_failure({5, 0, "disk full"});
  REQUIRE(record.found_manifest() == LaunchRecord::FoundManifest::kOurs);
  REQUIRE(read_file(path) == text);
  // The record does not change, whatever happens to the file.
  put_file(path, "{");
  record.record_failure({5, 0, "disk full"});
  REQUIRE(record.found_manifest() == LaunchRecord::FoundManifest::kOurs);
}

TEST_CASE("a run.json that cannot be read belongs to an unknown run") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.json";
  LaunchRecord record(path, {77, kStarted, kStarted});
  put_file(path, "{");
  record.record_failure({137, 0, "killed by signal 9"});
  REQUIRE(record.found_manifest() == LaunchRecord::FoundManifest::kUnreadable);
  put_file(path, manifest_text(running_manifest("78", kStarted + 2)));
  record.record_failure({137, 0, "killed by signal 9"});
  REQUIRE(record.found_manifest() == LaunchRecord::FoundManifest::kNone);
}

TEST_CASE("a start that wrote no manifest is recorded with its ranks") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.json";
  LaunchRecord record(path, {77, kStarted, kStarted});
  put_file(path, manifest_text(running_manifest("77", kStarted)));
  record.record_failure({137, 1, "killed by signal 9"});
  record.record_start(kStarted + 20,
                      {.count = 1, .removed_ranks = {1}, .removed_reason = "rank 1 failed twice"});
  record.record_failure({6, 0, "nobody came"});
  const RunManifest after = read_manifest(path);
  REQUIRE(after.restarts.size() == 1);
  REQUIRE(after.restarts[0].ranks.count == 1);
  REQUIRE(after.restarts[0].ranks.removed_ranks == std::vector<int64_t>{1});
  REQUIRE(after.restarts[0].ranks.removed_reason == "rank 1 failed twice");
}

TEST_CASE("a run that a torchrun agent started is identified by the agent") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.json";
  RunManifest manifest = running_manifest("", kStarted + 5);
  manifest.environment = {{launch_variables::kAgent, "91"}};
  put_file(path, manifest_text(manifest));
  REQUIRE(torchrun_wrote_manifest(path, "91"));
  REQUIRE_FALSE(torchrun_wrote_manifest(path, "92"));
  REQUIRE_FALSE(torchrun_wrote_manifest(folder / "none.json", "91"));
  REQUIRE_FALSE(wrote_manifest(path, {91, kStarted}));
}

TEST_CASE("the manifest of another launch is not changed") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.json";
  REQUIRE_FALSE(record_failure(path, {77, kStarted}, {2, 0, "refused"}));
  RunManifest unsupervised = running_manifest("", kStarted + 5);
  unsupervised.environment.clear();
  for (const RunManifest& other :
       {running_manifest("78", kStarted + 5), running_manifest("77", kStarted - 1), unsupervised}) {
    put_file(path, manifest_text(other));
    REQUIRE_FALSE(record_failure(path, {77, kStarted}, {2, 0, "refused"}));
    REQUIRE(read_file(path) == manifest_text(other));
  }
}

}  // namespace
}  // namespace ftrun
