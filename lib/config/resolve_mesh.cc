#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "config/ranks.h"
#include "config/resolve_steps.h"

namespace ftrun {
namespace {

std::string divisor_remedy(int64_t number) {
  return cat("use a divisor of ", number);
}

// Resolves MiCS, which gives the ranks of a shard group; parallel.data_replicate is the number of
// groups.
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
                       ": each replica is one data-parallel rank, so nothing is sharded"));
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
                              " data-parallel ranks of a replica: it changes nothing"));
  if (shards % zero.hpz_partition_size != 0)
    r.error(
        path,
        cat("the ", shards, " data-parallel ", shards == 1 ? "rank" : "ranks",
            " of a replica cannot be divided by zero_hpz_partition_size ", zero.hpz_partition_size),
        divisor_remedy(shards));
}

void resolve_shard_groups(Resolving& r) {
  resolve_mics(r);
  check_hybrid(r);
  check_secondary_shards(r);
}

// Joins two names of one degree: `second` says nothing at 0 and 1.
void join_names(Resolving& r, const std::string& first, int64_t& degree, const std::string& second,
                int64_t other) {
  if (other <= 1) return;
  if (r.given(first) && degree != other)
    r.error(second, cat(second, " ", other, " contradicts ", first, " ", degree),
            "keep one of the two");
  else
    degree = other;
}

// Suggests the multiples of `unit` around a number of ranks: "start 2 or 4 ranks".
std::string nearest_worlds(int64_t world, int64_t unit) {
  const int64_t below = world / unit * unit;
  return below == 0 ? cat("start ", unit, " ranks or a multiple of them")
                    : cat("start ", below, " or ", below + unit, " ranks");
}

constexpr size_t kMostListed = 8;
constexpr int64_t kLargestListed = 4096;

// Suggests degrees that divide the quotient of the ranks and the other degrees: ", or write
// parallel.tensor: 1, 3 or 9".
std::string tensor_degrees(const Resolving& r) {
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t world = r.context.world_size;
  const int64_t others = model_ranks(mesh) / mesh.tensor;
  if (mesh.tensor == 1 || world % others != 0) return "";
  std::vector<std::string> fitting;
  const int64_t rest = world / others;
  const int64_t most = std::min(rest, kLargestListed);
  for (int64_t degree = 1; degree <= most && fitting.size() < kMostListed; ++degree)
    if (rest % degree == 0) fitting.push_back(std::to_string(degree));
  const std::string last = fitting.back();
  fitting.pop_back();
  return cat(", or write ",
             r.given("parallel.tensor") ? "parallel.tensor: " : "tensor_parallel.autotp_size: ",
             join(fitting, ", "), fitting.empty() ? "" : " or ", last);
}

std::string ranks_text(int64_t ranks) {
  return cat(ranks, ranks == 1 ? " rank" : " ranks");
}

// Describes where the degrees are written.
std::string place_of_degrees(const Resolving& r) {
  if (r.config.origins.find("parallel") != nullptr) return "parallel";
  if (r.config.tensor_parallel.autotp_size > 1) return "tensor_parallel.autotp_size";
  return r.config.pipeline.stages > 1 ? "pipeline.stages" : "sequence_parallel_size";
}

// Divides the ranks by the model-parallel degrees. Reports ranks that cannot be divided and returns
// false.
bool divide_world(Resolving& r, int64_t inner) {
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t world = r.context.world_size;
  if (inner != 0 && inner <= world && world % inner == 0) return true;
  const std::string degrees = model_degrees(mesh);
  if (inner == 0)
    r.error(place_of_degrees(r), degrees + " is too large");
  else
    r.error(place_of_degrees(r),
            cat(ranks_text(world), " cannot be divided by ", degrees,
                degrees.find("×") == std::string::npos ? "" : cat(" = ", inner)),
            nearest_worlds(world, inner) + tensor_degrees(r));
  return false;
}

void compare_data(Resolving& r, int64_t data, int64_t inner) {
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t world = r.context.world_size;
  const std::string degrees = model_degrees(mesh);
  if (mesh.data != 0 && mesh.data != data) {
    const double product = static_cast<double>(mesh.data) * static_cast<double>(inner);
    r.error("parallel.data",
            cat("parallel.data ", mesh.data,
                degrees.empty() ? "" : cat(" × ", degrees, " = ", number_text(product)), " ≠ ",
                ranks_text(world)),
            cat("write parallel.data: ", data, " or auto"));
  }
  if (r.is_auto("parallel.data"))
    r.decide("parallel.data", std::to_string(data),
             cat(ranks_text(world), degrees.empty() ? "" : cat(" / (", degrees, ")")));
}

}  // namespace

void resolve_mesh(Resolving& r) {
  ParallelConfig& mesh = r.config.parallel;
  join_names(r, "parallel.tensor", mesh.tensor, "tensor_parallel.autotp_size",
             r.config.tensor_parallel.autotp_size);
  join_names(r, "parallel.pipeline", mesh.pipeline, "pipeline.stages", r.config.pipeline.stages);
  if (r.is_auto("pipeline.stages"))
    r.decide("pipeline.stages", std::to_string(mesh.pipeline), "parallel.pipeline");
  join_names(r, "parallel.context", mesh.context, "sequence_parallel_size",
             r.config.sequence_parallel_size);
  const int64_t inner = model_ranks(mesh);
  if (!divide_world(r, inner)) {
    mesh.data = mesh.data == 0 ? 1 : mesh.data;
    return;
  }
  const int64_t data = r.context.world_size / inner;
  compare_data(r, data, inner);
  mesh.data = data;
  resolve_shard_groups(r);
  if ((mesh.data * mesh.context) % mesh.expert != 0)
    r.error("parallel.expert", cat("data-parallel ", mesh.data, " × context ", mesh.context,
                                   " cannot be divided by expert ", mesh.expert));
}

}  // namespace ftrun
