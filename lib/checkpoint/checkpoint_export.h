#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_export.h"

namespace ftrun {

/// Lists names and shapes of the weights that a checkpoint holds. Throws Error(kBadInput) if it is
/// damaged or holds none.
std::vector<std::pair<std::string, std::vector<int64_t>>> list_weight_shapes(
    const std::string& checkpoint_folder);

/// CheckpointWeights reads the "param" states of a checkpoint in fp32.
class CheckpointWeights {
 public:
  /// Opens the checkpoint. Throws Error(kBadInput) if it is damaged or holds no parameters.
  explicit CheckpointWeights(const std::string& checkpoint_folder);
  bool has(const std::string& tensor) const { return parameters_.contains(tensor); }
  /// Reads elements [begin, end) of a tensor.
  void read(const std::string& tensor, int64_t begin, int64_t end, std::span<float> out);

 private:
  Checkpoint checkpoint_;
  std::map<std::string, StateInfo> parameters_;
};

/// Exports `tensors` of a checkpoint, regardless of the number of ranks that wrote it. One process
/// calls it; the whole model is never in memory. Throws the errors of CheckpointWeights, and
/// Error(kEnvironment) for errors of the disk.
void export_checkpoint(FileSystem& files, const std::string& checkpoint_folder,
                       const ExportOptions& options, const std::vector<ExportTensor>& tensors);

}  // namespace ftrun
