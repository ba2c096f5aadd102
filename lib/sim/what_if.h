#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/machine.h"

namespace ftrun {

/// SlowRank is a rank that takes `factor` times as long as other ranks for its own work.
/// Communication takes as long as usual once the rank has reached it.
struct SlowRank {
  int64_t rank = 0;
  double factor = 1;

  bool operator==(const SlowRank&) const = default;
};

/// Parses texts like "rank=5:1.3". Throws Error(kUsage), which names the option --slow, for another
/// form, an invalid factor, or a rank that is given twice.
std::vector<SlowRank> parse_slow_ranks(const std::vector<std::string>& texts);

/// Returns the factor of a rank; 1 for ranks that are not slow.
double slow_factor_of(const std::vector<SlowRank>& slow_ranks, int64_t rank);

/// Throws Error(kUsage) if a slow rank is not one of the run's `ranks` ranks.
void check_slow_ranks_exist(const std::vector<SlowRank>& slow_ranks, int64_t ranks);

/// Replaces the bandwidth of the links between a machine's nodes ("200 Gb/s", "25 GB/s"): the bytes
/// that one rank can send and receive per second. Throws Error(kUsage), which names the
/// option --network, for an invalid rate, for a single node, and for a machine without links
/// between nodes.
void set_network_bandwidth(const std::string& bandwidth, int64_t nodes, Machine& machine);

/// Describes the assumptions of a prediction: "rank 5 takes 1.3 times as long, the network has 25
/// GB/s"; "" if there are none. `has_network` says whether set_network_bandwidth() was called.
std::string what_if_text(const std::vector<SlowRank>& slow_ranks, const Machine& machine,
                         bool has_network);

}  // namespace ftrun
