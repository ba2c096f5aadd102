#pragma once

#include <string>

#include "checkpoint/checkpoint_manifest.h"
#include "report/run_manifest.h"

namespace ftrun {

/// Returns whether a checkpoint was imported from another program's checkpoint, which has no
/// config, seed or data of ftrun.
bool is_imported(const CheckpointMeta& saved);
/// Returns a notice for a run that resumes from an imported checkpoint: the checkpoint's source,
/// and what it does not record.
std::string import_notice(const std::string& folder, const CheckpointMeta& saved);

/// Returns the manifest of the run that saved a checkpoint, as far as the checkpoint records it:
/// seed, topology, fingerprints and config come from that run, all other fields from `current`.
RunManifest recorded_run(const CheckpointMeta& saved, const RunManifest& current);

}  // namespace ftrun
