#include "training/skipped_steps.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {

std::string encode_nonfinite_report(const NonfiniteReport& report) {
  return cat(report.sort_key, " ", report.data_parallel_index, " ", report.location);
}

std::string nonfinite_locations(const std::vector<std::string>& texts) {
  struct ReportOfRank {
    size_t rank;
    NonfiniteReport report;
  };
  std::vector<ReportOfRank> reports;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    ReportOfRank current{rank, {}};
    std::istringstream in(texts[rank]);
    in >> current.report.sort_key >> current.report.data_parallel_index >> std::ws;
    std::getline(in, current.report.location);
    if (current.report.sort_key >= 0) reports.push_back(std::move(current));
  }
  std::stable_sort(reports.begin(), reports.end(),
                   [](const ReportOfRank& a, const ReportOfRank& b) {
                     return a.report.sort_key < b.report.sort_key;
                   });
  std::vector<std::string> locations;
  for (const ReportOfRank& current : reports) {
    const bool received_from_another =
        std::any_of(reports.begin(), reports.end(), [&](const ReportOfRank& other) {
          return other.report.data_parallel_index == current.report.data_parallel_index &&
                 other.report.sort_key < current.report.sort_key;
        });
    if (!received_from_another)
      locations.push_back(cat("rank ", current.rank, ", ", current.report.location));
  }
  return join(locations, "; ");
}

SkippedSteps::SkippedSteps(const Config& config)
    : scaler_(config), limit_(config.train.max_nonfinite_steps) {}

void SkippedSteps::restore(int64_t total, const std::optional<LossScalerState>& scaler,
                           int64_t consecutive) {
  total_ = total;
  // If the limit was lowered below the count, the next step that is not finite ends the run.
  consecutive_ = std::min(consecutive, limit_ - 1);
  if (scaler) scaler_.restore(*scaler);
}

std::string SkippedSteps::location_text() const {
  if (!search_) return "";
  if (search_->repeat_is_finite)
    return ": re-running the step gave finite values, so this machine is not deterministic";
  return search_->location.empty()
             ? ": every layer's values are finite; the overflow is in the gradient sum"
             : cat(": first met by ", search_->location);
}

std::string SkippedSteps::add_step(int64_t step, bool finite,
                                   const std::optional<NonfiniteSearchResult>& search) {
  const double scale = scaler_.scale();
  const bool answered = scaler_.expects_overflow();
  scaler_.update(!finite);
  if (finite) {
    consecutive_ = 0;
    search_.reset();
    return "";
  }
  ++total_;
  if (answered)
    return cat("step ", step, ": the gradients overflow at loss scale ", scale,
               "; the update was skipped, the next scale is ", scaler_.scale());
  ++consecutive_;
  if (search) search_ = search;
  return cat("step ", step, ": the loss or the gradient is not finite; the update was skipped (",
             consecutive_, " in a row)", location_text());
}

void SkippedSteps::refuse_too_many(int64_t step) const {
  if (scaler_.is_exhausted())
    throw Error(ExitCode::kNumerical,
                cat("step ", step, ": the gradients overflow at the smallest loss scale (",
                    scaler_.scale(), ")", location_text()),
                "lower the learning rate, train in bf16, or lower fp16.min_loss_scale");
  if (consecutive_ < limit_) return;
  throw Error(
      ExitCode::kNumerical,
      cat("step ", step, ": the loss or the gradient was not finite for ", consecutive_,
          consecutive_ == 1 ? " step" : " steps in a row", location_text()),
      "lower the learning rate, check the data of these steps, or raise train.max_nonfinite_steps");
}

void SkippedSteps::refuse_if_no_step_trained(int64_t steps) const {
  if (steps == 0 || total_ < steps) return;
  throw Error(ExitCode::kNumerical,
              cat("the loss or the gradient was not finite in ",
                  steps == 1 ? "the only step" : cat("all ", steps, " steps"), location_text(),
                  ": nothing was trained"),
              scaler_.expects_overflow()
                  ? "train more steps, so that the loss scale becomes small enough, or lower "
                    "fp16.initial_scale_power"
                  : "check the weights and the data, or lower the learning rate");
}

}  // namespace ftrun
