#pragma once

#include <optional>
#include <string>
#include <vector>

#include "exec/run_data.h"
#include "exec/session.h"
#include "exec/setup.h"
#include "exec/train.h"
#include "kernels/products.h"
#include "report/manifest.h"

namespace ftrun {

/// What a run has opened, for those who describe it. All borrowed.
struct RunParts {
  const TrainRequest& request;
  Session& session;
  const TrainingSetup& setup;
  const RunData& data;
  /// Absent on a GPU.
  const std::optional<ProductsInUse>& products;
};

/// The manifest of the run: build, machine, devices, model, data.
RunManifest describe_run(const RunParts& run);

/// What rank 0 says when a run begins: where it computes, and what differs from what one would
/// expect.
std::vector<std::string> opening_notes(const RunParts& run);

}  // namespace ftrun
