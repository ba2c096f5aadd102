#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/launch_environment.h"
#include "config/config.h"
#include "report/run_manifest.h"

namespace ftrun {

/// ResumeRequest holds the options of `--resume`.
struct ResumeRequest {
  /// Says whether the run continues an earlier run of its folder, if there is one.
  bool is_requested = false;
  /// The step to resume from; nothing: the newest good checkpoint.
  std::optional<int64_t> step;
  /// Fields of the manifest that may differ from the run that is resumed (`--allow`).
  std::vector<std::string> allowed;

  void resume_newest() {
    is_requested = true;
    step.reset();
  }
};

/// TrainRequest holds everything that a rank needs; it is equal on all ranks except for `launch`.
struct TrainRequest {
  /// The resolved config, which this build supports.
  Config config;
  /// The effective config as text, for config.yaml and the manifest.
  std::string config_yaml;
  std::string config_json;
  LaunchEnvironment launch;
  /// The TorchrunLaunch::name of the torchrun that started the ranks, once they are connected; ""
  /// for other launchers.
  std::string torchrun_launch;
  ResumeRequest resume;
  /// The ranks that ftrun's own supervisor restarted.
  RanksOfStart ranks;
  /// Seconds between the scheduler's warning and its kill (--stop-lead); 0 if not given.
  double stop_lead_seconds = 0;
  BuildInfo build;
  /// Says whether standard output is a terminal, on which rank 0 draws a live line.
  bool draws_live_line = false;
};

}  // namespace ftrun
