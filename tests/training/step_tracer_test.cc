// These tests trace a step over ranks as threads, on one node and on several.
#include "training/step_tracer.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/trace_events.h"
#include "fake_journal.h"
#include "run_ranks.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::request_of;
using testing::run_sessions;
using Names = std::vector<std::string>;

TEST_CASE("clocks are compared by the median of events that end on all ranks at once") {
  // Rank 1 is 5 s ahead, rank 2 is 7 s behind; one comparison was delayed.
  const auto offsets = clock_offsets({{10, 15, 3}, {11, 16.5, 4}, {12, 17, 5.25}});
  REQUIRE(offsets.size() == 3);
  CHECK(offsets[0].seconds == 0);
  CHECK(offsets[1].seconds == 5);
  CHECK(offsets[1].median_error == 0);
  CHECK(offsets[2].seconds == -7);
  CHECK(offsets[2].median_error == 0);
  CHECK(clock_offsets({{0, 1}, {0, 2}, {0, 4}})[1].median_error == 1);
}

/// Returns a program of two compute instructions and a collective that overlaps the second.
Program traced_program() {
  Program program;
  program.groups = {{{"pair", {0, 1}}, {2, 0}}};
  for (const auto& [lane, kind] :
       {std::pair{Lane::kCompute, InstrKind::kBegin}, std::pair{lane_of(0), InstrKind::kAllReduce},
        std::pair{Lane::kCompute, InstrKind::kGradientNorm}}) {
    program.instrs.emplace_back().lane = lane;
    program.instrs.back().kind = kind;
  }
  program.instrs[1].detail = Communication{.group = 0};
  return program;
}

/// Returns a mesh of `session.world_size()` data-parallel ranks as one of them sees it.
StateOptions data_ranks(const Session& session) {
  StateOptions state;
  state.data.count = session.world_size();
  state.data.index = session.rank();
  return state;
}

/// Returns the traces that rank 0's journal got for a step that rank r began r ms after rank 0.
std::vector<TracedStep> traces_of(const std::vector<std::string>& nodes, const TraceConfig& config,
                                  const std::vector<int>& traced, int64_t step) {
  std::vector<TrainRequest> requests;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    requests.push_back(request_of(static_cast<int>(rank), static_cast<int>(nodes.size()), {}));
    requests.back().launch.node_name = nodes[rank];
  }
  const auto begin = std::chrono::steady_clock::now();
  std::vector<TracedStep> traces;
  const Names failures = run_sessions(requests, [&](Session& session) {
    session.open_communicators({}, data_ranks(session));
    const Program program = traced_program();
    testing::FakeJournal journal;
    const PredictedStep predicted{std::nullopt, "", "nobody did", "{}"};
    StepTracer tracer(config, session, program, traced, journal, predicted);
    RunTrace trace{begin + std::chrono::milliseconds(session.rank()),
                   {{0, 0.25}, {0.5, 1}, {0.25, 0.75}}};
    tracer.record_if_traced(step, trace);
    if (session.rank() == 0) traces = journal.traced;
  });
  REQUIRE(failures == Names(nodes.size(), ""));
  return traces;
}

nlohmann::json events_of(const std::string& text) {
  return nlohmann::json::parse(trace_text(text))["traceEvents"];
}

TEST_CASE("the selected ranks are traced on one clock, in the selected steps") {
  const TraceConfig config{.steps = {4}, .ranks = {}};
  CHECK(traces_of({"a", "a", "a"}, config, {1, 2}, 3).empty());
  const auto traces = traces_of({"a", "a", "a"}, config, {1, 2}, 4);
  REQUIRE(traces.size() == 1);
  CHECK(traces[0].step == 4);
  CHECK(traces[0].predicted_events == "{}");
  CHECK(traces[0].notes.at("predicted") == "nobody did");
  CHECK(traces[0].notes.at("clocks") == "all ranks are on one node and have one clock");
  Names processes, lanes;
  std::vector<double> begins;
  for (const auto& event : events_of(traces[0].measured_events)) {
    CHECK(event["args"]["step"] == 4);
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
    if (event["name"] == "thread_name") lanes.push_back(event["args"]["name"]);
    if (event["ph"] == "X") begins.push_back(event["ts"].get<double>());
  }
  CHECK(processes == Names{"measured rank 1, step 4", "measured rank 2, step 4"});
  CHECK(lanes == Names{"compute", "pair", "compute", "pair"});
  // Rank 1 began first, rank 2 a millisecond later.
  REQUIRE(begins.size() == 6);
  for (const double begin : {0, 1})
    for (const auto& [at, micro] :
         {std::pair{0, 0.0}, std::pair{1, 250'000.0}, std::pair{2, 500'000.0}})
      CHECK(begins[static_cast<size_t>(3 * begin + at)] ==
            Approx(micro + 1000 * begin).margin(0.01));
}

TEST_CASE("clocks of several nodes are compared, and the trace says how well they agree") {
  const TraceConfig config{.steps = {1}, .ranks = {}};
  const auto traces = traces_of({"a", "b"}, config, {0, 1}, 1);
  REQUIRE(traces.size() == 1);
  CHECK(traces[0].notes.at("clocks").starts_with(
      "the clocks of nodes were compared by 9 collectives; comparisons differ by about "));
  CHECK(events_of(traces[0].measured_events).size() == 2 * (1 + 2 + 3));
}

}  // namespace
}  // namespace ftrun
