#pragma once

#include <cstdint>
#include <string_view>

#include "machine/machine.h"

namespace ftrun {

/// Crossing says whether groups of a kind are of several nodes: none of them, some, or all.
enum class Crossing : uint8_t { kNever, kSometimes, kAlways };

/// Seconds that an exchange (exchange_seconds()) takes at least, in however many pieces: at the
/// best rate that was measured, or its link's, without latencies. 0 where nothing is known of it.
double least_exchange_seconds(const Machine& machine, std::string_view kind, double bytes,
                              int ranks, Crossing crossing);

}  // namespace ftrun
