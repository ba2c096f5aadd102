#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "program/loss_slots.h"

namespace ftrun {

/// RankFlags counts, for each flag, the ranks that set it.
class RankFlags {
 public:
  void add(RankFlag flag) { at(flag) += 1; }
  int64_t count_of(RankFlag flag) const {
    return static_cast<int64_t>(counts_[static_cast<size_t>(flag)]);
  }

  /// Returns the counts, for a sum over all ranks.
  std::span<double> counts() { return counts_; }
  std::span<const double> counts() const { return counts_; }

 private:
  double& at(RankFlag flag) { return counts_[static_cast<size_t>(flag)]; }

  std::array<double, kRankFlags> counts_{};
};

}  // namespace ftrun
