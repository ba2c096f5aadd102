#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "program/loss_slots.h"

namespace ftrun {

/// Votes counts, for each kind of vote, the ranks that cast it.
class Votes {
 public:
  void add(Vote vote) { at(vote) += 1; }
  int64_t count_of(Vote vote) const {
    return static_cast<int64_t>(counts_[static_cast<size_t>(vote)]);
  }

  /// Returns the counts, for a sum over all ranks.
  std::span<double> counts() { return counts_; }
  std::span<const double> counts() const { return counts_; }

 private:
  double& at(Vote vote) { return counts_[static_cast<size_t>(vote)]; }

  std::array<double, kVotes> counts_{};
};

}  // namespace ftrun
