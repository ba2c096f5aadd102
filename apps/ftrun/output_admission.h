#pragma once

#include <string>

#include "checkpoint/output_mark.h"
#include "config_source.h"
#include "program/step_plan.h"

namespace ftrun {

/// Checks before anything starts what a run would find out only when it saves or exports. Refuses a
/// run whose export would replace what ftrun did not write, or that needs a file that cannot be
/// read (both Error(kBadInput)), or whose output_dir cannot be written or has no room for a
/// checkpoint and the export (both Error(kEnvironment)). Returns a warning, "" for none, where room
/// is short. Writes nothing. One of a run's processes checks the contents of an earlier export,
/// which reads all of it. `local`: ranks of this run on this machine, whose disk tier takes space
/// too.
std::string admit_outputs(const LoadedConfig& loaded, const StepPlan& plan, int64_t local,
                          OutputCheck check = OutputCheck::kContents);

}  // namespace ftrun
