#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "model/description.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/unit_placement.h"

namespace ftrun {

/// GradientUse is a unit's gradient during the time in which operation lists write it.
struct GradientUse {
  UnitId unit = -1;
  /// The micro-batch; -1: all micro-batches of the step share the gradient.
  int32_t micro_batch = -1;
  /// The chunk of this pipeline stage whose backward pass completes the gradient.
  int32_t chunk = 0;
  BufferRange range;
};

/// Reduction holds the instructions that reduce one unit's gradient.
struct Reduction {
  /// Instructions that run after the last operation list that writes the gradient and before the
  /// collective: they sum partial gradients of tensor-parallel ranks and of the first and the last
  /// stage, and convert the gradient to the dtype in which it is sent. Without a collective they
  /// also move the gradient to the buffer that the update reads.
  std::vector<Instr> instrs_before;
  /// The collective over the shard or the replica group, which may be joined with those of other
  /// units in a bucket. It has no value if the unit has neither group.
  std::optional<Instr> collective;
  /// Instructions that run after the collective: they sum its result over the replica group, if
  /// there is one beside the shard group, and move it to the buffer that the update reads.
  std::vector<Instr> instrs_after;
};

/// GradientReducer assigns the range into which each operation list writes a gradient, records
/// these uses, and makes the instructions that reduce the written gradients to the gradient that
/// the update reads.
class GradientReducer {
 public:
  GradientReducer(Program& program, const ModelDescription& model, const StateOptions& options,
                  const UnitPlacement& placement)
      : program_(program), model_(model), options_(options), placement_(placement) {}

  /// Assigns the range into which an operation list writes a parameter's gradient in a micro-batch,
  /// and records the use of the unit's gradient.
  BufferRange assign_gradient_range(const ParamLocation& location, int64_t bytes,
                                    int32_t micro_batch);
  const std::vector<GradientUse>& uses() const { return uses_; }

  /// Returns whether a tensor's gradient must be zero before backward. In a unit with a tied matrix
  /// the backward pass of the embedding adds to all gradients that it writes, including gradients
  /// that the head's backward pass has not written.
  bool must_be_zeroed_first(UnitId id, TensorId tensor) const;
  /// Returns instructions that zero the ranges that no operation list overwrites: padding, and
  /// tensors whose first operation list adds. Returns nothing if the lists overwrite the whole
  /// gradient.
  std::vector<Instr> clear_unwritten(const GradientUse& use) const;
  /// Makes the reduction of a gradient. `is_first` means that nothing has been written to the sum's
  /// buffer in this step.
  Reduction plan_reduction(const GradientUse& use, bool is_first);
  /// Returns whether another stage computes a partial gradient of the unit.
  bool is_shared_by_stages(UnitId id) const { return placement_.spec(id).shared_by_stages; }

 private:
  int32_t chunk_of(UnitId id) const;

  Program& program_;
  const ModelDescription& model_;
  const StateOptions& options_;
  const UnitPlacement& placement_;
  std::vector<GradientUse> uses_;
  /// The uses that further operation lists may still join, as indices in `uses_`, by unit and
  /// micro-batch.
  std::map<std::pair<UnitId, int32_t>, size_t> joinable_uses_;
};

}  // namespace ftrun
