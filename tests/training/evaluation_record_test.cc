#include "training/evaluation_record.h"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr double kNever = std::numeric_limits<double>::quiet_NaN();

Config config_with_best(BestMode mode = BestMode::kMin, const std::string& metric = "b.loss") {
  Config config;
  config.data.validation = {"x", "y"};
  config.data.validation_names = {"a", "b"};
  config.checkpoint.keep_best = {metric, mode};
  config.train.early_stopping = {"b.loss", 2, 0.5};
  return config;
}

std::vector<EvaluationResult> results_with_loss(double loss, double accuracy = 0) {
  return {{.set = "a", .loss = 0, .tokens = 8},
          {.set = "b", .loss = loss, .accuracy = accuracy, .tokens = 8}};
}

/// Returns "step value" of the best evaluation after each of the losses.
std::vector<std::string> best_steps(EvaluationRecord record, const std::vector<double>& losses) {
  std::vector<std::string> all;
  for (size_t i = 0; i < losses.size(); ++i) {
    record.add(static_cast<int64_t>(i), results_with_loss(losses[i], losses[i]));
    all.push_back(record.best() ? std::to_string(record.best()->step) : "-");
  }
  return all;
}

using Steps = std::vector<std::string>;

TEST_CASE(
    "the best evaluation is finite, comes after a step, and is strictly better than all before "
    "it") {
  const std::vector<double> losses{0,  5, 5, kNever, 4, std::numeric_limits<double>::infinity(),
                                   4.5};
  REQUIRE(best_steps(EvaluationRecord(config_with_best()), losses) ==
          Steps{"-", "1", "1", "1", "4", "4", "4"});
  REQUIRE(best_steps(EvaluationRecord(config_with_best(BestMode::kMax)), {9, 1, kNever, 1, 2}) ==
          Steps{"-", "1", "1", "1", "4"});
  REQUIRE(best_steps(EvaluationRecord(config_with_best(BestMode::kMax, "b.accuracy")),
                     {9, 1, 2, 1}) == Steps{"-", "1", "2", "2"});
  REQUIRE(best_steps(EvaluationRecord(Config{}), {1, 0}) == Steps{"-", "-"});
}

TEST_CASE(
    "an evaluation with a loss that is not finite is never the best, for any metric and set") {
  for (const double loss : {kNever, std::copysign(kNever, -1.0), HUGE_VAL, -HUGE_VAL})
    for (const std::string metric :
         {"a.loss", "a.accuracy", "b.loss", "b.perplexity", "b.accuracy"})
      for (const BestMode mode : {BestMode::kMin, BestMode::kMax}) {
        CAPTURE(loss, metric);
        EvaluationRecord record(config_with_best(mode, metric));
        std::vector<EvaluationResult> destroyed = results_with_loss(loss, 0.9);
        destroyed[0].accuracy = 0.9;
        record.add(1, destroyed);
        REQUIRE_FALSE(record.best());
        REQUIRE(record.export_problem(1) == "the loss on b after step 1 is not finite");
        std::vector<EvaluationResult> good = results_with_loss(1, 0.1);
        good[0].accuracy = 0.1;
        record.add(2, good);
        REQUIRE(record.is_best(2));
        REQUIRE(record.export_problem(2).empty());
        record.add(3, destroyed);
        REQUIRE(record.is_best(2));
        REQUIRE_FALSE(record.should_stop());
        record.add(4, destroyed);
        REQUIRE(record.should_stop());
      }
}

TEST_CASE(
    "an evaluation without counted tokens is never the best, no failure, and not counted by "
    "patience") {
  const std::vector<EvaluationResult> none{{.set = "a", .loss = 1, .accuracy = 0.5, .tokens = 8},
                                           {.set = "b", .loss = kNever}};
  for (const std::string metric : {"b.loss", "b.perplexity", "b.accuracy"}) {
    EvaluationRecord record(config_with_best(BestMode::kMax, metric));
    for (int64_t step = 1; step <= 4; ++step) record.add(step, none);
    REQUIRE_FALSE(record.best());
    REQUIRE_FALSE(record.should_stop());
    REQUIRE(record.export_problem(4).empty());
  }
  EvaluationRecord by_the_other(config_with_best(BestMode::kMax, "a.accuracy"));
  by_the_other.add(1, none);
  REQUIRE(by_the_other.is_best(1));
}

TEST_CASE("if the last step was not evaluated, its loss says whether the weights are good") {
  EvaluationRecord record(config_with_best());
  record.add(1, results_with_loss(kNever));
  record.record_training_loss(1, 8);
  REQUIRE(record.export_problem(2).empty());
  record.record_training_loss(kNever, 8);
  record.record_training_loss(kNever, 0);  // no token counts
  REQUIRE(record.export_problem(4) == "the loss of step 4, the last one, is not finite");
  EvaluationRecord same(config_with_best());
  same.restore(record.text());
  REQUIRE(same.export_problem(4) == record.export_problem(4));
  REQUIRE(same.export_problem(1) == "the loss on b after step 1 is not finite");
  record.record_training_loss(1, 8);
  record.record_training_loss(kNever, 0);
  REQUIRE(record.export_problem(6).empty());
}

TEST_CASE("if the best checkpoint is lost, the one before it is the best") {
  EvaluationRecord record(config_with_best());
  for (int64_t step = 1; step <= 3; ++step)
    record.add(step, results_with_loss(10.0 - static_cast<double>(step)));
  record.forget_best(1);
  record.forget_best(3);
  REQUIRE(record.is_best(2));
  record.forget_best(2);
  REQUIRE_FALSE(record.best());
}

TEST_CASE("if the saves of two bests in a row fail, the one before them is the best") {
  for (const std::vector<int64_t>& failed : {std::vector<int64_t>{2, 3}, {3, 2}}) {
    EvaluationRecord record(config_with_best());
    for (int64_t step = 1; step <= 3; ++step)
      record.add(step, results_with_loss(10.0 - static_cast<double>(step)));
    for (const int64_t step : failed) record.forget_best(step);
    REQUIRE(record.is_best(1));
    record.add(4, results_with_loss(9.5));
    REQUIRE(record.is_best(1));
  }
}

TEST_CASE("evaluations that do not beat the last improvement by more than min_delta are counted") {
  EvaluationRecord record(config_with_best());
  record.add(0, results_with_loss(1));
  record.add(1, results_with_loss(5));
  record.add(2, results_with_loss(4.5));  // better by exactly 0.5
  REQUIRE_FALSE(record.should_stop());
  record.add(3, results_with_loss(4.25));
  REQUIRE_FALSE(record.should_stop());
  record.add(4, results_with_loss(kNever));
  record.add(5, results_with_loss(4));
  REQUIRE(record.should_stop());
  REQUIRE(record.stop_reason() ==
          "b.loss has not improved by more than 0.5 in 2 evaluations (best 4.25 after step 3)");
}

TEST_CASE("early stopping ends a run whose metric is never finite") {
  EvaluationRecord record(config_with_best());
  for (int64_t step = 1; step <= 2; ++step) record.add(step, results_with_loss(kNever));
  REQUIRE(record.should_stop());
  REQUIRE(record.stop_reason() ==
          "b.loss has not improved by more than 0.5 in 2 evaluations (it never was finite)");
}

TEST_CASE("a checkpoint keeps the record, except values of another metric or mode") {
  EvaluationRecord record(config_with_best());
  record.add(1, results_with_loss(1.0 / 3));
  record.add(2, results_with_loss(0.1));
  record.add(3, results_with_loss(9));
  const std::string text = record.text();
  EvaluationRecord same(config_with_best());
  same.restore(text);
  REQUIRE(same.text() == text);
  REQUIRE(same.last_step() == 3);
  REQUIRE(same.best()->value == 0.1);
  same.add(4, results_with_loss(9));
  REQUIRE(same.should_stop());
  Config other = config_with_best(BestMode::kMax);
  other.train.early_stopping.metric = "a.loss";
  EvaluationRecord changed(other);
  changed.restore(text);
  REQUIRE(changed.last_step() == 3);
  REQUIRE_FALSE(changed.best());
  changed.add(4, results_with_loss(9));
  REQUIRE_FALSE(changed.should_stop());
}

}  // namespace
}  // namespace ftrun
