#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/machine.h"

namespace ftrun {

/// SlowRank takes `factor` times as long as others for its own work; communication takes no longer
/// than usual once the rank has reached it.
struct SlowRank {
  int64_t rank = 0;
  double factor = 1;

  bool operator==(const SlowRank&) const = default;
};

/// Reads "rank=5:1.3". Refuses another form, an invalid factor and a rank that is given twice, with
/// an Error(kUsage) that names the option --slow.
std::vector<SlowRank> parse_slow_ranks(const std::vector<std::string>& texts);

/// Returns the factor of a rank; 1 for ranks that are not slow.
double slowness_of(const std::vector<SlowRank>& slow, int64_t rank);

/// Refuses slow ranks that a run of `ranks` ranks does not have, with Error(kUsage).
void require_ranks(const std::vector<SlowRank>& slow, int64_t ranks);

/// Sets another bandwidth for the links between a machine's nodes ("200 Gb/s", "25 GB/s"): bytes
/// that one rank exchanges a second, each way. Refuses an invalid rate, a single node and a machine
/// without links between nodes, with an Error(kUsage) that names the option --network.
void set_network(const std::string& bandwidth, int64_t nodes, Machine& machine);

/// Writes what is assumed: "rank 5 takes 1.3 times as long, the network has 25 GB/s"; "" for
/// nothing. `network`: set_network() was called.
std::string what_if_text(const std::vector<SlowRank>& slow, const Machine& machine, bool network);

}  // namespace ftrun
