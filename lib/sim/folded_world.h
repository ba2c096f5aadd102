#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sim/world.h"

namespace ftrun {

/// A world in which one rank stands for all that are alike, and one group for all of theirs:
/// ranks on equal courses (`course_of[p]` numbers that of world.programs[p]), whose groups have
/// members that are alike too. It is the coarsest equitable partition of ranks and groups,
/// found by colour refinement.
///
/// Ranks have no choice: whatever the order in which they go on, the same steps are done in the
/// end. If all go on that can, at once and again and again, those that are alike are always equally
/// far. So all ranks come to their ends where those of the folded world do, and only there.
///
/// Nothing where one rank cannot stand for its like: where two of them meet in one
/// group by different entries of their lists of groups (a ring of equal ranks, each of
/// which sends to the next).
std::optional<World> folded_world(const World& world, std::span<const int32_t> course_of);

}  // namespace ftrun
