#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/step_run.h"
#include "program/program.h"
#include "training/loop_dependencies.h"
#include "training/session.h"
#include "training/step_time_comparison.h"

namespace ftrun {

/// ClockOffset says by how many seconds a rank's steady clock is ahead of rank 0's clock. Half of
/// the comparisons differ from `seconds` by less than `median_error` seconds.
struct ClockOffset {
  double seconds = 0;
  double median_error = 0;
};

/// Compares the ranks' clocks by the ends of collectives, which end on all ranks at nearly the same
/// time: `ends[i][rank]` is the time on the rank's clock when collective i ended there. Each offset
/// is the median over all i.
std::vector<ClockOffset> clock_offsets(const std::vector<std::vector<double>>& ends);

/// StepTracer collects the measurements of the traced ranks in a traced step, converts them to the
/// clock of rank 0, and passes them to the journal together with the predicted step.
class StepTracer {
 public:
  /// Makes a tracer. `traced_ranks` lists the traced ranks and must be the same on every rank.
  /// Keeps references to all other arguments.
  StepTracer(const TraceConfig& config, Session& session, const Program& program,
             std::vector<int> traced_ranks, Journal& journal, const PredictedStep& predicted_step);

  bool traces(int64_t step) const { return is_traced(config_, step); }
  /// Records the step if it is traced; in this case the call is collective. `trace` is this rank's
  /// trace.
  void record_if_traced(int64_t step, const RunTrace& trace);

 private:
  std::vector<ClockOffset> compare_clocks();
  std::string measured_events(int64_t step, const RunTrace& trace, double delay) const;
  std::vector<double> gather_numbers(double number, const char* what);

  const TraceConfig& config_;
  Session& session_;
  const Program& program_;
  const std::vector<int> traced_ranks_;
  Journal& journal_;
  const PredictedStep& predicted_;
  /// A text that says how well the times of different ranks can be compared.
  std::string clocks_;
};

}  // namespace ftrun
