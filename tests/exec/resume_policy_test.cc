#include "exec/resume_policy.h"

#include "base/error.h"
#include "base/file.h"
#include "places.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

RunManifest run_of(const std::string& config) {
  RunManifest manifest;
  manifest.config = config;
  manifest.topology = {{"data", 2}};
  return manifest;
}

TEST_CASE("the manual names everything that a resume may change") {
  const std::string manual = read_file(testing::source_dir() + "/docs/errors.md");
  for (const std::string_view field : always_may_change()) {
    CAPTURE(field);
    // In full, or by its end behind one that was named in full.
    const bool named = manual.find(field) != manual.npos ||
                       manual.find(cat("`", field.substr(field.rfind('.')), "`")) != manual.npos;
    REQUIRE(named);
  }
}

TEST_CASE("how long, where to and on how many ranks a run goes on is free, and is told") {
  const RunManifest before =
      run_of(R"({"train": {"steps": 4, "log": {"every": 1}}, "threads": 1})");
  RunManifest now = run_of(R"({"train": {"steps": 8, "log": {"every": 5}}, "threads": 2})");
  now.topology = {{"data", 3}};
  REQUIRE(admit_resume("run.json", before, now, {}) ==
          std::vector<std::string>{
              "config.threads: was 1, is now 2", "config.train.log.every: was 1, is now 5",
              "config.train.steps: was 4, is now 8", "topology.data: was 2, is now 3"});
  REQUIRE(admit_resume("run.json", before, before, {}).empty());
}

TEST_CASE(
    "what changes the numbers is refused unless it is allowed, and a name's beginning is not the "
    "name") {
  const RunManifest before =
      run_of(R"({"train": {"seed": 1}, "train_batch_size": 8, "threads_of_it": 1})");
  const RunManifest now =
      run_of(R"({"train": {"seed": 2}, "train_batch_size": 16, "threads_of_it": 2})");
  try {
    admit_resume("out/run.json", before, now, {"config.train"});
    FAIL("it was admitted");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    REQUIRE(error.message() ==
            "out/run.json: this is not the run that was started there; 2 things differ:\n"
            "  config.threads_of_it: was 1, is now 2\n"
            "  config.train_batch_size: was 8, is now 16");
  }
  REQUIRE(admit_resume("run.json", before, now, {"config"}).empty());
}

TEST_CASE("data that moved is the same data") {
  RunManifest before = run_of(R"({"data": {"train": ["/a/x.bin"]}})");
  RunManifest now = run_of(R"({"data": {"train": ["/b/x.bin"]}})");
  before.data["train"] = {.path = "/a/x.bin", .bytes = 10, .fingerprint = "1234"};
  now.data["train"] = {.path = "/b/x.bin", .bytes = 10, .fingerprint = "1234"};
  REQUIRE(admit_resume("run.json", before, now, {}).size() == 1);
  now.data["train"].fingerprint = "5678";
  REQUIRE_THROWS_AS(admit_resume("run.json", before, now, {}), Error);
}

}  // namespace
}  // namespace ftrun
