#include "elastic_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>

#include "admission.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster/rank_mesh.h"
#include "config/ranks.h"
#include "program/step_plan.h"

namespace ftrun {
namespace {

constexpr const char* kVisibleGpus = "CUDA_VISIBLE_DEVICES";

std::vector<std::string> overrides_for(const Config& config, const BatchShare& share) {
  std::vector<std::string> all{cat("parallel.data=", share.data_ranks)};
  if (config.elasticity.enabled) return all;  // chooses the same share from the number of ranks
  all.push_back(cat("train_batch_size=", config.train_batch_size));
  all.push_back(cat("train_micro_batch_size_per_gpu=", share.micro_batch));
  all.push_back(cat("gradient_accumulation_steps=", share.accumulation));
  return all;
}

/// The number of the data-parallel replica that a rank is part of.
int replica_of(const ParallelConfig& mesh, int rank) {
  const auto size = [](int64_t degree) { return static_cast<int>(degree); };
  const RankMesh ranks({.pp = size(mesh.pipeline), .dp_replicate = 1, .dp_shard = size(mesh.data), .cp = size(mesh.context),
                        .tp = size(mesh.tensor)});
  return ranks.coordinate(rank).dp_shard;
}

std::string times_text(int times) { return times == 2 ? "twice" : cat(times, " times"); }

std::string data_ranks_text(int64_t data) { return cat(data, " data", data == 1 ? " rank" : " ranks"); }

}  // namespace

ElasticRanks::ElasticRanks(const ConfigSource& source, const LaunchEnvironment& launch, const LoadedConfig& loaded)
    : source_(source), launch_(launch), loaded_(loaded), first_numbers_(static_cast<size_t>(loaded.ranks)) {
  std::iota(first_numbers_.begin(), first_numbers_.end(), 0);
}

void ElasticRanks::leave(int rank, int times) {
  const std::string failed = cat("rank ", rank, " failed ", times_text(times), " without a new checkpoint; ");
  const Config before = loaded_.config;
  const std::vector<BatchShare> shares = smaller_shares(before);
  std::string why_not;
  if (shares.empty() && (before.elastic.min_ranks > 0 || before.elasticity.enabled))
    why_not = cat("no smaller number of data ranks that ", before.elasticity.enabled ? "elasticity" : "elastic.min_ranks",
                  " allows divides train_batch_size ", before.train_batch_size);
  for (const BatchShare& share : shares) {
    if (!try_share(share, why_not)) continue;
    drop_replicas(rank, share.data_ranks);
    log_warning(cat(failed, "going on with ", data_ranks_text(share.data_ranks), " of ", before.parallel.data,
                    ", global batch unchanged: train_batch_size ", before.train_batch_size, " = micro ", share.micro_batch,
                    " × accumulation ", share.accumulation, " × data-parallel ", share.data_ranks));
    return;
  }
  if (!why_not.empty()) log_warning(cat(failed, "fewer ranks cannot go on: ", why_not));
}

/// Whether the ranks of the share can train what all of them did; then they are what is left.
bool ElasticRanks::try_share(const BatchShare& share, std::string& why_not) {
  ConfigSource source = source_;
  const std::vector<std::string> overrides = overrides_for(loaded_.config, share);
  source.overrides.insert(source.overrides.end(), overrides.begin(), overrides.end());
  source.nproc = share.data_ranks * model_ranks(loaded_.config.parallel);
  try {
    LoadedConfig fewer = load_source(source, launch_, true);
    // As of version 0.2 of elasticity, which gives some numbers of ranks another batch.
    if (fewer.config.train_batch_size != loaded_.config.train_batch_size) return false;
    const StepPlan plan = plan_steps(fewer.config, *fewer.model, 0);
    const std::string tight = admit_memory(fewer, plan, fewer.ranks, read_memory_limit());
    if (!tight.empty()) log_warning(tight);
    loaded_ = std::move(fewer);
    overrides_ = overrides;
    return true;
  } catch (const Error& error) {
    if (why_not.empty()) why_not = first_line(error.what());
    return false;
  }
}

/// The failing rank's replica is the first to leave, then those with the highest numbers.
void ElasticRanks::drop_replicas(int rank, int64_t data_ranks) {
  ParallelConfig mesh = loaded_.config.parallel;
  mesh.data = static_cast<int64_t>(first_numbers_.size()) / model_ranks(mesh);
  std::set<int> leaving{replica_of(mesh, rank)};
  for (int replica = static_cast<int>(mesh.data) - 1; std::ssize(leaving) < mesh.data - data_ranks; --replica)
    leaving.insert(replica);
  std::vector<int> left;
  for (int number = 0; number < static_cast<int>(first_numbers_.size()); ++number)
    if (!leaving.contains(replica_of(mesh, number))) left.push_back(first_numbers_[static_cast<size_t>(number)]);
  first_numbers_ = std::move(left);
}

void ElasticRanks::add_to(Restart& restart) const {
  if (overrides_.empty()) return;
  restart.local_ranks = static_cast<int>(first_numbers_.size());
  for (const std::string& override : overrides_) restart.arguments.insert(restart.arguments.end(), {"--set", override});
  if (loaded_.config.device != DeviceKind::kCuda) return;
  // A rank's GPU is the one of its number: those that are left keep theirs.
  const char* visible = std::getenv(kVisibleGpus);
  const std::vector<std::string> shown = visible == nullptr ? std::vector<std::string>{} : split(visible, ',');
  std::vector<std::string> kept;
  for (const int number : first_numbers_) {
    if (visible != nullptr && number >= std::ssize(shown)) return;
    kept.push_back(visible == nullptr ? std::to_string(number) : shown[static_cast<size_t>(number)]);
  }
  restart.environment.push_back(cat(kVisibleGpus, "=", join(kept, ",")));
}

}  // namespace ftrun
