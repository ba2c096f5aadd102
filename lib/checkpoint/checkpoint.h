#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_group.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored_boxes.h"

namespace ftrun {

/// A state tensor that a checkpoint holds, on however many ranks it lies.
struct StateInfo {
  std::string tensor;
  std::string kind;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// States that a run keeps in another precision than the checkpoint holds them in.
struct StateConversion {
  DType stored = DType::kF32;
  DType wanted = DType::kF32;
  /// Sorted: "exp_avg", "exp_avg_sq", "param".
  std::vector<std::string> kinds;
};

/// A training checkpoint opened for reading. What read() gives was verified: manifest, file sizes,
/// headers, and, while it is read for the first time, the checksum of each slice that is touched.
/// Nothing depends on how many ranks wrote it. Not for use by several threads at once.
class Checkpoint {
 public:
  /// Reads and verifies the manifest only. Error(kBadInput) naming the file, also when two files
  /// disagree about a state's dtype or shape.
  explicit Checkpoint(std::string folder);

  const std::string& folder() const { return folder_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  const CheckpointMeta& meta() const { return manifest_.meta; }

  /// Every (tensor, kind), sorted.
  std::vector<StateInfo> states() const;
  /// Refuses, with Error(kBadInput), a state of which an element is in no file.
  void require_complete() const;
  /// Refuses, with Error(kBadInput), a checkpoint whose states are not exactly `expected` (the
  /// whole model's, from any rank): missing, unknown, other shape, or a dtype that cannot become
  /// the run's. Returns what read() converts.
  std::vector<StateConversion> require_states(const std::vector<StateInfo>& expected) const;

  /// Fills slice.data from whichever files hold parts of its box. F32, BF16 and F16 become BF16 (to
  /// the nearest, ties to even) or F32 (exact), where slice.dtype says so. Error(kBadInput) naming
  /// file and tensor when it is not there, has another shape or dtype, or is damaged; slice.data
  /// then holds anything.
  void read(const StateSlice& slice);
  void read(const std::vector<StateSlice>& slices);
  /// Drops the mapping of all files.
  void close_files();

  /// Reads all of file number `i` (of manifest().files) and throws what is wrong with it first.
  void verify_file(size_t i);

 private:
  struct State {
    StateInfo info;
    StoredBoxes boxes;
    /// The first that holds some of it.
    size_t file;
  };

  void add_states();
  const SafetensorsFile& open(size_t file);
  void check_contents(size_t i, const SafetensorsFile& file) const;
  /// Error(kBadInput) where the slice's checksum is not what was found.
  void verify(size_t file, size_t slice, uint64_t found);
  const State& state_of(const StateSlice& slice) const;
  void check_matches(const StateSlice& slice, const State& state) const;

  std::string folder_;
  CheckpointManifest manifest_;
  std::map<std::pair<std::string, std::string>, State> states_;
  std::vector<std::optional<SafetensorsFile>> files_;
  std::vector<std::vector<bool>> verified_;
};

/// A step folder in a run's checkpoints/.
struct CheckpointEntry {
  std::string folder;
  int64_t step = 0;
  /// The manifest's serial number; -1 when the manifest cannot be read.
  int64_t serial = -1;
  /// Why the manifest cannot be read, or "".
  std::string problem;
};

/// All step folders below `root`, the newest commit first, unreadable ones at the end. Empty when
/// there are none or `root` does not exist.
std::vector<CheckpointEntry> list_checkpoints(const std::string& root);

/// Collective. The folder of the checkpoint to resume from: the given step, or the newest one all
/// of whose files verify; the ranks share the reading. Each one that is passed over is logged as an
/// error with its reason. Error(kBadInput) when none is good: never a silent start from scratch.
std::string choose_checkpoint(const std::string& root, std::optional<int64_t> step,
                              const CheckpointGroup& group);

}  // namespace ftrun
