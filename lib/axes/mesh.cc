#include "axes/mesh.h"

#include "axes/data/secondary_shards.h"
#include "axes/keys.h"

namespace ftrun {

RankMesh rank_mesh(const Config& config) {
  return RankMesh({
#define FTRUN_MESH_AXIS(kind, field, name, cuts) \
  .field = static_cast<int>(mesh_sizes::field(config)),
#include "axes/axes.inc"
  });
}

StateOptions place_options(const Config& config, int rank) {
  const RankMesh mesh = rank_mesh(config);
  const MeshPoint place = mesh.coordinate(rank);
  StateOptions state;
  state.dp_shard = {mesh.sizes().dp_shard, place.dp_shard};
  state.replicas = mesh.sizes().dp_replicate;
  state.replica = place.dp_replicate;
  state.context = {mesh.sizes().cp, place.cp};
  state.secondary_shards = secondary_shards(config);
  state.tensor = {mesh.sizes().tp, place.tp};
  state.pipeline_stage = place.pp;
  return state;
}

RankMesh state_mesh(const StateOptions& state) {
  return RankMesh({.pp = state.pipeline.stages(),
                   .dp_replicate = state.replicas,
                   .dp_shard = state.dp_shard.count,
                   .cp = state.context.count,
                   .tp = state.tensor.count});
}

int global_rank(const StateOptions& state) {
  return state_mesh(state).rank_at({.pp = state.pipeline_stage,
                                    .dp_replicate = state.replica,
                                    .dp_shard = state.dp_shard.index,
                                    .cp = state.context.index,
                                    .tp = state.tensor.index});
}

}  // namespace ftrun
