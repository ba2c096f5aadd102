#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cluster/rank_mesh.h"
#include "program/program.h"

namespace ftrun {

/// TensorNodeTraffic counts what tensor-parallel ranks on different nodes send each other in a
/// training step.
struct TensorNodeTraffic {
  /// The number of groups of tensor-parallel ranks that are on more than one node.
  int crossing_groups = 0;
  /// The ranks of the first such group.
  std::vector<int> first_group;
  /// Bytes that all ranks together send between nodes, each to the next rank of its group (a ring).
  int64_t bytes = 0;
};

/// Returns the bytes that a rank sends to its tensor group in one run of the program.
int64_t tensor_group_bytes(const Program& program);

/// Returns whether the next tensor rank after `rank`, in a ring, is on another node. `nodes`: the
/// name of each rank's node.
bool sends_to_other_node(const RankMesh& mesh, int rank, std::span<const std::string> nodes);

/// Sums the traffic between nodes of all ranks; `bytes_of` returns tensor_group_bytes() of a rank.
TensorNodeTraffic tensor_node_traffic(const RankMesh& mesh, std::span<const std::string> nodes,
                                      const std::function<int64_t(int)>& bytes_of);

/// Returns the warning with its remedy, or "" if every tensor group is on one node.
std::string tensor_node_traffic_warning(const TensorNodeTraffic& traffic,
                                        std::span<const std::string> nodes);

/// Throws Error(kUsage) for a number of nodes that does not divide the number of ranks.
void check_even_nodes(int64_t ranks, int64_t nodes);

/// Returns the name of the node of each of `ranks` ranks, which launchers place in order with the
/// same number on each node: "node 0", ... Throws Error(kUsage) as check_even_nodes() does.
std::vector<std::string> nodes_in_order(int64_t ranks, int64_t nodes);

}  // namespace ftrun
