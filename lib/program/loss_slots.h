#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace ftrun {

/// LossNumber lists the numbers that a step sums, in the order in which operations write them. The
/// loss buffer and its sum over all ranks adapt to a new enumerator; Executor gives the number its
/// place in the result of a step.
enum class LossNumber : uint8_t {
  /// Sum of token losses.
  kLoss,
  /// A training step's counted tokens; an evaluation's tokens whose label is the likeliest.
  kTokens,
};
inline constexpr int64_t kLossNumbers = enumerator_count<LossNumber>();

/// Vote is a kind of message that ranks exchange with a step's loss. Every kind has its own count
/// of the ranks that vote for it, so that none can hide another.
enum class Vote : uint8_t {
  /// A stop signal has reached this rank.
  kInterrupt,
  kHangup,
  kTerminate,
  kRequeue,
  /// The rank's save in the background is over, or there is none.
  kSaveEnded,
  /// Rank 0's clock says that a checkpoint, or an evaluation, is due.
  kSaveDue,
  kEvaluationDue,
};
inline constexpr int64_t kVotes = enumerator_count<Vote>();

/// The slots of the loss buffer: an F64 for each number and each vote, all summed over all ranks.
inline constexpr int64_t kLossSlots = kLossNumbers + kVotes;
constexpr int64_t slot_of(LossNumber number) {
  return static_cast<int64_t>(number);
}
constexpr int64_t slot_of(Vote vote) {
  return kLossNumbers + static_cast<int64_t>(vote);
}

}  // namespace ftrun
