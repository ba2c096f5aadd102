#pragma once

#include "cluster/rank_mesh.h"
#include "config/config.h"
#include "program/state_options.h"

namespace ftrun {

/// Returns the ranks of a resolved config. Along dp_shard and cp lie those that share one copy of
/// the state, along dp_replicate copies of it, along cp those that share each row of tokens, along
/// tp those that share each layer, along pp the stages of a pipeline.
RankMesh rank_mesh(const Config& config);

/// Makes StateOptions whose places are those of `rank`; all else has its default.
StateOptions place_options(const Config& config, int rank);

/// Return the ranks of such options as a mesh, and the global number of the rank that has them.
RankMesh state_mesh(const StateOptions& state);
int global_rank(const StateOptions& state);

}  // namespace ftrun
