#include "elastic_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>
#include <utility>

#include "axes/mesh.h"
#include "base/amount_text.h"
#include "base/as_error.h"
#include "base/error.h"
#include "base/launch_variables.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster/rank_mesh.h"
#include "config/ranks.h"
#include "program/step_plan.h"
#include "resource_checks.h"

namespace ftrun {
namespace {

constexpr const char* kVisibleGpus = "CUDA_VISIBLE_DEVICES";

std::vector<std::string> list_overrides(const Config& config, const BatchShare& share) {
  std::vector<std::string> overrides{cat("parallel.data=", share.data_ranks)};
  if (config.elasticity.enabled) return overrides;  // it chooses the same share itself
  overrides.push_back(cat("train_batch_size=", config.train_batch_size));
  overrides.push_back(cat("train_micro_batch_size_per_gpu=", share.micro_batch));
  overrides.push_back(cat("gradient_accumulation_steps=", share.accumulation));
  return overrides;
}

/// Returns the number of the data-parallel replica to which a rank of `mesh` belongs.
int replica_of(const RankMesh& mesh, int rank) {
  return mesh.place_on(rank, axes_that_divide(DividedParts::kSequences));
}

std::string times_text(int times) {
  return times == 2 ? "twice" : cat(times, " times");
}

}  // namespace

ElasticRanks::ElasticRanks(const ConfigSource& source, const LaunchEnvironment& launch,
                           const LoadedConfig& loaded)
    : source_(source),
      launch_(launch),
      loaded_(loaded),
      first_numbers_(static_cast<size_t>(loaded.ranks)),
      first_count_(static_cast<int>(loaded.ranks)) {
  std::iota(first_numbers_.begin(), first_numbers_.end(), 0);
}

void ElasticRanks::remove_failed_replica(const FailureSummary& failure, int consecutive_failures) {
  const Config old_config = loaded_.config;
  if (min_remaining_ranks(old_config) == 0) return;
  const std::string failure_text =
      cat("rank ", failure.rank, " failed ", times_text(consecutive_failures),
          " without a new checkpoint");
  std::string why_not = no_removal_reason();
  for (const BatchShare& share : list_shares_of_fewer_ranks(old_config)) {
    if (!try_batch_share(share, why_not)) continue;
    remove_replicas(failure.rank, share.data_ranks);
    removed_reason_ = cat(failure_text, ": ", first_line(failure.reason));
    log_warning(cat(failure_text, "; continuing with ",
                    count_text(share.data_ranks, "data-parallel rank"), " of ",
                    old_config.parallel.data, ", global batch unchanged: train_batch_size ",
                    old_config.train_batch_size, " = micro ", share.micro_batch, " × accumulation ",
                    share.accumulation, " × data-parallel ", share.data_ranks));
    return;
  }
  if (std::exchange(reported_, why_not) != why_not)
    log_warning(cat(failure_text, "; all ranks stay: ", why_not));
}

/// Returns the reason why the config allows no rank to be removed; "" if it allows that.
std::string ElasticRanks::no_removal_reason() const {
  const Config& config = loaded_.config;
  if (!list_shares_of_fewer_ranks(config).empty()) return "";
  const bool is_own_limit = config.elastic.min_ranks == min_remaining_ranks(config);
  const std::string limit = cat(is_own_limit ? "elastic.min_ranks" : "elasticity.min_gpus", " is ",
                                min_remaining_ranks(config));
  if (config.parallel.data == 1) return "there must be at least 1 data-parallel rank";
  if ((config.parallel.data - 1) * model_ranks(config.parallel) < min_remaining_ranks(config))
    return limit;
  return cat(
      limit,
      ", and no smaller number of data-parallel ranks down to it can share train_batch_size ",
      config.train_batch_size);
}

/// Tries whether fewer ranks can continue the run, dividing the batch by `share`. If so, makes the
/// config for them the current one and returns true; otherwise sets `why_not`.
bool ElasticRanks::try_batch_share(const BatchShare& share, std::string& why_not) {
  ConfigSource source = source_;
  const std::vector<std::string> overrides = list_overrides(loaded_.config, share);
  source.overrides.insert(source.overrides.end(), overrides.begin(), overrides.end());
  source.nproc = share.data_ranks * model_ranks(loaded_.config.parallel);
  try {
    LoadedConfig remaining = load_source(source, launch_);
    // Version 0.2 of elasticity chooses another batch for some numbers of ranks.
    if (remaining.config.train_batch_size != loaded_.config.train_batch_size)
      throw Error(ExitCode::kUsage,
                  cat("elasticity gives ", count_text(share.data_ranks, "data-parallel rank"),
                      " train_batch_size ", remaining.config.train_batch_size, ", not ",
                      loaded_.config.train_batch_size));
    const StepPlan plan = plan_steps(remaining.config, *remaining.model, 0);
    const std::string warning = check_memory(remaining, plan, remaining.ranks, read_memory_limit());
    if (!warning.empty()) log_warning(warning);
    loaded_ = std::move(remaining);
    overrides_ = overrides;
    return true;
  } catch (const std::exception& exception) {
    if (why_not.empty()) why_not = first_line(as_error(exception).what());
    return false;
  }
}

/// Removes replicas until `data_ranks` remain: first the replica of the failing rank, then those
/// with the highest numbers.
void ElasticRanks::remove_replicas(int rank, int64_t data_ranks) {
  Config config = loaded_.config;
  config.parallel.data = std::ssize(first_numbers_) / model_ranks(config.parallel);
  // The number of copies of the state does not matter here, and it may not divide the remaining
  // ranks.
  config.parallel.data_replicate = 1;
  const RankMesh mesh = rank_mesh(config);
  const int replicas = mesh.data_parallel_size();
  std::set<int> removed_replicas{replica_of(mesh, rank)};
  for (int replica = replicas - 1; std::ssize(removed_replicas) < replicas - data_ranks; --replica)
    removed_replicas.insert(replica);
  std::vector<int> remaining;
  for (int number = 0; number < static_cast<int>(first_numbers_.size()); ++number)
    if (!removed_replicas.contains(replica_of(mesh, number)))
      remaining.push_back(first_numbers_[static_cast<size_t>(number)]);
  first_numbers_ = std::move(remaining);
}

RanksOfStart ElasticRanks::ranks() const {
  RanksOfStart ranks{.count = std::ssize(first_numbers_), .removed_reason = removed_reason_};
  for (int number = 0; number < first_count_; ++number)
    if (std::find(first_numbers_.begin(), first_numbers_.end(), number) == first_numbers_.end())
      ranks.removed_ranks.push_back(number);
  return ranks;
}

void ElasticRanks::add_settings_to(RestartSettings& restart) const {
  if (overrides_.empty()) return;
  restart.environment.push_back(
      cat(launch_variables::kRemovedRanks, "=", join_numbers(ranks().removed_ranks, ",")));
  restart.environment.push_back(cat(launch_variables::kRemovedReason, "=", removed_reason_));
  restart.local_ranks = static_cast<int>(first_numbers_.size());
  for (const std::string& override : overrides_)
    restart.arguments.insert(restart.arguments.end(), {"--set", override});
  if (loaded_.config.device != DeviceKind::kCuda) return;
  // The GPU of a rank is the one with the rank's first number, so the remaining ranks keep their
  // GPUs.
  const char* visible = std::getenv(kVisibleGpus);
  const std::vector<std::string> shown =
      visible == nullptr ? std::vector<std::string>{} : split(visible, ',');
  std::vector<std::string> remaining_gpus;
  for (const int number : first_numbers_) {
    if (visible != nullptr && number >= std::ssize(shown)) return;
    remaining_gpus.push_back(visible == nullptr ? std::to_string(number)
                                                : shown[static_cast<size_t>(number)]);
  }
  restart.environment.push_back(cat(kVisibleGpus, "=", join(remaining_gpus, ",")));
}

RanksOfStart ranks_of_restart(const LaunchEnvironment& launch) {
  const char* removed = std::getenv(launch_variables::kRemovedRanks);
  const char* reason = std::getenv(launch_variables::kRemovedReason);
  RanksOfStart ranks{.count = launch.world_size};
  // If a launcher has passed on the environment, the variables may belong to another run.
  if (launch.kind != LaunchKind::kSupervised || launch.restarts == 0 || removed == nullptr ||
      reason == nullptr)
    return ranks;
  for (const std::string& number : split(removed, ','))
    ranks.removed_ranks.push_back(std::atoi(number.c_str()));
  ranks.removed_reason = reason;
  return ranks;
}

}  // namespace ftrun
