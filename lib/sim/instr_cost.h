#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "graph/collective_attrs.h"
#include "machine/machine.h"
#include "model/description.h"
#include "program/program.h"

namespace ftrun {

/// Picoseconds is the unit of time in a walk. Times are integers, so that sums do not depend on the
/// order of addition.
using Picoseconds = int64_t;
inline constexpr double kPicosecondsPerSecond = 1e12;
inline double seconds_of(Picoseconds time) {
  return static_cast<double>(time) / kPicosecondsPerSecond;
}

/// InstrCost is the predicted cost of an instruction on a machine.
struct InstrCost {
  /// The time that it takes if nothing else uses its cores.
  Picoseconds unshared_time = 0;
  /// The number of cores that it keeps busy on each of its ranks; 0 if it uses none that other
  /// instructions compete for.
  int busy_cores = 0;
};

/// InstrCostModel computes the costs of the instructions of one program on a machine, by the
/// machine's rates for `ranks_per_node` ranks, which share the node's disk. `ranks_on_node[g]` is
/// the number of ranks of the program's group g on the node that has the fewest of them, but at
/// least one. The rank's own work takes `slow_factor` times as long. The machine, the program and
/// the model must outlive this object.
class InstrCostModel {
 public:
  InstrCostModel(const Machine& machine, int ranks_per_node, const Program& program,
                 const ModelDescription& model, std::vector<int> ranks_on_node,
                 double slow_factor = 1);

  InstrCost cost_of(const Instr& instr);

 private:
  double seconds_of_list(const Instr& instr);
  double seconds_of_op(const LayerGraph& graph, const Op& op) const;
  double seconds_not_recomputed(const LayerGraph& graph) const;
  double seconds_of_bytes(const Instr& instr) const;
  bool uses_tier(const Instr& instr, Tier tier) const;
  double seconds_of_copy(const Instr& instr) const;
  double seconds_of_collective(const Instr& instr) const;
  int ranks_on_node_along(const CollectiveAttrs& over) const;

  const Machine& machine_;
  const Rates& rates_;
  const Program& program_;
  const ModelDescription& model_;
  int ranks_per_node_;
  std::vector<int> ranks_on_node_;
  double slow_factor_;
  /// Seconds of instructions of layers, by kind, graph, first operation and number of operations.
  std::map<std::tuple<InstrKind, int32_t, int32_t, int32_t>, double> list_seconds_;
};

/// Adds up the bytes of ranges.
int64_t total_bytes(const std::vector<BufferRange>& ranges);

/// Returns the bytes of memory that an instruction outside the operation lists reads and writes.
/// Bytes that it writes in place are also read.
double memory_bytes(const Instr& instr);

/// Names an instruction's kind as machine files do ("update", "copy"); "" for kinds whose time is
/// negligible.
std::string instr_slowdown_key(const Instr& instr);

}  // namespace ftrun
