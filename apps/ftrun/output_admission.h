#pragma once

#include <string>

#include "checkpoint/output_mark.h"
#include "config_source.h"
#include "program/step_plan.h"

namespace ftrun {

/// Checks the outputs of a run before anything starts, which would otherwise fail when it saves or
/// exports. Throws Error(kBadInput) for a run whose export would replace files that ftrun did not
/// write, or that needs a file that cannot be read, and Error(kEnvironment) if output_dir cannot be
/// written or has no room for a checkpoint and the export. Returns a warning if room is short, else
/// "". Writes nothing. One of a run's processes checks the contents of an earlier export, which
/// reads all of it. `local`: ranks of this run on this machine, whose disk tier takes space too.
std::string admit_outputs(const LoadedConfig& loaded, const StepPlan& plan, int64_t local,
                          OutputCheck check = OutputCheck::kContents);

}  // namespace ftrun
