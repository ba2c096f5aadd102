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

/// ClockOffset says by how many seconds a rank's steady clock is ahead of rank 0's. Half of the
/// comparisons differ by less than `within` seconds from it.
struct ClockOffset {
  double seconds = 0;
  double within = 0;
};

/// Compares the ranks' clocks by the ends of collectives, which end on all ranks at nearly the same
/// time: `ends[i][rank]` is the time on the rank's clock when collective i ended there. Takes the
/// median of all i.
std::vector<ClockOffset> clock_offsets(const std::vector<std::vector<double>>& ends);

/// StepTracer collects what the traced ranks measured of a traced step, on the clock of rank 0, and
/// hands it to the journal with the predicted step.
class StepTracer {
 public:
  /// `traced` are the ranks that are traced, the same list on every rank. All else is borrowed.
  StepTracer(const TraceConfig& config, Session& session, const Program& program,
             std::vector<int> traced, Journal& journal, const PredictedStep& predicted);

  bool traces(int64_t step) const { return is_traced(config_, step); }
  /// Records the step, if it is traced. Collective in that case. `trace` is this rank's.
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
  /// Says how far the times of different ranks are comparable.
  std::string clocks_;
};

}  // namespace ftrun
