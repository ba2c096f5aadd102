#include "axes/tensor/node_traffic.h"

#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "program/traffic.h"

namespace ftrun {

int64_t tensor_group_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const TrafficRow& row : program_traffic(program).rows)
    if (row.axes == axis_name(MeshAxis::kTensor)) bytes += row.bytes;
  return bytes;
}

bool sends_to_other_node(const RankMesh& mesh, int rank, std::span<const std::string> nodes) {
  const int count = mesh.size(MeshAxis::kTensor);
  const int next =
      mesh.rank_moved_to(rank, MeshAxis::kTensor, (mesh.coordinates_of(rank).tensor + 1) % count);
  return nodes[static_cast<size_t>(rank)] != nodes[static_cast<size_t>(next)];
}

TensorNodeTraffic tensor_node_traffic(const RankMesh& mesh, std::span<const std::string> nodes,
                                      const std::function<int64_t(int)>& bytes_of) {
  TensorNodeTraffic traffic;
  if (mesh.size(MeshAxis::kTensor) == 1) return traffic;
  for (const RankGroup& group : mesh.list_groups({MeshAxis::kTensor})) {
    bool crosses = false;
    for (const int rank : group.ranks) {
      if (!sends_to_other_node(mesh, rank, nodes)) continue;
      crosses = true;
      traffic.bytes += bytes_of(rank);
    }
    if (!crosses) continue;
    if (traffic.crossing_groups++ == 0) traffic.first_group = group.ranks;
  }
  return traffic;
}

std::string tensor_node_traffic_warning(const TensorNodeTraffic& traffic,
                                        std::span<const std::string> nodes) {
  if (traffic.crossing_groups == 0) return "";
  std::vector<std::string> ranks, group_nodes;
  for (const int rank : traffic.first_group) {
    ranks.push_back(std::to_string(rank));
    const std::string& node = nodes[static_cast<size_t>(rank)];
    if (std::find(group_nodes.begin(), group_nodes.end(), node) == group_nodes.end())
      group_nodes.push_back(node);
  }
  const int other_groups = traffic.crossing_groups - 1;
  return cat("tensor ranks are on different nodes: ranks ", join(ranks, ", "), " on ",
             join(group_nodes, ", "),
             other_groups == 0 ? "" : cat(", and ", count_text(other_groups, "more group")),
             ". Each step sends ", human_bytes(traffic.bytes),
             " between nodes while layers wait for it",
             "\n  remedy: start a multiple of parallel.tensor ranks on each node, in rank order "
             "(sbatch --ntasks-per-node, srun --distribution=block), or lower parallel.tensor");
}

void check_even_nodes(int64_t ranks, int64_t nodes) {
  if (ranks % nodes == 0) return;
  throw Error(ExitCode::kUsage,
              cat("--nodes ", nodes, ": ", ranks, " ranks cannot be spread evenly over them"),
              "give a number of nodes that divides the ranks");
}

std::vector<std::string> nodes_in_order(int64_t ranks, int64_t nodes) {
  check_even_nodes(ranks, nodes);
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < ranks; ++rank)
    names.push_back(cat("node ", rank / (ranks / nodes)));
  return names;
}

}  // namespace ftrun
