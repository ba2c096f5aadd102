#pragma once

#include "cluster/rank_mesh.h"
#include "config/config.h"
#include "program/state_options.h"

namespace ftrun {

/// Returns the ranks of a resolved config. Along dp_shard and cp lie those that share one copy of
/// the state, along dp_replicate copies of it, along cp those that share each row of tokens, along
/// tp those that share each layer, along pp the stages of a pipeline.
RankMesh rank_mesh(const Config& config);

/// Returns options that say only the place of a rank along each axis of rank_mesh().
StateOptions axis_places(const Config& config, int rank);

/// Return the ranks of such options as a mesh, and the rank that has them.
RankMesh state_mesh(const StateOptions& state);
int state_rank(const StateOptions& state);

}  // namespace ftrun
