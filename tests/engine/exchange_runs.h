#pragma once

#include "engine/rank_communicators.h"

namespace ftrun {
class Gpu;
}

namespace ftrun::testing {

/// Runs exchange programs among the ranks of the first open group, on `gpu` if it is given, and
/// requires that the received data equal the sent data. Collective.
void require_exchanges(const RankCommunicators& communicators, Gpu* gpu = nullptr);

}  // namespace ftrun::testing
