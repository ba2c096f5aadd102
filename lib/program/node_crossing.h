#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cluster/rank_mesh.h"
#include "program/program.h"

namespace ftrun {

/// TensorCrossing is what tensor ranks on different nodes send each other in a training step.
struct TensorCrossing {
  /// Groups of tensor ranks that lie on more than one node.
  int groups = 0;
  /// The ranks of the first of them.
  std::vector<int> ranks;
  /// Bytes of all ranks that pass between nodes, where each rank sends to the next one of its group
  /// (a ring).
  int64_t bytes = 0;
};

/// Bytes that a rank sends to its tensor group while it runs the program once.
int64_t tensor_bytes(const Program& program);

/// Says whether the next tensor rank after `rank`, in a ring, is on another node. `nodes`: the name
/// of each rank's node.
bool passes_to_other_node(const RankMesh& mesh, int rank, std::span<const std::string> nodes);

/// Adds up over all ranks; `bytes_of` gives tensor_bytes() of a rank.
TensorCrossing tensor_crossing(const RankMesh& mesh, std::span<const std::string> nodes,
                               const std::function<int64_t(int)>& bytes_of);

/// The warning with its remedy; "" where every tensor group is on one node.
std::string crossing_text(const TensorCrossing& crossing, std::span<const std::string> nodes);

/// Names of the nodes of `ranks` ranks that launchers place in order, as many on each: "node 0",
/// ... Error(kUsage) where that is not a whole number.
std::vector<std::string> nodes_in_order(int64_t ranks, int64_t nodes);

}  // namespace ftrun
