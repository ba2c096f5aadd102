#pragma once

#include <set>
#include <string>
#include <utility>

#include "program/program.h"
#include "sim/instr_cost.h"

namespace ftrun {

/// A StepTrace is what ranks do in a step, in the JSON that Chrome's and Perfetto's viewers read: a
/// process a rank, a thread a lane, an event an instruction.
class StepTrace {
 public:
  /// Adds an event for an instruction; one that takes no time is left out.
  void add(int rank, const Program& program, const Instr& instr, Picoseconds begin,
           Picoseconds end);

  /// The whole document.
  std::string text() const;

 private:
  void add_event(const std::string& event);

  std::string events_;
  /// Ranks and lanes that have their names.
  std::set<std::pair<int, int>> named_;
};

}  // namespace ftrun
