#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/run_manifest.h"

namespace ftrun {

inline constexpr std::string_view kNotRecorded = "(none)";

/// ManifestDifference is one field in which an earlier run and this one differ.
struct ManifestDifference {
  /// The dotted name of the field: "seed", "topology.data", "config.optimizer.params.lr",
  /// "data.train.fingerprint".
  std::string field;
  /// The value in run.json; kNotRecorded if a run.json has no such field.
  std::string earlier_value;
  std::string current_value;
  /// Says whether the field affects the mathematics of the run (config, model, data, seed,
  /// topology). False: it affects only rounding, or where the run takes place (build, machine).
  bool affects_results = true;
};

/// Lists the fields in which the run that wrote `earlier` and the run about to start differ. Model
/// and data are compared by fingerprint, so a moved file is the same file; if a fingerprint is not
/// known, they are compared by path and size.
std::vector<ManifestDifference> compare_manifests(const RunManifest& earlier,
                                                  const RunManifest& current);

/// Throws Error(kUsage) for a resume with a difference that affects the results, naming `path`,
/// every such field and both values. An entry of `allowed` permits differences of a field and of
/// all fields below it: "config.train.steps" and "config.train" are such entries, "train.steps" is
/// not.
void refuse_other_run(const std::string& path, const std::vector<ManifestDifference>& differences,
                      const std::vector<std::string>& allowed = {});

}  // namespace ftrun
