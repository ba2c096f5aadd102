#include "axes/mesh.h"

#include "axes/data/secondary_shards.h"
#include "axes/keys.h"

namespace ftrun {

RankMesh rank_mesh(const Config& config) {
  return RankMesh({
#define FTRUN_MESH_AXIS(kind, name, divided) .name = static_cast<int>(mesh_sizes::name(config)),
#include "axes/axes.inc"
  });
}

StateOptions state_options_of_rank(const Config& config, int rank) {
  const RankMesh mesh = rank_mesh(config);
  const PerAxis place = mesh.coordinates_of(rank);
  StateOptions state;
  state.data = {mesh.sizes().data, place.data};
  state.replicas = mesh.sizes().data_replicate;
  state.replica = place.data_replicate;
  state.context = {mesh.sizes().context, place.context};
  state.secondary_shards = secondary_shards(config);
  state.tensor = {mesh.sizes().tensor, place.tensor};
  state.pipeline_stage = place.pipeline;
  return state;
}

RankMesh state_mesh(const StateOptions& state) {
  return RankMesh({.pipeline = state.pipeline.stages(),
                   .data_replicate = state.replicas,
                   .data = state.data.count,
                   .context = state.context.count,
                   .tensor = state.tensor.count});
}

int global_rank(const StateOptions& state) {
  return state_mesh(state).rank_at({.pipeline = state.pipeline_stage,
                                    .data_replicate = state.replica,
                                    .data = state.data.index,
                                    .context = state.context.index,
                                    .tensor = state.tensor.index});
}

}  // namespace ftrun
