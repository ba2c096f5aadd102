#include "axes/group_rules.h"

#include <algorithm>
#include <set>
#include <utility>

namespace ftrun {
namespace {

/// Returns the pairs of stages that send to each other, the lower stage first.
std::set<std::pair<int, int>> linked_stages(const PipelineLayout& pipeline) {
  std::set<std::pair<int, int>> pairs;
  for (int model_chunk = 0; model_chunk + 1 < pipeline.model_chunks(); ++model_chunk) {
    const auto [low, high] =
        std::minmax({pipeline.stage_of(model_chunk), pipeline.stage_of(model_chunk + 1)});
    if (low != high) pairs.emplace(low, high);
  }
  return pairs;
}

GroupRule link_group_rule(const RankMesh& mesh, int from, int to) {
  const auto group_of_rank = [&mesh, from, to](int rank) {
    const int stage = mesh.coordinates_of(rank).pipeline;
    if (stage != from && stage != to) return RankGroup{};
    return mesh.make_link(mesh.rank_moved_to(rank, MeshAxis::kPipeline, from),
                          mesh.rank_moved_to(rank, MeshAxis::kPipeline, to), MeshAxis::kPipeline);
  };
  return {[from, to](GroupCollection& groups) -> GroupId& {
            return groups.links[{from, to}];
          },
          group_of_rank, true};
}

}  // namespace

std::vector<GroupRule> stage_group_rules(const RankMesh& mesh, const StateOptions& state) {
  std::vector<GroupRule> rules;
  if (state.ties_first_and_last_stage)
    rules.push_back(
        {[](GroupCollection& groups) -> GroupId& { return groups.first_and_last_stage; },
         [&](int rank) {
           const int stage = mesh.coordinates_of(rank).pipeline;
           const bool end = stage == 0 || stage + 1 == mesh.size(MeshAxis::kPipeline);
           return end ? mesh.group_of_ends(rank, MeshAxis::kPipeline) : RankGroup{};
         }});
  for (const auto& [low, high] : linked_stages(state.pipeline)) {
    rules.push_back(link_group_rule(mesh, low, high));
    rules.push_back(link_group_rule(mesh, high, low));
  }
  return rules;
}

}  // namespace ftrun
