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

/// Lists names and shapes of the weights that a checkpoint holds. Error(kBadInput) when it is
/// damaged or holds none.
std::vector<std::pair<std::string, std::vector<int64_t>>> checkpoint_weights(
    const std::string& checkpoint_folder);

/// CheckpointWeights reads the "param" states of a checkpoint in fp32.
class CheckpointWeights {
 public:
  /// Opens the checkpoint. Refuses one that is damaged or holds no parameters with
  /// Error(kBadInput).
  explicit CheckpointWeights(const std::string& checkpoint_folder);
  bool has(const std::string& tensor) const { return parameters_.contains(tensor); }
  /// Reads elements [begin, end) of a tensor.
  void read(const std::string& tensor, int64_t begin, int64_t end, std::span<float> out);

 private:
  Checkpoint checkpoint_;
  std::map<std::string, StateInfo> parameters_;
};

/// Exports `tensors` of a checkpoint, however many ranks wrote it. One process calls it; the whole
/// model is never in memory. Errors of CheckpointWeights, Error(kEnvironment) from the disk.
void export_checkpoint(FileSystem& files, const std::string& checkpoint_folder,
                       const ExportOptions& options, const std::vector<ExportTensor>& tensors);

}  // namespace ftrun
