#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sim/world.h"

namespace ftrun {

/// Makes a world in which one rank stands for all that are alike, and one group for all of theirs:
/// ranks on equal schedules (`schedule_of[p]` numbers that of world.programs[p]), whose groups have
/// members that are also alike. It is the coarsest equitable partition of ranks and groups, found
/// by colour refinement.
///
/// Ranks have no choice: in whatever order they go on, the same steps are done in the end. If all
/// that can go on do so at once, again and again, ranks that are alike are always equally far. So
/// all ranks reach their ends exactly where those of the folded world do.
///
/// Returns nothing where one rank cannot stand for others that are alike: where two of them meet in
/// one group by different entries of their lists of groups (a ring of equal ranks, each of which
/// sends to the next).
std::optional<World> folded_world(const World& world, std::span<const int32_t> schedule_of);

}  // namespace ftrun
