#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save_room.h"
#include "engine/setup.h"
#include "training/results.h"

namespace ftrun {

/// SavedModel is the model as a run's checkpoints see it: the state that this rank holds
/// (ModelState), and the facts that a checkpoint records of it.
class SavedModel {
 public:
  virtual ~SavedModel() = default;

  /// The fingerprint of the model folder, and of the base's weights; the latter "" where all of the
  /// model trains.
  virtual std::string fingerprint() const = 0;
  virtual std::string base_fingerprint() const = 0;
  /// Error(kBadInput) where the checkpoint in `folder` was trained on other frozen weights.
  virtual void require_same_base(const CheckpointMeta& saved, const std::string& folder) const = 0;
  /// Degrees of the mesh, by name.
  virtual std::map<std::string, int64_t> topology() const = 0;
  /// Fills the state with the model's weights, those of `adapter` first unless it is null.
  virtual void load_first(const AdapterFolder* adapter) = 0;
  virtual std::vector<StateConversion> load(Checkpoint& checkpoint) = 0;
  virtual std::vector<StateSlice> slices() = 0;
  virtual std::vector<StateSlice> snapshot() = 0;
  virtual void release_snapshot() = 0;
  virtual void populate_snapshot() = 0;
  /// The memory of saves; null for memory of each save's own.
  virtual const SaveRoom* room() const = 0;
  /// Collective: ftrun::export_weights().
  virtual ExportOutcome export_weights(bool writes, const std::function<bool()>& stop) = 0;
};

/// Shows the model of a run's setup; both are borrowed.
std::unique_ptr<SavedModel> saved_model(const Config& config, TrainingSetup& setup);

}  // namespace ftrun
