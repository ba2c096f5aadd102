#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint_group.h"
#include "checkpoint/checkpoint_manifest.h"
#include "temporary_folder.h"
#include "thrown_error.h"

namespace ftrun::testing {

void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

/// Returns a safetensors file of this header text and data.
std::string safetensors_bytes(const std::string& header, const std::string& data);

/// Requires that `action` throws an Error about its input; returns the message.
inline std::string require_bad_input(const std::function<void()>& action) {
  return require_error(ExitCode::kBadInput, action);
}

/// Runs `work` as `world_size` ranks in threads. Returns the message of each rank's Error, "" for
/// none.
std::vector<std::string> run_ranks(int world_size,
                                   const std::function<void(const CheckpointGroup&)>& work);

/// Returns everything logged while `action` ran.
std::string capture_log(const std::function<void()>& action);

/// ToySplit selects how the tensors of a ToyState are divided among ranks.
enum class ToySplit {
  kFlat,     // ranges of the flattened tensor that may begin and end within rows
  kRows,     // along the first dimension
  kColumns,  // along the last
  kBoth,     // along the last among pairs of ranks (an even number), within a pair as kFlat
};

/// ToyState is a rank's part of the state of a small made-up model. The last rank has the scalar.
class ToyState {
 public:
  /// Makes a state whose values follow from tensor, kind, element and `version`.
  ToyState(int world_size, int rank, int version, ToySplit split = ToySplit::kFlat);
  std::vector<StateSlice> slices();
  /// Returns whether the memory holds exactly the values of `version`.
  bool equals(int version) const;
  void clear();
  static std::vector<std::pair<std::string, std::vector<int64_t>>> tensors();

 private:
  struct Part {
    StateSlice slice;
    std::vector<float> values;
  };
  int world_size_;
  int rank_;
  ToySplit split_;
  std::vector<Part> parts_;
};

CheckpointMeta toy_meta(int64_t step, int world_size);

}  // namespace ftrun::testing
