#pragma once

#include <cstdint>
#include <string_view>

#include "machine/machine.h"

namespace ftrun {

/// Crossing says whether groups of a kind span several nodes: none of them, some, or all.
enum class Crossing : uint8_t { kNever, kSometimes, kAlways };

/// Computes the least seconds that an exchange (exchange_seconds()) takes, in any number of pieces:
/// at the best rate that was measured, or its link's, without latencies. 0 where no rate is known.
double least_exchange_seconds(const Machine& machine, std::string_view kind, double bytes,
                              int ranks, Crossing crossing);

}  // namespace ftrun
