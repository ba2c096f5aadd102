#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace ftrun {

/// TrainingSum lists the sums that a training step computes over tokens and ranks, in the order in
/// which the head's operation writes them. The loss buffer and its sum over all ranks adapt to a
/// new enumerator, if EvaluationSum gets one too. The head's operation must write the sum, and
/// Executor must give it a member of StepResult or ForwardResult.
enum class TrainingSum : uint8_t {
  /// Sum of token losses.
  kLoss,
  /// The tokens that count in the loss.
  kCountedTokens,
};

/// EvaluationSum lists the sums that an evaluation computes, likewise.
enum class EvaluationSum : uint8_t {
  /// Sum of token losses.
  kLoss,
  /// The counted tokens whose label is the likeliest.
  kCorrectTokens,
};

inline constexpr int64_t kLossSums = enumerator_count<TrainingSum>();
static_assert(enumerator_count<EvaluationSum>() == enumerator_count<TrainingSum>(),
              "all programs have the same loss buffer");

/// RankFlag is something that a rank tells all ranks together with a step's loss. Every flag has
/// its own count of the ranks that set it, so that none can hide another.
enum class RankFlag : uint8_t {
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
inline constexpr int64_t kRankFlags = enumerator_count<RankFlag>();

/// The slots of the loss buffer: an F64 for each sum and each flag, all summed over all ranks.
inline constexpr int64_t kLossSlots = kLossSums + kRankFlags;
constexpr int64_t loss_slot(TrainingSum sum) {
  return static_cast<int64_t>(sum);
}
constexpr int64_t loss_slot(EvaluationSum sum) {
  return static_cast<int64_t>(sum);
}
constexpr int64_t loss_slot(RankFlag flag) {
  return kLossSums + static_cast<int64_t>(flag);
}

}  // namespace ftrun
