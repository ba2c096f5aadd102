#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_folder.h"
#include "report/manifest.h"

namespace ftrun {

/// Lists fields of a manifest, each with all below it, that a resume may always change.
std::span<const std::string_view> always_may_change();

/// Compares the run that `before` describes with the one about to continue it. Refuses a change of
/// the mathematics with Error(kUsage), naming each field and both values, unless `allowed` holds
/// the field. Returns the changes that a resume may always make (length, destination, logging and
/// layout), one sentence a change. `path` is the manifest's.
std::vector<std::string> admit_resume(const std::string& path, const RunManifest& before,
                                      const RunManifest& now,
                                      const std::vector<std::string>& allowed);

/// The extra field of a checkpoint that holds ModelFolder::weights_fingerprint() of the base, if
/// some of the base is frozen and so not in the checkpoint.
inline constexpr const char* kBaseRecord = "base_weights";

/// Refuses a base whose weights are not those that the checkpoint was trained on, with
/// Error(kBadInput).
void require_same_base(const CheckpointMeta& saved, const std::string& step,
                       const ModelFolder& base);

/// The extra field of a checkpoint that holds EvaluationRecord::text().
inline constexpr const char* kEvaluationRecord = "evaluations";

/// Describes which states of a checkpoint a run keeps in another precision, and the effect on them.
std::string conversion_notice(const std::string& folder, const StateConversion& conversion);

/// Says whether a checkpoint was imported from another program's, which has no config, seed or data
/// of ftrun's.
bool is_imported(const CheckpointMeta& saved);
/// Describes what the user must know about a run that resumes from an imported checkpoint: its
/// source, and what it does not record.
std::string import_notice(const std::string& folder, const CheckpointMeta& saved);

/// Returns the run that saved a checkpoint, as far as the checkpoint records it: seed, topology,
/// fingerprints and config are its own, all else is taken from `now`.
RunManifest recorded_run(const CheckpointMeta& saved, const RunManifest& now);

}  // namespace ftrun
