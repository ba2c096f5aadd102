#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save_buffers.h"
#include "engine/setup.h"
#include "training/export_weights.h"

namespace ftrun {

/// CheckpointedState is the model of a running training as checkpoints access it: the state that
/// this rank holds (ModelState), and the facts about the model that a checkpoint records.
class CheckpointedState {
 public:
  virtual ~CheckpointedState() = default;

  /// Return the fingerprint of the model folder, and the fingerprint of the frozen base weights (""
  /// if the whole model trains).
  virtual std::string fingerprint() const = 0;
  virtual std::string base_fingerprint() const = 0;
  /// Throws Error(kBadInput) for a checkpoint in `folder` that was trained on other frozen weights.
  virtual void check_same_base(const CheckpointMeta& saved, const std::string& folder) const = 0;
  /// Returns the degrees of the mesh, by name.
  virtual std::map<std::string, int64_t> topology() const = 0;
  /// Fills the state with the model's weights. If `adapter` is not null, the tensors that it
  /// contains are read from it.
  virtual void load_initial(const AdapterFolder* adapter) = 0;
  /// Fills the state from a checkpoint, and frozen weights from the model folder. Returns the
  /// states that the checkpoint stores in another precision.
  virtual std::vector<StateDtypeChange> load(Checkpoint& checkpoint) = 0;
  /// Lists the slices of the state itself. They must not change while they are read.
  virtual std::vector<StateSlice> slices() = 0;
  /// Copies the current state and lists the slices of the copy, which may be read while training
  /// continues. There is only one copy at a time; release_snapshot() frees it.
  virtual std::vector<StateSlice> take_snapshot() = 0;
  virtual void release_snapshot() = 0;
  /// Uses the memory of the copy once, so that the first take_snapshot() does not wait for
  /// page faults.
  virtual void populate_snapshot() = 0;
  /// Returns the buffers that all saves share; null if each save allocates its own.
  virtual const SaveBuffers* save_buffers() const = 0;
  /// Collective: calls ftrun::export_weights().
  virtual ExportResult export_weights(bool writes, const std::function<bool()>& stop) = 0;
};

/// Makes the CheckpointedState of a run's setup. It keeps references to both arguments.
std::unique_ptr<CheckpointedState> make_checkpointed_state(const Config& config,
                                                           TrainingSetup& setup);

}  // namespace ftrun
