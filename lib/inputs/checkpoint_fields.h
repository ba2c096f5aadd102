#pragma once

namespace ftrun {

/// The extra fields of a checkpoint (CheckpointMeta::extra) that training writes.

/// The field that holds ModelFolder::weights_fingerprint() of the base, if a part of the base is
/// frozen and therefore not in the checkpoint.
inline constexpr const char* kBaseRecord = "base_weights";

/// The field that holds EvaluationRecord::text().
inline constexpr const char* kEvaluationRecord = "evaluations";

/// The field that holds SkippedSteps::consecutive(), if that is not 0.
inline constexpr const char* kNonfiniteRecord = "nonfinite_steps";

}  // namespace ftrun
