#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace ftrun {

/// TrainingNumber lists the numbers that a training step sums, in the order in which the head's
/// operation writes them. The loss buffer and its sum over all ranks adapt to a new enumerator, if
/// EvaluationNumber gets one too. The head's operation must write the number, and Executor must
/// give it a member of StepResult or ForwardResult.
enum class TrainingNumber : uint8_t {
  /// Sum of token losses.
  kLoss,
  /// The tokens that count in the loss.
  kCountedTokens,
};

/// EvaluationNumber lists the numbers that an evaluation sums, likewise.
enum class EvaluationNumber : uint8_t {
  /// Sum of token losses.
  kLoss,
  /// The counted tokens whose label is the likeliest.
  kCorrectTokens,
};

inline constexpr int64_t kLossNumbers = enumerator_count<TrainingNumber>();
static_assert(enumerator_count<EvaluationNumber>() == enumerator_count<TrainingNumber>(),
              "all programs have the same loss buffer");

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
constexpr int64_t slot_of(TrainingNumber number) {
  return static_cast<int64_t>(number);
}
constexpr int64_t slot_of(EvaluationNumber number) {
  return static_cast<int64_t>(number);
}
constexpr int64_t slot_of(Vote vote) {
  return kLossNumbers + static_cast<int64_t>(vote);
}

}  // namespace ftrun
