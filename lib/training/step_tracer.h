#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/executor.h"
#include "program/program.h"
#include "training/loop_parts.h"
#include "training/session.h"
#include "training/step_times.h"

namespace ftrun {

/// ClockOffset holds by how many seconds a rank's steady clock is ahead of rank 0's. Half of the
/// comparisons differ from it by less than `within` seconds.
struct ClockOffset {
  double seconds = 0;
  double within = 0;
};

/// Compares the ranks' clocks by the ends of collectives, which end on all ranks at nearly the same
/// time: `ends[i][rank]` is the time on the rank's clock when collective i ended there. Each offset
/// is the median over all i.
std::vector<ClockOffset> clock_offsets(const std::vector<std::vector<double>>& ends);

/// StepTracer collects the traced ranks' measurements of a traced step, on the clock of rank 0, and
/// passes them to the journal with the predicted step.
class StepTracer {
 public:
  /// Takes `traced`, the traced ranks, which must be the same list on every rank. All other
  /// arguments are borrowed.
  StepTracer(const TraceConfig& config, Session& session, const Program& program,
             std::vector<int> traced, Journal& journal, const PredictedStep& predicted);

  bool traces(int64_t step) const { return is_traced(config_, step); }
  /// Records the step if it is traced, and is collective then. `trace` is this rank's trace.
  void write(int64_t step, const RunTrace& trace);

 private:
  std::vector<ClockOffset> compare_clocks();
  std::string measured(int64_t step, const RunTrace& trace, double late) const;
  std::vector<double> of_all(double number, const char* what);

  const TraceConfig& config_;
  Session& session_;
  const Program& program_;
  const std::vector<int> traced_;
  Journal& journal_;
  const PredictedStep& predicted_;
  /// The text that says how far times of different ranks are comparable.
  std::string clocks_;
};

}  // namespace ftrun
