#include "axes/keys.h"

#include <algorithm>
#include <string>

#include "base/amount_text.h"
#include "config/resolve_state.h"

// Data-parallel ranks read different sequences. They form a mesh of replicas, each of which
// consists of shards: ZeRO divides the state among the shards of a replica.

namespace ftrun {
namespace {

std::string ranks_text(const ParallelConfig& mesh) {
  return count_text(mesh.data, "data-parallel rank");
}

std::string divisor_remedy(int64_t number) {
  return cat("use a divisor of ", number);
}

/// Resolves MiCS, whose key is the number of ranks in a shard group; parallel.data_replicate is the
/// number of groups.
void resolve_mics(ResolveState& r) {
  ParallelConfig& mesh = r.config.parallel;
  const int64_t ranks = r.config.zero.mics_shard_size;
  const std::string path = "zero_optimization.mics_shard_size";
  if (ranks <= 0) return;
  if (r.config.zero.stage != 3)
    return r.notice(
        path, cat(path, ": has an effect only at stage 3, but the stage is ", r.config.zero.stage));
  if (mesh.data % ranks != 0)
    return r.error(path, cat(ranks_text(mesh), " cannot be divided by mics_shard_size ", ranks),
                   divisor_remedy(mesh.data));
  const int64_t replicas = mesh.data / ranks;
  if (r.is_written("parallel.data_replicate") && mesh.data_replicate != replicas)
    return r.error(
        path,
        cat("mics_shard_size ", ranks, " makes ", replicas, " replicas of ", ranks_text(mesh),
            ", and parallel.data_replicate says ", mesh.data_replicate),
        "keep one of the two");
  if (mesh.data_replicate == replicas) return;
  r.decide("parallel.data_replicate", mesh.data_replicate, replicas,
           cat("data-parallel ", mesh.data, " / mics_shard_size ", ranks));
}

void check_hybrid(ResolveState& r) {
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t stage = r.config.zero.stage;
  const std::string path = "parallel.data_replicate";
  if (mesh.data_replicate == 1) return;
  if (mesh.data % mesh.data_replicate != 0)
    return r.error(
        path, cat(ranks_text(mesh), " cannot be divided by data_replicate ", mesh.data_replicate),
        divisor_remedy(mesh.data));
  if (stage == 0)
    return r.error(path,
                   cat("data_replicate ", mesh.data_replicate,
                       " makes replicas of shards, and ZeRO stage 0 (NO_SHARD) shards nothing"),
                   "set zero_optimization.stage: 1, 2 or 3, or remove data_replicate");
  if (mesh.data == mesh.data_replicate)
    r.notice(path, cat("data_replicate ", mesh.data_replicate, " of ", ranks_text(mesh),
                       ": each replica is one rank, so nothing is sharded"));
}

void check_secondary_shards(ResolveState& r) {
  const ParallelConfig& mesh = r.config.parallel;
  const ZeroConfig& zero = r.config.zero;
  const std::string path = "zero_optimization.zero_hpz_partition_size";
  if (zero.hpz_partition_size <= 1) return;
  if (zero.stage != 3)
    return r.notice(path,
                    cat(path, ": has an effect only at stage 3, but the stage is ", zero.stage));
  const int64_t shards = mesh.data / mesh.data_replicate;
  if (shards == zero.hpz_partition_size && zero.offload_param.device == OffloadDevice::kNone)
    return r.notice(path, cat("zero_hpz_partition_size ", shards, " makes one node of all ", shards,
                              " data-parallel ranks of a replica: it changes nothing"));
  if (shards % zero.hpz_partition_size != 0)
    r.error(
        path,
        cat("the ", count_text(shards, "data-parallel rank"),
            " of a replica cannot be divided by zero_hpz_partition_size ", zero.hpz_partition_size),
        divisor_remedy(shards));
}

void check_shard_groups(ResolveState& r) {
  resolve_mics(r);
  check_hybrid(r);
  check_secondary_shards(r);
}

}  // namespace

constinit const AxisKeys keys::data{.key = "parallel.data",
                                    .degree = &ParallelConfig::data,
                                    .deepspeed_key = nullptr,
                                    .deepspeed_degree = nullptr,
                                    .ranks = AxisRanks::kData,
                                    .support = AxisSupport::kEmulated,
                                    .feature = "several GPUs",
                                    .check = check_shard_groups,
                                    .suggest_degrees = nullptr};

int64_t mesh_sizes::data_replicate(const Config& config) {
  return config.zero.stage > 0 ? config.parallel.data_replicate : 1;
}

int64_t mesh_sizes::data(const Config& config) {
  return std::max<int64_t>(1, config.parallel.data) / data_replicate(config);
}

}  // namespace ftrun
