#pragma once

#include <cstdint>
#include <string_view>

#include "machine/machine.h"

namespace ftrun {

/// NodeSpan says which groups of a kind span several nodes: none, some, or all.
enum class NodeSpan : uint8_t { kNone, kSome, kAll };

/// Computes a lower bound on the seconds of a collective (collective_seconds()), even if it is
/// divided into several: its bytes at the best measured rate, or at the link's rate, without
/// latencies. Returns 0 where no rate is known.
double collective_seconds_lower_bound(const Machine& machine, std::string_view kind, double bytes,
                                      int ranks, NodeSpan node_span);

}  // namespace ftrun
