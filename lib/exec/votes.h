#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "program/step_builder.h"

namespace ftrun {

/// A vote is what ranks report to each other with a step's loss.
enum class Vote : uint8_t {
  /// A stop signal has reached this rank.
  kInterrupt,
  kHangup,
  kTerminate,
  kRequeue,
  /// This rank's save in the background is over, or there is none.
  kSaveEnded,
  /// Rank 0's clock says that a checkpoint, or an evaluation, is due.
  kSaveDue,
  kEvaluationDue,
};

/// Votes count how many ranks vote for each: every kind has a number of its own, so that none can
/// hide another.
class Votes {
 public:
  void add(Vote vote) { at(vote) += 1; }
  int64_t of(Vote vote) const { return static_cast<int64_t>(counts_[static_cast<size_t>(vote)]); }

  /// The counts for a sum over all ranks.
  std::span<double> counts() { return counts_; }
  std::span<const double> counts() const { return counts_; }

 private:
  double& at(Vote vote) { return counts_[static_cast<size_t>(vote)]; }

  static_assert(static_cast<int64_t>(Vote::kEvaluationDue) + 1 == kVoteSlots);
  std::array<double, kVoteSlots> counts_{};
};

}  // namespace ftrun
