#include "nodes_option.h"

#include <CLI/CLI.hpp>

#include "axes/tensor/node_traffic.h"
#include "config/ranks.h"
#include "config/resolve.h"

namespace ftrun {

void add_nodes_option(CLI::App& command, int64_t& nodes) {
  command
      .add_option("--nodes", nodes,
                  "number of nodes; ranks are placed in order, equally many per node. Warns if "
                  "tensor-parallel ranks are on different nodes")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, kMaxRanks));
}

std::string node_traffic_warning_of(const Config& config, const RankClassPlans& class_plans,
                                    int64_t nodes) {
  const std::vector<std::string> names = nodes_in_order(class_plans.classes().ranks(), nodes);
  const auto bytes_of = [&](int rank) {
    return tensor_group_bytes(class_plans.plan(class_plans.classes().class_of(rank)).train.program);
  };
  return tensor_node_traffic_warning(tensor_node_traffic(rank_mesh(config), names, bytes_of),
                                     names);
}

std::string node_traffic_warning_of(const LoadedConfig& loaded, const StepPlan& plan,
                                    int64_t nodes) {
  if (nodes == 1) return "";
  return node_traffic_warning_of(loaded.config,
                                 RankClassPlans(loaded.config, *loaded.model, 0, plan), nodes);
}

}  // namespace ftrun
