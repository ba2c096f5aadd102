#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/setup.h"
#include "inputs/run_data.h"
#include "inputs/train_request.h"
#include "kernels/products.h"
#include "report/manifest.h"
#include "training/session.h"

namespace ftrun {

/// ThreadsInUse says on how many threads this rank computes.
struct ThreadsInUse {
  int used = 1;
  /// The rank's share of the processors that it may use, and the limit of it besides the machine's
  /// own; "" for none.
  int share = 1;
  std::string limited_by;
};

/// RunParts are the opened parts of a run, for functions that describe it. All are borrowed.
struct RunParts {
  const TrainRequest& request;
  Session& session;
  const TrainingSetup& setup;
  const RunData& data;
  /// Absent on a GPU.
  const std::optional<ProductsInUse>& products;
  const ThreadsInUse& threads;
};

/// Makes the manifest of the run: build, machine, devices, model, data.
RunManifest describe_run(const RunParts& run);

/// Lists what rank 0 says when a run begins: where it computes, and what differs from the usual.
std::vector<std::string> opening_notes(const RunParts& run);

}  // namespace ftrun
