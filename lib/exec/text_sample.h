#pragma once

#include <string>

#include "config/config.h"
#include "data/sample_set.h"
#include "exec/run_journal.h"
#include "exec/session.h"
#include "exec/setup.h"

namespace ftrun {

/// Collective: the text that the trained model writes after the beginning of the validation text;
/// "" where the config asks for none, a signal ends it, or it cannot be written: rank 0 then says
/// why, as a run that cannot write a text has still trained.
std::string write_sample(const Config& config, Session& session, TrainingSetup& setup,
                         const SampleSet& validation, RunJournal& journal);

}  // namespace ftrun
