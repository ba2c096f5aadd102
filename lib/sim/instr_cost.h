#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "machine/machine.h"
#include "model/description.h"
#include "program/program.h"

namespace ftrun {

/// Picoseconds are the times of a walk: whole numbers, so that sums do not depend on their order.
using Picoseconds = int64_t;
inline constexpr double kPicosecondsPerSecond = 1e12;

/// InstrCost is what an instruction costs on a machine.
struct InstrCost {
  /// The time when nothing else uses its processors.
  Picoseconds alone = 0;
  /// Processors that it keeps busy on each of its ranks; 0: none that other instructions use.
  int threads = 0;
};

/// InstrCosts computes what the instructions of one program cost on a machine, by the machine's
/// rates for `ranks_of_node` ranks. `on_node[g]` is the least number of ranks of the program's
/// group g on a node that has any. The rank's own work takes `slowness` times as long. All
/// arguments but these two are borrowed.
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

/// Adds up the bytes of ranges.
int64_t total_bytes(const std::vector<Range>& ranges);

/// Counts the bytes that an instruction which runs no list reads and writes in memory. Bytes that
/// it writes in place are also read.
double memory_bytes(const Instr& instr);

/// Names an instruction's kind as machine files do ("update", "copy"); "" for kinds whose time is
/// negligible.
std::string rated_kind(const Instr& instr);

}  // namespace ftrun
