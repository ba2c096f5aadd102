#pragma once

#include <array>
#include <vector>

#include "graph/storage.h"
#include "program/program.h"

namespace ftrun {

/// The latest instruction of every lane that is done, -1 for none.
using LaneClock = std::array<InstrId, kMostLanes>;
inline constexpr auto kComputeLane = static_cast<size_t>(Lane::kCompute);

/// Computes for each instruction what is known to be done when it starts, by the order of its lane
/// and the waits (a vector clock, Mattern 1989). Waits that do not point backwards are left out.
std::vector<LaneClock> known_done(const Program& program);

/// Computes when each buffer is in use, in positions of the instruction list. An instruction of
/// another lane than compute may run as soon as what it waits for is done and until compute knows
/// that it is done, so its buffers live all that time. A result lives to the end.
std::vector<StorageRequest> buffer_lifetimes(const Program& program);

}  // namespace ftrun
