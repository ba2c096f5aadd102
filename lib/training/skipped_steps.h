#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "training/loss_scaler.h"

namespace ftrun {

/// NonfiniteSearchResult is the result of repeating a step whose loss or gradients were not finite.
struct NonfiniteSearchResult {
  /// The location of the first value that is not finite; "" if the values of all layers are finite
  /// and only a sum of gradients is not.
  std::string location;
  /// Says whether the repeated step was finite, with the same weights and data.
  bool repeat_is_finite = false;
};

/// NonfiniteReport is a rank's report to the other ranks about a step that was not finite.
struct NonfiniteReport {
  /// The time in the step, as a sort key, at which the rank first found a value that is not finite;
  /// -1 for never. A rank that received the value from another rank found it later than that rank.
  int64_t sort_key = -1;
  /// The rank's index among the ranks that read different sequences.
  int data_parallel_index = 0;
  std::string location;
};

std::string encode_nonfinite_report(const NonfiniteReport& report);
/// Returns the text "rank 1, forward layer 3 ...; rank 4, ..." from the texts of all ranks, the
/// earliest first. Leaves out ranks that share their sequences with a rank that found a value
/// earlier, because they received the value from that rank.
std::string nonfinite_locations(const std::vector<std::string>& texts);

/// SkippedSteps counts the steps whose update is skipped because the loss or gradients are not
/// finite. It also holds the loss scale, which fp16 overflows reduce. All ranks have the same
/// counts, because every rank sees the same reduced loss and gradient norm.
class SkippedSteps {
 public:
  explicit SkippedSteps(const Config& config);

  /// Restores the counts from a checkpoint.
  void restore(int64_t total, const std::optional<LossScalerState>& scaler,
               int64_t consecutive = 0);

  int64_t total() const { return total_; }
  /// Returns the number of consecutive steps up to now that were not finite, not counting overflows
  /// that reduced the loss scale.
  int64_t consecutive() const { return consecutive_; }
  /// Returns the factor by which the next step's loss is multiplied.
  double loss_scale() const { return scaler_.scale(); }
  std::optional<LossScalerState> scaler_state() const { return scaler_.state(); }

  /// Returns whether a step that is not finite should be repeated to find where. This is so only
  /// for the first of several consecutive such steps (after a resume, the first since then), and
  /// not if reducing the loss scale may solve the problem.
  bool needs_nonfinite_search() const { return !scaler_.expects_overflow() && !search_; }

  /// Counts a step; `search` is the result if the step was repeated. Returns a warning; "" for a
  /// finite step.
  std::string add_step(int64_t step, bool finite,
                       const std::optional<NonfiniteSearchResult>& search);

  /// Throws Error(kNumerical) if too many consecutive steps were skipped, or the loss scale cannot
  /// become smaller. `step` is the last step.
  void refuse_too_many(int64_t step) const;
  /// Throws an Error at the end of a run of `steps` steps, steps before a resume included, if none
  /// was finite, because the run has trained nothing.
  void refuse_if_no_step_trained(int64_t steps) const;

 private:
  std::string location_text() const;

  LossScaler scaler_;
  int64_t limit_;
  int64_t total_ = 0;
  int64_t consecutive_ = 0;
  /// The search for the first of the consecutive steps, if there was one.
  std::optional<NonfiniteSearchResult> search_;
};

}  // namespace ftrun
