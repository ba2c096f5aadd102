#include "training/evaluation_record.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

bool improves_on(double value, double reference, bool larger_is_better, double margin = 0) {
  return larger_is_better ? value > reference + margin : value < reference - margin;
}

Json json_of(const std::optional<EvaluationRecord::BestEvaluation>& best) {
  return best ? Json{{"step", best->step}, {"value", best->value}} : Json(nullptr);
}

/// Reads what json_of() has written.
std::optional<EvaluationRecord::BestEvaluation> best_from(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return EvaluationRecord::BestEvaluation{json.at("step").get<int64_t>(),
                                          json.at("value").get<double>()};
}

/// Returns the value of a metric; nothing if the value, or the loss of any set, is not finite.
std::optional<double> finite_value(const EvaluationMetric& metric,
                                   const std::vector<EvaluationResult>& results) {
  const double value = metric_value(metric.kind, results.at(metric.set));
  return std::isfinite(value) && !is_nonfinite(results) ? std::optional(value) : std::nullopt;
}

}  // namespace

double metric_value(MetricKind kind, const EvaluationResult& result) {
  switch (kind) {
    case MetricKind::kLoss:
      return result.loss;
    case MetricKind::kPerplexity:
      return result.perplexity();
    case MetricKind::kAccuracy:
      return result.accuracy.value_or(std::numeric_limits<double>::quiet_NaN());
  }
  return 0;
}

EvaluationRecord::EvaluationRecord(const Config& config)
    : keep_best_(config.checkpoint.keep_best),
      early_stopping_(config.train.early_stopping),
      best_metric_(find_evaluation_metric(config.data, keep_best_.metric)),
      stop_metric_(find_evaluation_metric(config.data, early_stopping_.metric)) {}

void EvaluationRecord::add(int64_t step, const std::vector<EvaluationResult>& results) {
  last_step_ = step;
  nonfinite_set_.clear();
  for (const EvaluationResult& result : results)
    if (result.is_nonfinite() && nonfinite_set_.empty()) nonfinite_set_ = result.set;
  if (step == 0) return;
  record_best(step, results);
  record_improvement(step, results);
}

void EvaluationRecord::record_training_loss(double loss, int64_t tokens) {
  if (tokens > 0) last_loss_is_finite_ = std::isfinite(loss);
}

std::string EvaluationRecord::export_problem(int64_t step) const {
  if (last_step_ != step)
    return last_loss_is_finite_ ? ""
                                : cat("the loss of step ", step, ", the last one, is not finite");
  return nonfinite_set_.empty()
             ? ""
             : cat("the loss on ", nonfinite_set_, " after step ", step, " is not finite");
}

void EvaluationRecord::record_best(int64_t step, const std::vector<EvaluationResult>& results) {
  if (!best_metric_) return;
  const std::optional<double> value = finite_value(*best_metric_, results);
  const bool higher_is_better = keep_best_.mode == BestMode::kMax;
  if (!value || (!bests_.empty() && !improves_on(*value, bests_.front().value, higher_is_better)))
    return;
  constexpr size_t kKept = 3;
  bests_.insert(bests_.begin(), {step, *value});
  if (bests_.size() > kKept) bests_.pop_back();
}

void EvaluationRecord::record_improvement(int64_t step,
                                          const std::vector<EvaluationResult>& results) {
  if (!stop_metric_ || !results.at(stop_metric_->set).has_value()) return;
  const std::optional<double> value = finite_value(*stop_metric_, results);
  const bool higher_is_better = larger_is_better(*stop_metric_);
  if (value && (!last_improvement_ || improves_on(*value, last_improvement_->value,
                                                  higher_is_better, early_stopping_.min_delta))) {
    last_improvement_ = BestEvaluation{step, *value};
    evaluations_without_improvement_ = 0;
  } else {
    ++evaluations_without_improvement_;
  }
}

void EvaluationRecord::forget_best(int64_t step) {
  std::erase_if(bests_, [step](const BestEvaluation& best) { return best.step == step; });
}

/// Returns the evaluation that was the best before the `newer` last ones; nothing if there is none.
std::optional<EvaluationRecord::BestEvaluation> EvaluationRecord::best_before(size_t newer) const {
  return newer < bests_.size() ? std::optional(bests_[newer]) : std::nullopt;
}

bool EvaluationRecord::should_stop() const {
  return stop_metric_ && evaluations_without_improvement_ >= early_stopping_.patience;
}

std::string EvaluationRecord::stop_reason() const {
  const std::string margin = early_stopping_.min_delta > 0
                                 ? cat(" by more than ", number_text(early_stopping_.min_delta))
                                 : "";
  const std::string best = last_improvement_ ? cat("best ", number_text(last_improvement_->value),
                                                   " after step ", last_improvement_->step)
                                             : "it never was finite";
  return cat(early_stopping_.metric, " has not improved", margin, " in ",
             count_text(evaluations_without_improvement_, "evaluation"), " (", best, ")");
}

std::string EvaluationRecord::text() const {
  Json json{{"last_step", last_step_},
            {"nonfinite_set", nonfinite_set_},
            {"last_loss_is_finite", last_loss_is_finite_}};
  if (best_metric_)
    json["best"] = {{"metric", keep_best_.metric},
                    {"more", keep_best_.mode == BestMode::kMax},
                    {"now", json_of(best_before(0))},
                    {"before", json_of(best_before(1))}};
  if (stop_metric_)
    json["stopping"] = {{"metric", early_stopping_.metric},
                        {"improved", json_of(last_improvement_)},
                        {"without", evaluations_without_improvement_}};
  return json.dump();
}

/// Restores the record from a text that text() wrote. The text is trusted, because the checkpoint's
/// checksum covers it.
void EvaluationRecord::restore(const std::string& text) {
  const Json json = Json::parse(text);
  last_step_ = json.at("last_step").get<int64_t>();
  nonfinite_set_ = json.at("nonfinite_set").get<std::string>();
  last_loss_is_finite_ = json.at("last_loss_is_finite").get<bool>();
  if (best_metric_ && json.contains("best") && json["best"].at("metric") == keep_best_.metric &&
      json["best"].at("more") == (keep_best_.mode == BestMode::kMax)) {
    bests_.clear();
    for (const char* key : {"now", "before"}) {
      const std::optional<BestEvaluation> best = best_from(json["best"].at(key));
      if (!best) break;
      bests_.push_back(*best);
    }
  }
  if (stop_metric_ && json.contains("stopping") &&
      json["stopping"].at("metric") == early_stopping_.metric) {
    last_improvement_ = best_from(json["stopping"].at("improved"));
    evaluations_without_improvement_ = json["stopping"].at("without").get<int64_t>();
  }
}

}  // namespace ftrun
