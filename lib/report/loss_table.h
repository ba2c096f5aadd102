#pragma once

#include <string>
#include <vector>

#include "report/step_metrics.h"

namespace ftrun {

/// Makes a compact table for a terminal, of at most `rows` rows: step, training loss (mean over the
/// steps since the row before), the loss on each evaluated set, tokens/s. The first and the last
/// step always have a row; if there are evaluations, the rows are their steps.
std::string loss_table(const std::vector<StepMetrics>& metrics, int rows = 12);

}  // namespace ftrun
