#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "config/config.h"
#include "engine/setup.h"

namespace ftrun {

/// ExportResult is the result of export_weights().
struct ExportResult {
  /// Says whether `stop` ended the export, so that no file of it remains.
  bool stopped = false;
  /// A failure of the writing rank between pieces, which the other ranks do not notice.
  std::exception_ptr failure;
  /// A text that names the trained tensors that have not changed since training began
  /// (ChangedTensors), set on the writing rank; "" if all have changed.
  std::string unchanged_warning;
};

/// Writes the trained weights as a Hugging Face folder, export_folder(), in the dtype the config
/// requests. Collective: the rank with `writes` receives the state of the other ranks piece by
/// piece, never a whole model. All ranks call `stop` (collective; it returns the same on all ranks)
/// before each piece. Throws if a rank fails in the joint work; the groups are then aborted, so
/// that the other ranks fail at once.
///
/// The pieces are in the memory that saves use (TrainingSetup::save_buffers), so no save may be in
/// progress.
ExportResult export_weights(const Config& config, TrainingSetup& setup, bool writes,
                            const std::function<bool()>& stop);

/// Returns an upper bound on the bytes that the writing rank's process needs for an export at the
/// end of the run, in addition to the memory that saves use; 0 if the config asks for no export.
int64_t export_working_bytes(const Config& config, TrainingSetup& setup);

}  // namespace ftrun
