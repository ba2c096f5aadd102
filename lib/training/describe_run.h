#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/setup.h"
#include "inputs/run_data.h"
#include "inputs/train_request.h"
#include "kernels/choose_matmul_library.h"
#include "report/run_manifest.h"
#include "training/session.h"

namespace ftrun {

/// ThreadsInUse holds the number of threads on which this rank computes.
struct ThreadsInUse {
  int count = 1;
  /// The number of cores that the rank may use, and the reason if that is less than its share of
  /// the machine; else "".
  int usable_cores = 1;
  std::string limit_reason;
};

/// RunDescriptionInputs refers to the parts of a run that the functions below describe.
struct RunDescriptionInputs {
  const TrainRequest& request;
  Session& session;
  const TrainingSetup& setup;
  const RunData& data;
  /// The libraries of matrix multiplication; absent on a GPU.
  const std::optional<MatmulLibrariesInUse>& matmul_libraries;
  const ThreadsInUse& threads;
};

/// Makes the manifest of the run: build, machine, devices, model, data.
RunManifest describe_run(const RunDescriptionInputs& run);

/// Lists the notes that rank 0 shows when a run begins: the devices, and anything unusual.
std::vector<std::string> list_start_notes(const RunDescriptionInputs& run);

}  // namespace ftrun
