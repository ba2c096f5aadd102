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
    if (ran.end_seconds > ran.begin_seconds)
      instrs.push_back({&program.instrs[i], picoseconds(delay + ran.begin_seconds),
                        picoseconds(delay + ran.end_seconds)});
  }
  std::stable_sort(instrs.begin(), instrs.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return instrs;
}

}  // namespace

std::vector<ClockOffset> clock_offsets(const std::vector<std::vector<double>>& ends) {
  std::vector<ClockOffset> offsets(ends.empty() ? 0 : ends[0].size());
  for (size_t rank = 1; rank < offsets.size(); ++rank) {
    std::vector<double> differences, deviations;
    for (const std::vector<double>& end : ends) differences.push_back(end[rank] - end[0]);
    offsets[rank].seconds = median(differences);
    for (const double difference : differences)
      deviations.push_back(std::abs(difference - offsets[rank].seconds));
    offsets[rank].median_error = median(deviations);
  }
  return offsets;
}

StepTracer::StepTracer(const TraceConfig& config, Session& session, const Program& program,
                       std::vector<int> traced_ranks, Journal& journal,
                       const PredictedStep& predicted_step)
    : config_(config),
      session_(session),
      program_(program),
      traced_ranks_(std::move(traced_ranks)),
      journal_(journal),
      predicted_(predicted_step) {}

/// Collective: returns the numbers of all ranks, by rank.
std::vector<double> StepTracer::gather_numbers(double number, const char* what) {
  std::vector<double> numbers(static_cast<size_t>(session_.world_size()), 0);
  numbers[static_cast<size_t>(session_.rank())] = number;
  if (session_.world_size() > 1) session_.sum(numbers, what);
  return numbers;
}

/// Compares the clocks of nodes. The ranks of a node share a clock, so all of them get the offset
/// of the node's first rank.
std::vector<ClockOffset> StepTracer::compare_clocks() {
  const std::vector<std::string>& nodes = session_.nodes();
  const auto is_first_node = [&](const std::string& node) { return node == nodes.front(); };
  clocks_ = "all ranks are on one node and have one clock";
  std::vector<ClockOffset> offsets(nodes.size());
  if (std::all_of(nodes.begin(), nodes.end(), is_first_node)) return offsets;
  std::vector<std::vector<double>> ends;
  for (int i = 0; i < kComparisons; ++i) {
    std::array<double, 1> barrier_sum{};
    session_.sum(barrier_sum, "comparing clocks");
    ends.push_back(
        gather_numbers(clock_seconds(std::chrono::steady_clock::now()), "times of clocks"));
  }
  const std::vector<ClockOffset> rank_offsets = clock_offsets(ends);
  double largest_error = 0;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto first = std::find(nodes.begin(), nodes.end(), nodes[rank]) - nodes.begin();
    offsets[rank] = rank_offsets[static_cast<size_t>(first)];
    largest_error = std::max(largest_error, offsets[rank].median_error);
  }
  clocks_ = cat("the clocks of nodes were compared by ", kComparisons,
                " collectives; comparisons differ by about ", seconds_text(largest_error));
  return offsets;
}

std::string StepTracer::measured_events(int64_t step, const RunTrace& trace, double delay) const {
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
  const auto own_rank = static_cast<size_t>(session_.rank());
  const std::vector<double> begins =
      gather_numbers(clock_seconds(trace.begin) - clocks[own_rank].seconds, "begins of a step");
  double first_begin = std::numeric_limits<double>::infinity();
  for (const int rank : traced_ranks_)
    first_begin = std::min(first_begin, begins[static_cast<size_t>(rank)]);
  const bool is_traced_rank =
      std::binary_search(traced_ranks_.begin(), traced_ranks_.end(), session_.rank());
  const std::string events =
      is_traced_rank ? measured_events(step, trace, begins[own_rank] - first_begin) : "";
  const std::vector<std::string> events_by_rank = session_.all_gather_text("trace", events);
  if (session_.rank() != 0) return;
  TraceEvents all_events;
  for (const std::string& text : events_by_rank) all_events.add(text);
  journal_.record_trace(TracedStep{
      .step = step,
      .measured_events = all_events.text(),
      .predicted_events = predicted_.events,
      .notes = {
          {"clocks", clocks_},
          {"predicted", predicted_.time ? predicted_.machine : predicted_.unavailable_reason}}});
}

}  // namespace ftrun
