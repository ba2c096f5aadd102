#include "report/outcome.h"

#include "report/manifest.h"
#include "report/wall_time.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr int64_t kStarted = 1000000000;

RunManifest running(const std::string& supervisor, int64_t started) {
  RunManifest manifest;
  manifest.environment = {{"FTRUN_SUPERVISOR", supervisor}};
  manifest.started = utc_text(started);
  manifest.config = R"({"train":{"steps":60}})";
  manifest.counters = {{"skipped_steps", 3}};
  return manifest;
}

TEST_CASE("the supervisor's word of a failure replaces what rank 0 saw of it") {
  const TestFolder folder;
  RunManifest manifest = running("77", kStarted + 2);
  manifest.exit_code = 6;
  manifest.exit_reason = "rank 1 is gone";
  manifest.ended = utc_text(kStarted + 9);
  put_file(folder / "run.json", manifest_text(manifest));
  REQUIRE(note_failure(folder / "run.json", {77, kStarted},
                       {4, 1, "data.bin: bad id\nline 2\n  remedy: prepare it again"}));
  manifest.exit_code = 4;
  manifest.exit_reason = "data.bin: bad id\nline 2";
  manifest.exit_rank = 1;
  REQUIRE(read_file(folder / "run.json") == manifest_text(manifest));
}

TEST_CASE("a run whose rank 0 was killed gets its end from the supervisor") {
  const TestFolder folder;
  put_file(folder / "run.json", manifest_text(running("77", kStarted)));
  REQUIRE(note_failure(folder / "run.json", {77, kStarted}, {137, 0, "killed by signal 9"}));
  const RunManifest after = read_manifest(folder / "run.json");
  REQUIRE(after.exit_code == 137);
  REQUIRE(after.exit_rank == 0);
  REQUIRE(after.ended >= utc_text(kStarted));
}

TEST_CASE("a start that came to write no manifest leaves the failure before it among the restarts") {
  const TestFolder folder;
  RunManifest manifest = running("77", kStarted + 2);
  manifest.exit_code = 137;
  manifest.exit_reason = "killed by signal 9";
  manifest.exit_rank = 1;
  manifest.ended = utc_text(kStarted + 9);
  manifest.restarts = {{utc_text(kStarted), "earlier", 0, 8, 5}};
  const std::string path = folder / "run.json";
  put_file(path, manifest_text(manifest));
  REQUIRE(has_begun(path, {77, kStarted}));
  REQUIRE_FALSE(has_begun(path, {77, kStarted + 3}));
  REQUIRE_FALSE(has_begun(folder / "none.json", {77, kStarted}));
  REQUIRE(note_failure(path, {77, kStarted, kStarted + 20}, {6, 0, "rank 2 never came"}));
  const RunManifest after = read_manifest(path);
  REQUIRE(after.restarts.size() == 2);
  REQUIRE(after.restarts[1].time == utc_text(kStarted + 20));
  REQUIRE(after.restarts[1].reason == "killed by signal 9");
  REQUIRE(after.restarts[1].rank == 1);
  REQUIRE((after.restarts[1].from_step == 5 && after.restarts[1].to_step == 5));
  REQUIRE((after.exit_code == 6 && after.exit_rank == 0 && after.ended > manifest.ended));
}

TEST_CASE("a run that torchrun's agent started is told from others by the agent") {
  const TestFolder folder;
  const std::string path = folder / "run.json";
  RunManifest manifest = running("", kStarted + 5);
  manifest.environment = {{kAgentVariable, "91"}};
  put_file(path, manifest_text(manifest));
  REQUIRE(has_begun(path, {91, kStarted}));
  REQUIRE_FALSE(has_begun(path, {92, kStarted}));
}

TEST_CASE("the manifest of another launch is left alone") {
  const TestFolder folder;
  const std::string path = folder / "run.json";
  REQUIRE_FALSE(note_failure(path, {77, kStarted}, {2, 0, "refused"}));
  RunManifest unsupervised = running("", kStarted + 5);
  unsupervised.environment.clear();
  for (const RunManifest& other :
       {running("78", kStarted + 5), running("77", kStarted - 1), unsupervised}) {
    put_file(path, manifest_text(other));
    REQUIRE_FALSE(note_failure(path, {77, kStarted}, {2, 0, "refused"}));
    REQUIRE(read_file(path) == manifest_text(other));
  }
}

}  // namespace
}  // namespace ftrun
