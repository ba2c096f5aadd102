#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/model_folder.h"
#include "report/run_manifest.h"

namespace ftrun {

/// Lists the fields of a manifest, each with all fields below it, that a resume may always change;
/// those of the config are what the rows of the schema say (ResumeRule, Section::may_change).
const std::vector<std::string>& changeable_fields();

/// Compares the run that `recorded` describes with the run that is about to continue it. Throws
/// Error(kUsage) for a change of the mathematics, with each field and both values, unless `allowed`
/// holds the field. Returns a sentence for each change that a resume may always make (length,
/// destination, logging and layout). `path` is the path of the manifest.
std::vector<std::string> check_resume(const std::string& path, const RunManifest& recorded,
                                      const RunManifest& current,
                                      const std::vector<std::string>& allowed);

/// Throws Error(kBadInput) for a base whose weights differ from those on which the checkpoint was
/// trained.
void check_same_base(const CheckpointMeta& saved, const std::string& step, const ModelFolder& base);

/// Describes which states of a checkpoint a run keeps in another precision, and the effect on them.
std::string conversion_notice(const std::string& folder, const StateDtypeChange& conversion);

}  // namespace ftrun
