#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_group.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored_boxes.h"

namespace ftrun {

/// StateInfo describes a state tensor of a checkpoint, regardless of the ranks that hold it.
struct StateInfo {
  std::string tensor;
  std::string kind;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// StateDtypeChange lists states that a run keeps in another precision than the checkpoint.
struct StateDtypeChange {
  DType stored_dtype = DType::kF32;
  DType run_dtype = DType::kF32;
  /// The kinds of these states, sorted: "exp_avg", "exp_avg_sq", "param".
  std::vector<std::string> kinds;
};

/// Checkpoint is a training checkpoint opened for reading. All data that read() returns is
/// verified: manifest, file sizes, headers and, when a slice is read for the first time, the
/// slice's checksum. The number of ranks that wrote it does not matter. Only one thread at a time
/// may use it.
class Checkpoint {
 public:
  /// Reads and verifies the manifest only. Throws Error(kBadInput) naming the file, also when two
  /// files disagree about a state's dtype or shape.
  explicit Checkpoint(std::string folder);

  const std::string& folder() const { return folder_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  const CheckpointMeta& meta() const { return manifest_.meta; }

  /// Lists every (tensor, kind), sorted.
  std::vector<StateInfo> states() const;
  /// Throws Error(kBadInput) if some element of a state is in no file.
  void check_complete() const;
  /// Throws Error(kBadInput) unless the checkpoint's states are exactly `expected` (the states of
  /// the whole model, as any rank lists them): for a missing or unknown state, another shape, or a
  /// dtype that cannot be converted to the run's. Returns the conversions that read() will make.
  std::vector<StateDtypeChange> check_states(const std::vector<StateInfo>& expected) const;

  /// Fills slice.data from the files that hold parts of its box. F32, BF16 and F16 are converted to
  /// slice.dtype: BF16 (to the nearest, ties to even) or F32 (exact). Throws Error(kBadInput)
  /// naming file and tensor if the slice is missing, has another shape or dtype, or is damaged;
  /// slice.data is then undefined.
  void read(const StateSlice& slice);
  void read(const std::vector<StateSlice>& slices);
  /// Closes the mappings of all files.
  void close_files();

  /// Reads all of file number `i` (of manifest().files) and throws the first problem found.
  void verify_file(size_t i);

 private:
  /// StateLocation holds where the checkpoint has a state: its boxes, and the files that hold them.
  struct StateLocation {
    StateInfo info;
    StoredBoxes boxes;
    /// The first file that holds a part of the state.
    size_t file;
  };

  void add_states();
  const SafetensorsFile& open(size_t file);
  void check_contents(size_t i, const SafetensorsFile& file) const;
  /// Throws Error(kBadInput) if the checksum of a slice is not `checksum`.
  void verify_checksum(size_t file, size_t slice, uint64_t checksum);
  const StateLocation& location_of(const StateSlice& slice) const;
  void check_matches(const StateSlice& slice, const StateLocation& state) const;

  std::string folder_;
  CheckpointManifest manifest_;
  std::map<std::pair<std::string, std::string>, StateLocation> states_;
  std::vector<std::optional<SafetensorsFile>> files_;
  std::vector<std::vector<bool>> verified_;
};

/// CheckpointEntry is a step folder in a run's folder checkpoints/.
struct CheckpointEntry {
  std::string folder;
  int64_t step = 0;
  /// The manifest's serial number; -1 if the manifest cannot be read.
  int64_t serial = -1;
  /// The reason why the manifest cannot be read, or "".
  std::string problem;
};

/// Lists all step folders below `root`, the newest commit first, unreadable ones at the end. The
/// list is empty if there are none or `root` does not exist.
std::vector<CheckpointEntry> list_checkpoints(const std::string& root);

/// Chooses the folder of the checkpoint to resume from: the given step, or the newest checkpoint
/// whose files all verify. Collective: the ranks divide the reading. Each checkpoint that is
/// skipped is logged as an error with the reason. Throws Error(kBadInput) if none is good: a run
/// never starts from scratch silently.
std::string choose_checkpoint(const std::string& root, std::optional<int64_t> step,
                              const CheckpointGroup& group);

}  // namespace ftrun
