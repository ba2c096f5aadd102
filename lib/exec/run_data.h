#pragma once

#include <cstdint>
#include <memory>

#include "config/config.h"
#include "data/loader.h"
#include "data/sample_set.h"
#include "program/step_plan.h"

namespace ftrun {

/// The data sets of a run.
struct RunData {
  std::unique_ptr<SampleSet> train;
  /// Null where the config names none.
  std::unique_ptr<SampleSet> validation;
};

/// Error(kBadInput) of SampleSet.
RunData open_run_data(const Config& config);

/// Error(kBadInput) when the data is known to hold a token id that the model has no row for.
void refuse_unknown_tokens(const RunData& data, int64_t vocab_rows);

/// Optimizer steps of the whole run, resumed or not.
int64_t steps_of_run(const Config& config, const SampleSet& train);

/// The loader of a rank, which makes the steps [first_step, end_step).
LoaderOptions loader_options(const Config& config, const StepPlan& plan, int64_t first_step,
                             int64_t end_step);

}  // namespace ftrun
