#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_folder.h"
#include "exec/memory.h"
#include "model/description.h"
#include "partition/layout.h"
#include "partition/units.h"

namespace ftrun {

/// The parameters and optimizer state of a rank in its flat buffers, seen as named tensors: filled
/// from a model folder or a checkpoint, cut into slices for saving, read in pieces for export.
class ModelState {
 public:
  /// `state_kinds` names the optimizer's flat buffers in order: {"exp_avg", "exp_avg_sq"}.
  /// `memory` must have allocated a training program of this model. All are borrowed.
  ModelState(const ModelDescription& model, const Partition& partition, const RankMemory& memory,
             std::vector<std::string> state_kinds);

  /// Every parameter from the folder, converted to fp32. Error(kBadInput) with every tensor that is
  /// missing, unknown or misshapen.
  void load(const ModelFolder& folder);

  /// Everything from a checkpoint, whatever layout wrote it. Error(kBadInput).
  void load(Checkpoint& checkpoint);

  /// What rank `rank` of `ranks` replicas writes: its part of every unit, of parameters and state.
  std::vector<StateSlice> slices(int rank, int ranks) const;

  /// Elements [begin, end) of a parameter.
  void read(const std::string& tensor, int64_t begin, int64_t end, std::span<float> out) const;

  /// Every state of the whole model.
  std::vector<StateInfo> states() const;

 private:
  void append_slices(const Unit& unit, int64_t begin, int64_t end,
                     std::vector<StateSlice>& slices) const;

  const ModelDescription& model_;
  const Partition& partition_;
  FlatLayout layout_;
  /// Kinds and their flat buffers, laid out alike: "param" first.
  std::vector<std::string> kinds_;
  std::vector<float*> buffers_;
};

}  // namespace ftrun
