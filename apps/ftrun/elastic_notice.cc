#include "elastic_notice.h"

#include "base/error.h"
#include "config/elastic.h"
#include "config/ranks.h"
#include "inputs/config_problem.h"

namespace ftrun {
namespace {

/// Returns the reason why no rank of the run can be removed, regardless of the config; "" if ranks
/// can be removed.
std::string no_removal_reason(const LoadedConfig& loaded, const LaunchEnvironment& launch,
                              std::optional<int> restarts) {
  if (launch.is_rank()) return no_restart_reason(launch.kind);
  if (launch.nodes > 1)
    return cat("ftrun does not restart ranks on ", launch.nodes, " nodes; their launcher has to");
  if (restarts && *restarts == 0) return "--restarts 0 forbids restarts";
  if (loaded.config.parallel.data == 1) return "there must be at least 1 data-parallel rank";
  return "";
}

}  // namespace

std::string elastic_notice(const LoadedConfig& loaded, const LaunchEnvironment& launch,
                           std::optional<int> restarts) {
  const Config& config = loaded.config;
  const std::string no_removal = no_removal_reason(loaded, launch, restarts);
  if (const int64_t min_ranks = config.elastic.min_ranks; min_ranks > 0) {
    // If min_ranks is larger than the number of ranks, a notice of the config reports that already.
    if (no_removal.empty() || min_ranks > loaded.ranks) return "";
    return to_text(
        notice_about(config.origins, "elastic.min_ranks",
                     cat("elastic.min_ranks ", min_ranks, " has no effect: ", no_removal)));
  }
  const std::vector<BatchShare> shares = list_shares_of_fewer_ranks(config);
  if (shares.empty() || !no_removal.empty()) return "";
  return to_text(
      notice_about(config.origins, "elasticity.enabled",
                   cat("ranks that keep failing may be removed, down to ",
                       shares.back().data_ranks * model_ranks(config.parallel), " of ",
                       loaded.ranks, ": elasticity.min_gpus is ", config.elasticity.min_gpus)));
}

}  // namespace ftrun
