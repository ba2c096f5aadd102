#include "training/step_tracer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/median.h"
#include "base/text.h"
#include "sim/step_trace.h"

namespace ftrun {
namespace {

/// The number of collectives by which the clocks of nodes are compared.
constexpr int kComparisons = 9;

double clock_seconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

Picoseconds picoseconds(double seconds) {
  return std::llround(seconds * kPicosecondsPerSecond);
}

/// Lists the instructions that ran, sorted by their begin. `delay` seconds are added to all times
/// of the trace.
std::vector<TimelineInstr> instrs_that_ran(const Program& program, const RunTrace& trace,
                                           double delay) {
  std::vector<TimelineInstr> instrs;
  for (size_t i = 0; i < trace.instrs.size(); ++i) {
    const RunInterval& ran = trace.instrs[i];
    if (ran.end > ran.begin)
      instrs.push_back(
          {&program.instrs[i], picoseconds(delay + ran.begin), picoseconds(delay + ran.end)});
  }
  std::stable_sort(instrs.begin(), instrs.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return instrs;
}

}  // namespace

std::vector<ClockOffset> clock_offsets(const std::vector<std::vector<double>>& ends) {
  std::vector<ClockOffset> offsets(ends.empty() ? 0 : ends[0].size());
  for (size_t rank = 1; rank < offsets.size(); ++rank) {
    std::vector<double> ahead, apart;
    for (const std::vector<double>& end : ends) ahead.push_back(end[rank] - end[0]);
    offsets[rank].seconds = median(ahead);
    for (const double one : ahead) apart.push_back(std::abs(one - offsets[rank].seconds));
    offsets[rank].median_error = median(apart);
  }
  return offsets;
}

StepTracer::StepTracer(const TraceConfig& config, Session& session, const Program& program,
                       std::vector<int> traced, Journal& journal, const PredictedStep& predicted)
    : config_(config),
      session_(session),
      program_(program),
      traced_(std::move(traced)),
      journal_(journal),
      predicted_(predicted) {}

/// Collective: returns the numbers of all ranks, by rank.
std::vector<double> StepTracer::gather(double number, const char* what) {
  std::vector<double> all(static_cast<size_t>(session_.world_size()), 0);
  all[static_cast<size_t>(session_.rank())] = number;
  if (session_.world_size() > 1) session_.sum(all, what);
  return all;
}

/// Compares the clocks of nodes. The ranks of a node share a clock, so all of them get the offset
/// of the node's first rank.
std::vector<ClockOffset> StepTracer::compare_clocks() {
  const std::vector<std::string>& nodes = session_.nodes();
  const auto is_first = [&](const std::string& node) { return node == nodes.front(); };
  clocks_ = "all ranks are on one node and have one clock";
  std::vector<ClockOffset> offsets(nodes.size());
  if (std::all_of(nodes.begin(), nodes.end(), is_first)) return offsets;
  std::vector<std::vector<double>> ends;
  for (int i = 0; i < kComparisons; ++i) {
    std::array<double, 1> none{};
    session_.sum(none, "comparing clocks");
    ends.push_back(gather(clock_seconds(std::chrono::steady_clock::now()), "times of clocks"));
  }
  const std::vector<ClockOffset> compared = clock_offsets(ends);
  double largest_error = 0;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto first = std::find(nodes.begin(), nodes.end(), nodes[rank]) - nodes.begin();
    offsets[rank] = compared[static_cast<size_t>(first)];
    largest_error = std::max(largest_error, offsets[rank].median_error);
  }
  clocks_ = cat("the clocks of nodes were compared by ", kComparisons,
                " collectives; comparisons differ by about ", seconds_text(largest_error));
  return offsets;
}

std::string StepTracer::measured(int64_t step, const RunTrace& trace, double delay) const {
  TraceEvents events(step);
  const int rank = session_.rank();
  add_instr_events(events, (step * session_.world_size() + rank) % kMaxNewProcesses,
                   cat("measured rank ", rank, ", step ", step), program_,
                   instrs_that_ran(program_, trace, delay));
  return events.text();
}

void StepTracer::record_if_traced(int64_t step, const RunTrace& trace) {
  if (!traces(step)) return;
  session_.show_phase(cat("the trace of step ", step));
  const std::vector<ClockOffset> clocks = compare_clocks();
  const auto own = static_cast<size_t>(session_.rank());
  const std::vector<double> begins =
      gather(clock_seconds(trace.begin) - clocks[own].seconds, "begins of a step");
  double first = std::numeric_limits<double>::infinity();
  for (const int rank : traced_) first = std::min(first, begins[static_cast<size_t>(rank)]);
  const bool is_traced_rank = std::binary_search(traced_.begin(), traced_.end(), session_.rank());
  const std::string events = is_traced_rank ? measured(step, trace, begins[own] - first) : "";
  const std::vector<std::string> of_ranks = session_.all_gather_text("trace", events);
  if (session_.rank() != 0) return;
  TraceEvents all;
  for (const std::string& text : of_ranks) all.add(text);
  journal_.record_trace(TracedStep{
      .step = step,
      .measured = all.text(),
      .predicted = predicted_.events,
      .notes = {
          {"clocks", clocks_},
          {"predicted", predicted_.time ? predicted_.machine : predicted_.unavailable_reason}}});
}

}  // namespace ftrun
