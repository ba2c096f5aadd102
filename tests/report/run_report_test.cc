#include "report/run_report.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "report/html_page.h"
#include "report/report_page.h"
#include "report/text_samples.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::error_of;
using testing::TemporaryFolder;

/// Returns the data that the page of a run holds for its script.
nlohmann::json data_of(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="data">)";
  const size_t at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
}

/// Returns whether a page is self-contained: nothing in it makes a browser load another file.
bool is_self_contained(const std::string& page) {
  for (const char* part : {"src=", "href=", "@import", "url(http", "fetch(", "XMLHttpRequest",
                           "http://", "https://"}) {
    const size_t at = page.find(part);
    if (at != page.npos && page.compare(at, 26, "http://www.w3.org/2000/svg") != 0) return false;
  }
  return true;
}

TEST_CASE("a report holds a run's figures, and loads nothing else") {
  const TemporaryFolder folder;
  std::string lines;
  for (int64_t step = 1; step <= 3; ++step) {
    StepMetrics m = example_step(step);
    m.memory = {{"parameters", 4096 * step}};
    if (step == 2)
      m.evaluations = {{.set = "a", .loss = 0, .accuracy = 0.5}, {.set = "b", .loss = 1}};
    lines += metrics_lines(m);
  }
  put_file(folder / "metrics.jsonl", lines + "{\"step\": 4, \"lo");
  put_file(
      folder / "run.json",
      R"({"exit_reason": "done", "ended": "now", "config": {"train": {"steps": 3, "seed": 1}}})");
  put_file(folder / "samples.jsonl", text_sample_line(0, {1, "p", "a"}) + "\nnot a line\n");
  const std::string page = run_report({folder.path()});
  REQUIRE(page.starts_with("<!DOCTYPE html>\n<!-- ftrun report 1 -->"));
  REQUIRE(is_self_contained(page));
  const nlohmann::json run = data_of(page)["runs"][0];
  REQUIRE(run["steps"]["step"] == nlohmann::json{1.0, 2.0, 3.0});
  REQUIRE(run["steps"]["tokens"] == nlohmann::json{2048.0, 4096.0, 6144.0});
  REQUIRE(run["steps"]["loss"].size() == 3);
  REQUIRE(run["memory"]["parameters"] == nlohmann::json{4096.0, 8192.0, 12288.0});
  REQUIRE(run["evaluations"][0]["name"] == "a");
  REQUIRE(run["evaluations"][0]["perplexity"] == nlohmann::json{1.0});
  REQUIRE(run["evaluations"][1]["accuracy"] == nlohmann::json{nullptr});
  REQUIRE(run["texts"] == nlohmann::json::parse(R"([{"step": 0, "prompt": "p", "answer": "a"}])"));
  REQUIRE(run["config"]["train.steps"] == "3");
  REQUIRE(run["unreadable"] == 2);
}

TEST_CASE("a run.json that is far too large is refused before it is read") {
  const TemporaryFolder folder;
  put_file(folder / "run.json", "{}");
  put_file(folder / "metrics.jsonl", metrics_lines(example_step(1)));
  std::filesystem::resize_file(folder / "run.json", 17 << 20);  // sparse
  REQUIRE(error_of([&] { run_report({folder.path()}); }).message() ==
          folder / "run.json" + ": is 17.00 MiB, larger than the limit of 16.00 MiB");
}

TEST_CASE("no text of a run can break out of its position in the page") {
  const TemporaryFolder folder;
  const std::string hostile = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>";
  put_file(folder / "metrics.jsonl", metrics_lines(example_step(1)));
  put_file(folder / "samples.jsonl", text_sample_line(1, {1, hostile, hostile + "\xff"}) + "\n");
  put_file(folder / "config.yaml", hostile);
  const std::string page = run_report({folder.path()});
  REQUIRE(page.find("<img") == page.npos);
  REQUIRE(page.find("alert(1)</script>") == page.npos);
  REQUIRE(data_of(page)["runs"][0]["texts"][0]["prompt"] == hostile);
  REQUIRE(data_of(page)["runs"][0]["config_yaml"] == hostile);
}

TEST_CASE("long runs are thinned to means, and what is not finite stays visible") {
  const TemporaryFolder folder;
  std::string lines;
  for (int64_t step = 1; step <= 9000; ++step) {
    StepMetrics m = example_step(step);
    m.loss = step == 9000 ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(step);
    lines += metrics_lines(m);
  }
  put_file(folder / "metrics.jsonl", lines);
  const nlohmann::json run = data_of(run_report({folder.path()}))["runs"][0];
  REQUIRE(run["mean_of"] == 3);
  REQUIRE(run["steps"]["loss"].size() == 3000);
  REQUIRE(run["steps"]["loss"][0] == 2.0);
  REQUIRE(run["steps"]["loss"][2999] == "NaN");
}

TEST_CASE("entries for which a page has no room are counted and reported") {
  const TemporaryFolder folder;
  put_file(folder / "metrics.jsonl", metrics_lines(example_step(1)));
  std::string log, texts;
  for (int i = 0; i < 203; ++i)
    log += cat("2026-11-23T01:02:03.456 W warning: number ", i,
               "\n2026-11-23T01:02:03.456 I no warning\n");
  for (int i = 0; i < 2001; ++i) texts += text_sample_line(i, {1, "p", "a"}) + "\n";
  std::filesystem::create_directory(folder / "logs");
  put_file(folder / "logs/rank-0.log", log);
  put_file(folder / "samples.jsonl", texts);
  const std::string page = run_report({folder.path()});
  const nlohmann::json run = data_of(page)["runs"][0];
  REQUIRE(run["warnings"].size() == 200);
  REQUIRE(run["warnings_left_out"] == 3);
  REQUIRE(run["texts"].size() == 2000);
  REQUIRE(run["texts_left_out"] == 1);
  REQUIRE(page.find("more are left out here: logs/rank-0.log has them all") != page.npos);
  REQUIRE(page.find("more texts are left out here: samples.jsonl has them all") != page.npos);
}

TEST_CASE("only a file that is a report is replaced") {
  const TemporaryFolder folder;
  put_file(folder / "metrics.jsonl", metrics_lines(example_step(1)));
  const std::string path = folder / "page.html";
  write_run_report(path, {folder.path()});
  write_run_report(path, {folder.path(), folder.path()});
  REQUIRE(data_of(read_file(path))["runs"].size() == 2);
  put_file(path, "<!DOCTYPE html>\n<p>mine");
  Error error = error_of([&] { write_run_report(path, {folder.path()}); });
  REQUIRE(error.code() == ExitCode::kUsage);
  REQUIRE(error.message() == path + ": is not a report of ftrun's, and is not overwritten");
  REQUIRE(read_file(path) == "<!DOCTYPE html>\n<p>mine");
  std::filesystem::create_symlink(path, folder / "link.html");
  REQUIRE(error_of([&] { write_run_report(folder / "link.html", {folder.path()}); }).code() ==
          ExitCode::kUsage);
  REQUIRE(error_of([&] { run_report({folder / "none"}); }).message() ==
          folder / "none" + ": holds no run: neither metrics.jsonl nor run.json");
}

TEST_CASE("a report shows predicted and measured times of steps") {
  const TemporaryFolder folder;
  const auto run_of = [&](const std::string& time) {
    put_file(folder / "run.json", cat("{\"exit_reason\": \"done\", \"time\": ", time, "}"));
    return data_of(run_report({folder.path()}))["runs"][0];
  };
  const nlohmann::json run = run_of(R"({
    "predicted": {"step": 1000000, "layers": 600000, "update": 100000, "rest": 300000},
    "measured": {"step": 1500000, "layers": 650000, "exposed_communication": 7, "rest": 0},
    "load": {"others_per_million": 312000, "stolen_per_million": 0}})");
  CHECK(run["times"] == nlohmann::json::parse(R"([
    {"part": "step", "predicted": 1.0, "measured": 1.5},
    {"part": "layers", "predicted": 0.6, "measured": 0.65},
    {"part": "all else", "predicted": 0.3, "measured": 0.0}])"));
  CHECK(run["load"] == nlohmann::json::parse(R"({"other programs": 31, "other machines": 0})"));
  // Records without a prediction, and those of other programs, give no table.
  for (const char* time :
       {R"({"measured": {"step": 5}})", "7", R"({"predicted": 1, "measured": []})",
        R"({"predicted": {"step": "x"}, "measured": {"step": 1}, "load": 3})"}) {
    const nlohmann::json none = run_of(time);
    CHECK(none["times"].empty());
    CHECK(none["load"].empty());
  }
}

TEST_CASE("pages of each kind are recognized by their first lines") {
  const TemporaryFolder folder;
  const PageSources parts{kPlanPage, kPlanStyle, kPlanScript};
  const std::string page = fill_page(parts, {{"made", "</script><b>"}});
  CHECK(is_self_contained(page));
  CHECK(page.find("</script><b>") == page.npos);
  CHECK(data_of(page)["made"] == "</script><b>");
  put_file(folder / "plan.html", page);
  CHECK_NOTHROW(refuse_foreign_page(folder / "plan.html", parts, "a page", "(--html FILE)"));
  CHECK_NOTHROW(refuse_foreign_page(folder / "none.html", parts, "a page", "(--html FILE)"));
  put_file(folder / "run.json", "{}");
  write_run_report(folder / "report.html", {folder.path()});
  for (const char* name : {"report.html", "run.json"})
    CHECK_THROWS_WITH(refuse_foreign_page(folder / name, parts, "a page", "(--html FILE)"),
                      Catch::Contains("is not a page, and is not overwritten"));
}

}  // namespace
}  // namespace ftrun
