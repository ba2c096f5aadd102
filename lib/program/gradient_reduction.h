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

/// GradientUse is one use of a unit's gradient by the lists that write it.
struct GradientUse {
  UnitId unit = -1;
  /// The micro-batch; -1: all micro-batches of the step share the gradient.
  int32_t micro_batch = -1;
  /// The stage's chunk whose backward completes the gradient.
  int32_t chunk = 0;
  Range whole;
};

/// Reduction holds the instructions that reduce one unit's gradient.
struct Reduction {
  /// Instructions between the last list that writes the gradient and the collective: the conversion
  /// to the dtype that is sent.
  std::vector<Instr> before;
  /// The collective, which may be joined with those of other units; none where no other rank has a
  /// gradient.
  std::optional<Instr> collective;
  /// Instructions after the collective: they bring the result to where the update reads it.
  std::vector<Instr> after;
};

/// GradientReduction assigns the range into which each list writes a gradient, records these uses,
/// and makes the instructions that reduce the written gradients to the one that the update reads.
class GradientReduction {
 public:
  GradientReduction(Program& program, const ModelDescription& model, const StateOptions& options,
                    const UnitPlacement& placement)
      : program_(program), model_(model), options_(options), placement_(placement) {}

  /// Returns the range into which a list writes a parameter's gradient in a micro-batch.
  Range gradient_range(const ParamPlace& place, int64_t bytes, int32_t micro_batch);
  const std::vector<GradientUse>& uses() const { return uses_; }

  /// Returns whether a tensor's gradient must be zero before backward. In a unit with a tied matrix
  /// the embedding's backward adds to all gradients that it writes, even to those that the head has
  /// not written before.
  bool begins_as_zero(UnitId id, TensorId tensor) const;
  /// Makes instructions that zero what no list overwrites: padding, and tensors whose first list
  /// adds; empty where lists overwrite all of it.
  std::vector<Instr> clear_unwritten(const GradientUse& use) const;
  /// Makes the reduction of a gradient. `first`: the buffer of the sum holds nothing from this step
  /// yet.
  Reduction reduce(const GradientUse& use, bool first);
  /// Returns whether another stage computes a term of the unit's gradient.
  bool is_shared_by_stages(UnitId id) const { return placement_.spec(id).shared_by_stages; }

 private:
  int32_t chunk_of(UnitId id) const;

  Program& program_;
  const ModelDescription& model_;
  const StateOptions& options_;
  const UnitPlacement& placement_;
  std::vector<GradientUse> uses_;
  /// Indices of the uses that lists may still join, by unit and micro-batch.
  std::map<std::pair<UnitId, int32_t>, size_t> open_;
};

}  // namespace ftrun
