#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/hf_export.h"

namespace ftrun {

/// Names and shapes of the weights that a checkpoint holds. Error(kBadInput) when it is damaged or
/// holds none.
std::vector<ExportTensor> checkpoint_weights(const std::string& checkpoint_folder);

/// Exports the "param" states of a checkpoint, however many ranks wrote it, as a Hugging Face
/// folder. One process calls it; the model is never whole in memory. Error(kBadInput) when the
/// checkpoint is damaged or holds no parameters, Error(kEnvironment) from the disk.
void export_checkpoint(FileSystem& files, const std::string& checkpoint_folder,
                       const ExportOptions& options);

}  // namespace ftrun
