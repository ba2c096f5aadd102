#pragma once

#include <cstdint>

namespace ftrun {

/// Numbers that the lists of a step add up, in the order in which operations write them. A new one
/// is an enumerator here: the loss buffer, its sum over all ranks and who reads it follow.
enum class LossNumber : uint8_t {
  /// Sum of token losses.
  kLoss,
  /// A training step's counted tokens; an evaluation's tokens whose label is the likeliest.
  kTokens,
};
inline constexpr int64_t kLossNumbers = static_cast<int64_t>(LossNumber::kTokens) + 1;

/// Kinds of what ranks tell each other with a step's loss. Each kind has a number of its own, how
/// many ranks vote for it, so that none can hide another.
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
inline constexpr int64_t kVotes = static_cast<int64_t>(Vote::kEvaluationDue) + 1;

/// The loss buffer: an F64 for each number and each vote, summed over all ranks together. Where
/// each lies in it.
inline constexpr int64_t kLossSlots = kLossNumbers + kVotes;
constexpr int64_t slot_of(LossNumber number) {
  return static_cast<int64_t>(number);
}
constexpr int64_t slot_of(Vote vote) {
  return kLossNumbers + static_cast<int64_t>(vote);
}

}  // namespace ftrun
