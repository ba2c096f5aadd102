#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/model_folder.h"
#include "report/run_manifest.h"

namespace ftrun {

/// Lists the fields of a manifest, each with all fields below it, that a resume may always change;
/// those of the config are what the rows of the schema say (OnResume, Section::may_change).
const std::vector<std::string>& always_may_change();

/// Compares the run that `before` describes with the run that is about to continue it. Throws
/// Error(kUsage) for a change of the mathematics, with each field and both values, unless `allowed`
/// holds the field. Returns a sentence for each change that a resume may always make (length,
/// destination, logging and layout). `path` is the path of the manifest.
std::vector<std::string> admit_resume(const std::string& path, const RunManifest& before,
                                      const RunManifest& now,
                                      const std::vector<std::string>& allowed);

/// The extra field of a checkpoint that holds ModelFolder::weights_fingerprint() of the base, if a
/// part of the base is frozen and therefore not in the checkpoint.
inline constexpr const char* kBaseRecord = "base_weights";

/// Throws Error(kBadInput) for a base whose weights differ from those on which the checkpoint was
/// trained.
void check_same_base(const CheckpointMeta& saved, const std::string& step, const ModelFolder& base);

/// The extra field of a checkpoint that holds EvaluationRecord::text().
inline constexpr const char* kEvaluationRecord = "evaluations";

/// The extra field of a checkpoint that holds SkippedSteps::consecutive(), if that is not 0.
inline constexpr const char* kNonfiniteRecord = "nonfinite_steps";

/// Describes which states of a checkpoint a run keeps in another precision, and the effect on them.
std::string conversion_notice(const std::string& folder, const StateConversion& conversion);

/// Returns whether a checkpoint was imported from another program's checkpoint, which has no
/// config, seed or data of ftrun.
bool is_imported(const CheckpointMeta& saved);
/// Returns a notice for a run that resumes from an imported checkpoint: the checkpoint's source,
/// and what it does not record.
std::string import_notice(const std::string& folder, const CheckpointMeta& saved);

/// Returns the manifest of the run that saved a checkpoint, as far as the checkpoint records it:
/// seed, topology, fingerprints and config come from that run, all other fields from `now`.
RunManifest recorded_run(const CheckpointMeta& saved, const RunManifest& now);

}  // namespace ftrun
