#pragma once

#include "engine/rank_groups.h"

namespace ftrun {
class Gpu;
}

namespace ftrun::fixtures {

/// Runs programs of exchanges among the ranks of the first open group, on a GPU where there is one,
/// and requires that the received data are the sent data. Collective.
void require_exchanges(const RankGroups& groups, Gpu* gpu = nullptr);

}  // namespace ftrun::fixtures
