#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sim/world.h"

namespace ftrun {

/// Makes a smaller world in which one rank represents all ranks that are alike, and one group
/// represents all groups that are alike. Ranks are alike if they have equal schedules
/// (`schedule_of[p]` is the number of the schedule of world.programs[p]) and their groups have
/// members that are alike. This is the coarsest equitable partition of ranks and groups, which
/// color refinement finds.
///
/// The folded world finds the same deadlocks: the order in which ranks advance does not change
/// which steps are done in the end. If all ranks that can advance do so at the same time, ranks
/// that are alike always stay equally far. So all ranks of the world reach the end exactly if all
/// ranks of the folded world do.
///
/// Returns nothing if one rank cannot represent the ranks that are like it: two such ranks are
/// members of one group that has different indices in their lists of groups (for example in a ring
/// of equal ranks that each send to the next rank).
std::optional<World> fold_world(const World& world, std::span<const int32_t> schedule_of);

}  // namespace ftrun
