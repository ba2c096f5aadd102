#pragma once

#include <string>

#include "engine/lane_device.h"
#include "engine/memory.h"
#include "model/description.h"
#include "program/program.h"

namespace ftrun {

/// NonfiniteLocation is the location where a rank first found a value that is not finite.
struct NonfiniteLocation {
  /// The instruction that computed the value; -1: every value is finite.
  InstrId instr = -1;
  /// The location as text: "forward layer 3 mb 0 (layers.2): hidden".
  std::string text;
};

/// NonfiniteProbe looks for the first value of a run that is not finite.
class NonfiniteProbe {
 public:
  /// Borrows all arguments.
  NonfiniteProbe(const Program& program, const ModelDescription& model, const RankMemory& memory,
                 LaneDevice& device)
      : program_(program), model_(model), memory_(memory), device_(device) {}

  /// Checks the values that an instruction has computed with operations of a layer, in the order of
  /// ids: those that leave the list, or the part of the list between two collectives which the
  /// instruction runs. Does nothing after a value was found.
  void check(const Instr& instr);

  const NonfiniteLocation& location() const { return location_; }

 private:
  std::string nonfinite_weights(const Instr& instr) const;

  const Program& program_;
  const ModelDescription& model_;
  const RankMemory& memory_;
  LaneDevice& device_;
  NonfiniteLocation location_;
};

}  // namespace ftrun
