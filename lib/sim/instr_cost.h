#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "machine/machine.h"
#include "model/description.h"
#include "program/program.h"

namespace ftrun {

/// Picoseconds: times of a walk are whole ones, so that sums do not depend on their order.
using Picoseconds = int64_t;
inline constexpr double kPicosecondsPerSecond = 1e12;

/// InstrCost is what an instruction takes on a machine.
struct InstrCost {
  /// The time while nothing else wants its processors.
  Picoseconds alone = 0;
  /// Processors that it keeps busy on each of its ranks; 0: none that others want.
  int threads = 0;
};

/// InstrCosts tells what the instructions of one program take on a machine, of whose rates those of
/// `ranks_of_node` ranks are taken. `on_node[g]` is how many ranks of its group g a node has at
/// least, of those that have any. What the rank does by itself takes `slowness` times as long. All
/// but these two are borrowed.
class InstrCosts {
 public:
  InstrCosts(const Machine& machine, int ranks_of_node, const Program& program,
             const ModelDescription& model, std::vector<int> on_node, double slowness = 1);

  InstrCost of(const Instr& instr);

 private:
  double seconds_of_list(const Instr& instr);
  double seconds_of_bytes(const Instr& instr) const;
  bool touches(const Instr& instr, Tier tier) const;
  double seconds_of_copy(const Instr& instr) const;
  double seconds_of_exchange(const Instr& instr) const;

  const Machine& machine_;
  const Rates& rates_;
  const Program& program_;
  const ModelDescription& model_;
  std::vector<int> on_node_;
  double slowness_;
  /// Seconds of lists, by kind, graph, first operation and number of them.
  std::map<std::tuple<InstrKind, int32_t, int32_t, int32_t>, double> lists_;
};

/// Bytes of ranges together.
int64_t total_bytes(const std::vector<Range>& ranges);

/// Bytes that an instruction which runs no list reads and writes in memory. What it writes in place
/// it reads, too.
double memory_bytes(const Instr& instr);

/// The name of an instruction's kind in machine files ("update", "copy"); "" for those that take no
/// time to speak of.
std::string rated_kind(const Instr& instr);

}  // namespace ftrun
