#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/machine.h"

namespace ftrun {

/// A SlowRank takes `times` as long as others for all that it does by itself; what it does together
/// with others lasts as long as ever, from when it has come.
struct SlowRank {
  int64_t rank = 0;
  double times = 1;

  bool operator==(const SlowRank&) const = default;
};

/// Reads "rank=5:1.3". Error(kUsage) naming the option --slow: another form, a factor that is none,
/// a rank that is given twice.
std::vector<SlowRank> parse_slow_ranks(const std::vector<std::string>& texts);

/// The factor of a rank; 1 of those that are not slow.
double slowness_of(const std::vector<SlowRank>& slow, int64_t rank);

/// Error(kUsage) where one of them is no rank of a run of so many.
void require_ranks(const std::vector<SlowRank>& slow, int64_t ranks);

/// Gives the links between a machine's nodes another bandwidth ("200 Gb/s", "25 GB/s"): bytes that
/// one rank exchanges a second, each way. Error(kUsage) naming the option --network: no such rate,
/// one node, a machine without links between nodes.
void set_network(const std::string& bandwidth, int64_t nodes, Machine& machine);

/// Says what is assumed: "rank 5 takes 1.3 times as long, the network has 25 GB/s"; "" for nothing.
/// `network`: set_network() was called.
std::string what_if_text(const std::vector<SlowRank>& slow, const Machine& machine, bool network);

}  // namespace ftrun
