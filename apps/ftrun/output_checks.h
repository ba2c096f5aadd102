#pragma once

#include <string>

#include "checkpoint/output_mark.h"
#include "config_source.h"
#include "program/step_plan.h"

namespace ftrun {

/// Returns a warning if the disk has little space for the outputs of a run, else "". Called before
/// anything starts, because the run would otherwise fail only when it saves or exports. Throws
/// Error(kBadInput) if the export would replace files that ftrun did not write, or needs a file
/// that cannot be read, and Error(kEnvironment) if output_dir cannot be written or has too little
/// space for a checkpoint and the export. Writes nothing. Only one process of a run checks the
/// contents of an earlier export (OutputCheck::kContents), because this reads all of it.
/// `local_ranks` is the number of ranks on this machine, whose disk tier also needs space.
std::string check_outputs(const LoadedConfig& loaded, const StepPlan& plan, int64_t local_ranks,
                          OutputCheck check = OutputCheck::kContents);

}  // namespace ftrun
