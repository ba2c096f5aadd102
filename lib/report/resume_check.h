#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/manifest.h"

namespace ftrun {

inline constexpr std::string_view kNotRecorded = "(none)";

/// ManifestDifference is one thing that an earlier run and this one disagree on.
struct ManifestDifference {
  /// Dotted: "seed", "topology.data", "config.optimizer.params.lr", "data.train.fingerprint".
  std::string field;
  /// The value as run.json spells it; kNotRecorded where one has no such field.
  std::string before;
  std::string now;
  /// Says whether it changes the mathematics of the run (config, model, data, seed, topology);
  /// false for what only changes its rounding or place (build, machine).
  bool matters = true;
};

/// Lists everything that differs between the run that wrote `before` and the one about to start.
/// Model and data are compared by fingerprint (a moved file is the same file), or by path and size
/// while one of the fingerprints is not known.
std::vector<ManifestDifference> compare_manifests(const RunManifest& before,
                                                  const RunManifest& now);

/// Refuses a resume in which something that matters differs. An entry of `allowed` lets a field and
/// all below it differ: "config.train.steps" and "config.train" do, "train.steps" does not.
/// Error(kUsage) naming `path`, every field and both its values.
void refuse_other_run(const std::string& path, const std::vector<ManifestDifference>& differences,
                      const std::vector<std::string>& allowed = {});

}  // namespace ftrun
