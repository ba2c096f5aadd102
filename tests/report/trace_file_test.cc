#include "report/trace_file.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/trace_events.h"
#include "report_test.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::error_of;
using testing::TemporaryFolder;

/// Returns a step of one rank with one instruction, which is named after the step.
TracedStep traced_step(int64_t step) {
  TraceEvents measured(step), predicted;
  measured.name_process(step * 2, cat("measured rank 0, step ", step));
  measured.add({.name = cat("forward ", step),
                .process = step * 2,
                .begin_picoseconds = 1,
                .end_picoseconds = 1'500'000});
  predicted.name_process(0, "predicted rank 0");
  return {.step = step,
          .measured_events = measured.text(),
          .predicted_events = predicted.text(),
          .notes = {{"predicted", "by \"m\""}}};
}

nlohmann::json trace_in(const std::string& path) {
  return nlohmann::json::parse(read_file(path));
}

std::vector<std::string> processes_of(const nlohmann::json& trace) {
  std::vector<std::string> names;
  for (const auto& event : trace["traceEvents"])
    if (event["name"] == "process_name") names.push_back(event["args"]["name"]);
  return names;
}

using Names = std::vector<std::string>;

TEST_CASE("a trace holds the predicted step once and every measured one") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  TraceFile file(path, 1);
  file.add(traced_step(3));
  CHECK(processes_of(trace_in(path)) == Names{"predicted rank 0", "measured rank 0, step 3"});
  file.add(traced_step(5));
  const nlohmann::json trace = trace_in(path);
  CHECK(processes_of(trace) ==
        Names{"predicted rank 0", "measured rank 0, step 3", "measured rank 0, step 5"});
  CHECK(trace["otherData"]["predicted"] == "by \"m\"");
  const auto& event = trace["traceEvents"][2];
  CHECK(event["name"] == "forward 3");
  CHECK(event["ts"].get<double>() == Approx(1e-6));
  CHECK(event["dur"].get<double>() == Approx(1.499999));
  CHECK(event["args"]["step"] == 3);
}

TEST_CASE("a resumed run keeps the steps before its first one, and adds to them") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  {
    TraceFile file(path, 1);
    for (const int64_t step : {3, 5, 8}) file.add(traced_step(step));
  }
  TraceFile(path, 6).add(traced_step(8));
  nlohmann::json trace = trace_in(path);
  CHECK(processes_of(trace) == Names{"predicted rank 0", "measured rank 0, step 3",
                                     "measured rank 0, step 5", "measured rank 0, step 8"});
  // Each measured step has its own process, and so has the predicted step.
  std::set<int64_t> processes;
  for (const auto& one : trace["traceEvents"]) processes.insert(one["pid"].get<int64_t>());
  CHECK(processes.size() == 4);
  TraceFile(path, 9).add(traced_step(12));
  trace = trace_in(path);
  CHECK(processes_of(trace).size() == 5);
  CHECK(trace["traceEvents"].size() == 9);
}

TEST_CASE("a file that is not a trace stays unchanged") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  for (const char* text : {"mine", "", "[]", "{\"traceEvents\": 1}"}) {
    put_file(path, text);
    const Error error = error_of([&] { TraceFile(path, 1); });
    CHECK(error.code() == ExitCode::kUsage);
    CHECK(error.message() ==
          cat(path, ": is not a trace that ftrun wrote, so it is not overwritten"));
    CHECK(read_file(path) == text);
  }
  // Events of other programs without a step number are not kept.
  put_file(path, R"({"traceEvents": [1, {"args": 2}, {"args": {"step": "x"}}, {"pid": 1}]})");
  TraceFile(path, 9).add(traced_step(9));
  CHECK(processes_of(trace_in(path)).size() == 2);
}

}  // namespace
}  // namespace ftrun
