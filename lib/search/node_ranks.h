#pragma once

#include <cstdint>

#include "machine/collective_lower_bound.h"
#include "search/layout.h"

namespace ftrun {

/// Returns the number of a layout's ranks on each node.
int64_t ranks_per_node(const Layout& layout, int64_t nodes);

/// Returns whether groups of `members` ranks, whose numbers differ by `stride`, span several nodes.
NodeSpan node_span_of(int64_t members, int64_t stride, const Layout& layout, int64_t nodes);

}  // namespace ftrun
