#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "training/loss_scaler.h"

namespace ftrun {

/// NonfiniteSearch is the result of running again a step that was not finite.
struct NonfiniteSearch {
  /// The place where a value was first not finite; "" when every layer's values are finite and only
  /// a sum of gradients is not.
  std::string place;
  /// The step came out finite from the same weights and data.
  bool finite_now = false;
};

/// RankNonfinite is what a rank reports of such a step to the others.
struct RankNonfinite {
  /// The moment of the step when it met the value, -1 for never: ranks that received it from
  /// another one met it later.
  int64_t when = -1;
  /// The rank among those with sequences of their own.
  int data = 0;
  std::string place;
};

std::string encode_nonfinite(const RankNonfinite& own);
/// Writes "rank 1, forward layer 3 ...; rank 4, ...", from the texts of all ranks, the first one
/// first. Ranks that share their sequences with one that met the value earlier have it from that
/// one, and are left out.
std::string nonfinite_places(const std::vector<std::string>& texts);

/// SkippedSteps counts the steps whose update is left out because loss or gradients are not finite,
/// and holds the loss scale that answers fp16's overflows. Every rank counts the same, because
/// every rank sees the same reduced loss and gradient.
class SkippedSteps {
 public:
  explicit SkippedSteps(const Config& config);

  /// Restores the counts from a checkpoint.
  void restore(int64_t total, const std::optional<LossScalerState>& scaler);

  int64_t total() const { return total_; }
  /// Returns the factor of the next step's loss.
  double loss_scale() const { return scaler_.scale(); }
  std::optional<LossScalerState> scaler_state() const { return scaler_.state(); }

  /// Says whether a step that is not finite is worth running again to see where: not when the loss
  /// scale answers it, and only the first of a row.
  bool needs_place() const { return !scaler_.expects_overflow() && !search_; }

  /// Counts a step; `search` when it was run again. Returns the warning, "" for a finite step.
  std::string count(int64_t step, bool finite, const std::optional<NonfiniteSearch>& search);

  /// Throws Error(kNumerical) when too many steps in a row were left out, or the loss scale can get
  /// no smaller. `step` is the last one.
  void refuse_too_many(int64_t step) const;
  /// Refuses a run of `steps` steps at its end if none was finite: it has trained nothing.
  void refuse_none_trained(int64_t steps) const;

 private:
  std::string where() const;

  LossScaler scaler_;
  int64_t limit_;
  int64_t total_ = 0;
  /// Steps in a row that were not finite, without overflows that the loss scale answered.
  int64_t in_a_row_ = 0;
  /// The search for this row, if there was one.
  std::optional<NonfiniteSearch> search_;
};

}  // namespace ftrun
