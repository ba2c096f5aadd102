#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/loader.h"
#include "data/sequence_set.h"
#include "program/step_plan.h"

namespace ftrun {

/// ValidationSet is a validation set and its name.
struct ValidationSet {
  std::string name;
  std::unique_ptr<SequenceSet> sequences;
  /// Returns the name of the set in run.json and of its fingerprint: "validation", or
  /// "validation.NAME".
  std::string role() const { return name == "validation" ? name : "validation." + name; }
};

/// RunData holds the data sets of a run.
struct RunData {
  std::unique_ptr<SequenceSet> train;
  /// The validation sets in the order of the config; empty if it names none.
  std::vector<ValidationSet> validation;
};

/// Opens the data sets of a run. Throws Error(kBadInput) as SequenceSet does.
RunData open_run_data(const Config& config);

/// Throws Error(kBadInput) if the record of a data set says that it holds a token id outside the
/// rows of the model's vocabulary.
void refuse_unknown_tokens(const RunData& data, int64_t vocab_rows);

/// Returns the number of optimizer steps of the whole run, resumed or not.
int64_t steps_of_run(const Config& config, const SequenceSet& train);

/// Returns the options of a rank's data loader for the steps [first_step, end_step).
LoaderOptions loader_options(const Config& config, const StepPlan& plan, int64_t first_step,
                             int64_t end_step);

}  // namespace ftrun
