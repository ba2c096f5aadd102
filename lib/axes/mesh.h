#pragma once

#include "cluster/rank_mesh.h"
#include "config/config.h"
#include "program/state_options.h"

namespace ftrun {

/// Returns the mesh of the ranks of a resolved config. Ranks along data and context share one copy
/// of the state; ranks along data_replicate hold copies of it; ranks along context divide the
/// tokens of each sequence; ranks along tensor share each layer; ranks along pipeline are the
/// stages of a pipeline.
RankMesh rank_mesh(const Config& config);

/// Makes StateOptions with the places of `rank`; all other options have their defaults.
StateOptions state_options_of_rank(const Config& config, int rank);

/// Return the mesh that the options describe, and the global number of the rank to which they
/// belong.
RankMesh state_mesh(const StateOptions& state);
int global_rank(const StateOptions& state);

}  // namespace ftrun
