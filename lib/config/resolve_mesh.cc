#include <string>

#include "base/error.h"
#include "base/text.h"
#include "config/resolve_steps.h"

namespace ftrun {
namespace {

std::string divisor_remedy(int64_t number) {
  return cat("use a divisor of ", number);
}

// MiCS names the ranks of a shard group; parallel.data_replicate the number of groups.
void resolve_mics(Resolving& r) {
  ParallelConfig& mesh = r.config.parallel;
  const int64_t ranks = r.config.zero.mics_shard_size;
  const std::string path = "zero_optimization.mics_shard_size";
  if (ranks <= 0) return;
  if (r.config.zero.stage != 3)
    return r.notice(path,
                    cat(path, ": has effect at stage 3 only, found stage ", r.config.zero.stage));
  if (mesh.data % ranks != 0)
    return r.error(
        path, cat("data-parallel ", mesh.data, " cannot be divided by mics_shard_size ", ranks),
        divisor_remedy(mesh.data));
  const int64_t replicas = mesh.data / ranks;
  if (r.given("parallel.data_replicate") && mesh.data_replicate != replicas)
    return r.error(
        path,
        cat("mics_shard_size ", ranks, " makes ", replicas, " replicas of data-parallel ",
            mesh.data, ", and parallel.data_replicate says ", mesh.data_replicate),
        "keep one of the two");
  if (mesh.data_replicate == replicas) return;
  mesh.data_replicate = replicas;
  r.decide("parallel.data_replicate", std::to_string(replicas),
           cat("data-parallel ", mesh.data, " / mics_shard_size ", ranks));
}

void check_hybrid(Resolving& r) {
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t stage = r.config.zero.stage;
  const std::string path = "parallel.data_replicate";
  if (mesh.data_replicate == 1) return;
  if (mesh.data % mesh.data_replicate != 0)
    return r.error(path,
                   cat("data-parallel ", mesh.data, " cannot be divided by data_replicate ",
                       mesh.data_replicate),
                   divisor_remedy(mesh.data));
  if (stage == 0)
    return r.error(path,
                   cat("data_replicate ", mesh.data_replicate,
                       " makes replicas of shards, and ZeRO stage 0 (NO_SHARD) shards nothing"),
                   "set zero_optimization.stage to 1, 2 or 3, or remove data_replicate");
  if (mesh.data == mesh.data_replicate)
    r.notice(path, cat("data_replicate ", mesh.data_replicate, " of data-parallel ", mesh.data,
                       ": each replica is one rank, so nothing is sharded"));
}

void check_secondary_shards(Resolving& r) {
  const ParallelConfig& mesh = r.config.parallel;
  const ZeroConfig& zero = r.config.zero;
  const std::string path = "zero_optimization.zero_hpz_partition_size";
  if (zero.hpz_partition_size <= 1) return;
  if (zero.stage != 3)
    return r.notice(path, cat(path, ": has effect at stage 3 only, found stage ", zero.stage));
  const int64_t shards = mesh.data / mesh.data_replicate;
  if (shards == zero.hpz_partition_size && zero.offload_param.device == OffloadDevice::kNone)
    return r.notice(path, cat("zero_hpz_partition_size ", shards, " makes one node of all ", shards,
                              " ranks of a replica: it changes nothing"));
  if (shards % zero.hpz_partition_size != 0)
    r.error(
        path,
        cat("the ", shards, shards == 1 ? " rank" : " ranks",
            " of a replica cannot be divided by zero_hpz_partition_size ", zero.hpz_partition_size),
        divisor_remedy(shards));
}

void resolve_shard_groups(Resolving& r) {
  resolve_mics(r);
  check_hybrid(r);
  check_secondary_shards(r);
}

}  // namespace

void resolve_mesh(Resolving& r) {
  ParallelConfig& mesh = r.config.parallel;
  const int64_t ulysses = r.config.sequence_parallel_size;
  if (ulysses > 1) {
    if (r.given("parallel.context") && mesh.context != ulysses)
      r.error("sequence_parallel_size", cat("sequence_parallel_size ", ulysses,
                                            " contradicts parallel.context ", mesh.context));
    mesh.context = ulysses;
  }
  const int64_t world = r.context.world_size;
  const double model_ranks = static_cast<double>(mesh.tensor) * static_cast<double>(mesh.pipeline) *
                             static_cast<double>(mesh.context);
  const std::string factors =
      cat("tensor ", mesh.tensor, " × pipeline ", mesh.pipeline, " × context ", mesh.context);
  if (model_ranks > static_cast<double>(world) || world % static_cast<int64_t>(model_ranks) != 0) {
    r.error("parallel",
            cat(world, world == 1 ? " rank" : " ranks", " cannot be divided by ", factors, " = ",
                number_text(model_ranks)),
            cat("start a multiple of ", number_text(model_ranks), " ranks"));
    mesh.data = mesh.data == 0 ? 1 : mesh.data;
    return;
  }
  const int64_t data = world / static_cast<int64_t>(model_ranks);
  if (mesh.data != 0 && mesh.data != data)
    r.error("parallel.data",
            cat("parallel.data ", mesh.data, " × ", factors, " = ",
                number_text(static_cast<double>(mesh.data) * model_ranks), " ≠ ", world,
                world == 1 ? " rank" : " ranks"),
            cat("write parallel.data: ", data, " or auto"));
  if (r.is_auto("parallel.data"))
    r.decide("parallel.data", std::to_string(data), cat(world, " ranks / (", factors, ")"));
  mesh.data = data;
  resolve_shard_groups(r);
  if ((mesh.data * mesh.context) % mesh.expert != 0)
    r.error("parallel.expert", cat("data-parallel ", mesh.data, " × context ", mesh.context,
                                   " cannot be divided by expert ", mesh.expert));
}

}  // namespace ftrun
