#pragma once

#include <optional>
#include <span>

#include "program/program.h"

namespace ftrun {

/// UpdateOperands names the ranges of a kUpdate or kComputeScales. It points into the instruction,
/// which must outlive it. Both kinds read {gradient, weights, states..., scales..., new scales...}:
/// states that are codes have scales, and only those of a tensor that straddles blocks
/// (UpdateDetail::blocks) have new ones. A kUpdate writes `updated`, then the working copy of the
/// weights; a kComputeScales writes the new scales.
struct UpdateOperands {
  BufferRange gradient;
  BufferRange weights;
  std::span<const BufferRange> states;
  /// A range of scales for each state that is codes. Its first scale belongs to the first block of
  /// the update. For a tensor that straddles blocks the range holds all scales of the tensor.
  std::span<const BufferRange> scales;
  std::span<const BufferRange> new_scales;
  /// The ranges that a kUpdate reads and writes: weights, states, and scales without new ones.
  std::span<const BufferRange> updated;
  /// The working copy of the weights that a kUpdate writes (UpdateDetail::writes_working_copy).
  std::optional<BufferRange> working_copy;
};

/// Decodes the operands of a kUpdate or kComputeScales; returns nothing if the number of ranges is
/// wrong.
std::optional<UpdateOperands> decode_update_operands(const Program& program, const Instr& instr);

}  // namespace ftrun
