#include "config/learning_rate.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "requirements.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using nlohmann::json;

SchedulerType type_named(const std::string& name) {
  for (size_t i = 0; i < EnumNames<SchedulerType>::kNames.size(); ++i)
    if (EnumNames<SchedulerType>::kNames[i] == name) return static_cast<SchedulerType>(i);
  FAIL("unknown schedule " << name);
  return SchedulerType::kConstant;
}

SchedulerConfig schedule_from(const std::string& type, const json& params, double lr) {
  SchedulerConfig s;
  s.type = type_named(type);
  const auto take = [&](const char* key, auto& member) {
    if (params.contains(key)) params.at(key).get_to(member);
  };
  s.warmup_max_lr = s.type == SchedulerType::kWarmupLR ? lr : 0.001;
  s.warmup_num_steps = 1000;
  take("warmup_min_lr", s.warmup_min_lr);
  take("warmup_max_lr", s.warmup_max_lr);
  take("warmup_num_steps", s.warmup_num_steps);
  take("total_num_steps", s.total_num_steps);
  take("warmup_min_ratio", s.warmup_min_ratio);
  take("cos_min_ratio", s.cos_min_ratio);
  take("cycle_min_lr", s.cycle_min_lr);
  take("cycle_max_lr", s.cycle_max_lr);
  take("cycle_first_step_size", s.cycle_first_step_size);
  s.cycle_second_step_size = s.cycle_first_step_size;
  take("cycle_second_step_size", s.cycle_second_step_size);
  take("cycle_first_stair_count", s.cycle_first_stair_count);
  s.cycle_second_stair_count = s.cycle_first_stair_count;
  take("cycle_second_stair_count", s.cycle_second_stair_count);
  take("decay_step_size", s.decay_step_size);
  take("decay_lr_rate", s.decay_lr_rate);
  take("lr_range_test_min_lr", s.lr_range_test_min_lr);
  take("lr_range_test_step_size", s.lr_range_test_step_size);
  take("lr_range_test_step_rate", s.lr_range_test_step_rate);
  take("lr_range_test_staircase", s.lr_range_test_staircase);
  if (params.value("warmup_type", "log") == "linear") s.warmup_type = WarmupShape::kLinear;
  return s;
}

void check_trace(const json& row) {
  OptimizerConfig optimizer;
  optimizer.lr = row.at("optimizer_lr").get<double>();
  const SchedulerConfig s =
      schedule_from(row.at("type").get<std::string>(), row.at("params"), optimizer.lr);
  INFO(row.at("type") << ' ' << row.at("params"));
  const json& expected = row.at("lr_of_step");
  REQUIRE(expected.size() >= 4);
  for (size_t k = 0; k < expected.size(); ++k) {
    const ScheduledRate rate = scheduled_rate(s, optimizer, static_cast<int64_t>(k) + 1);
    REQUIRE(rate.learning_rate == Approx(expected[k].get<double>()).epsilon(1e-8).margin(1e-15));
    if (row.contains("beta1_of_step"))
      REQUIRE(rate.beta1.value() == Approx(row["beta1_of_step"][k].get<double>()).epsilon(1e-8));
  }
}

TEST_CASE("DeepSpeed's schedules give the rates that DeepSpeed has used", "[.needs-reference]") {
  std::ifstream in(testing::reference_file("ds_reference_numbers.json"));
  const json numbers = json::parse(in);
  REQUIRE(numbers.at("schedules").size() >= 10);
  for (const json& row : numbers.at("schedules")) check_trace(row);
}

TEST_CASE("the first two steps of WarmupLR use the smallest rate") {
  OptimizerConfig optimizer;
  SchedulerConfig s;
  s.type = SchedulerType::kWarmupLR;
  s.warmup_max_lr = 1e-3;
  s.warmup_num_steps = 5;
  REQUIRE(scheduled_rate(s, optimizer, 1).learning_rate == 0.0);
  REQUIRE(scheduled_rate(s, optimizer, 2).learning_rate == 0.0);
  REQUIRE(scheduled_rate(s, optimizer, 3).learning_rate == Approx(4.306765581e-4).epsilon(1e-9));
  REQUIRE(scheduled_rate(s, optimizer, 6).learning_rate == Approx(1e-3));
}

TEST_CASE("linear, cosine and constant rise over the warm-up and end at their last rate") {
  OptimizerConfig optimizer;
  optimizer.lr = 1.0;
  SchedulerConfig s;
  s.warmup_num_steps = 2;
  s.total_num_steps = 6;
  s.type = SchedulerType::kConstant;
  REQUIRE(scheduled_rate(s, optimizer, 1).learning_rate == 0.0);
  REQUIRE(scheduled_rate(s, optimizer, 2).learning_rate == 0.5);
  REQUIRE(scheduled_rate(s, optimizer, 9).learning_rate == 1.0);
  s.type = SchedulerType::kLinear;
  REQUIRE(scheduled_rate(s, optimizer, 3).learning_rate == 1.0);
  REQUIRE(scheduled_rate(s, optimizer, 5).learning_rate == Approx(0.5));
  REQUIRE(scheduled_rate(s, optimizer, 7).learning_rate == Approx(0.0).margin(1e-15));
  s.type = SchedulerType::kCosine;
  s.min_lr = 0.1;
  REQUIRE(scheduled_rate(s, optimizer, 3).learning_rate == 1.0);
  REQUIRE(scheduled_rate(s, optimizer, 5).learning_rate == Approx(0.55));
  REQUIRE(scheduled_rate(s, optimizer, 7).learning_rate == Approx(0.1));
  REQUIRE(scheduled_rate(s, optimizer, 100).learning_rate == Approx(0.1));
}

TEST_CASE("warmup_stable_decay has the rates of transformers") {
  OptimizerConfig optimizer;
  optimizer.lr = 1.0;
  SchedulerConfig s;
  s.type = SchedulerType::kWarmupStableDecay;
  s.warmup_type = WarmupShape::kLinear;
  s.warmup_num_steps = 2;
  s.num_decay_steps = 4;
  s.min_lr_ratio = 0.1;
  const auto rates = [&] {
    std::vector<double> all;
    for (int64_t k = 1; k <= 12; ++k) all.push_back(scheduled_rate(s, optimizer, k).learning_rate);
    return all;
  };
  const std::vector<double> ends{0.1, 0.1};
  const auto require_rates = [&](const std::vector<double>& decay) {
    std::vector<double> expected{0.1, 0.55, 1, 1, 1, 1, 1};
    expected.insert(expected.end(), decay.begin(), decay.end());
    expected.insert(expected.end(), ends.begin(), ends.end());
    const std::vector<double> found = rates();
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      REQUIRE(found[i] == Approx(expected[i]).epsilon(1e-7));
  };
  for (const bool by_total : {false, true}) {
    s.num_stable_steps = by_total ? -1 : 4;
    s.total_num_steps = by_total ? 10 : 0;
    s.decay_type = DecayShape::kCosine;
    require_rates({.86819805, .55, .23180195});
    s.decay_type = DecayShape::kLinear;
    require_rates({.775, .55, .325});
    s.decay_type = DecayShape::kOneMinusSqrt;
    require_rates({.55, .36360390, .22057714});
  }
}

TEST_CASE("schedules stay at their last rate, except inverse_sqrt") {
  OptimizerConfig optimizer;
  optimizer.lr = 1.0;
  SchedulerConfig s;
  s.warmup_num_steps = 2;
  s.total_num_steps = 6;
  s.min_lr = 0.25;
  s.lr_end = 0.125;
  for (const auto& [type, last] : {std::pair{SchedulerType::kCosineWithRestarts, 0.0},
                                   {SchedulerType::kPolynomial, 0.125},
                                   {SchedulerType::kCosineWithMinLr, 0.25}}) {
    s.type = type;
    CAPTURE(name_of(type));
    for (const int64_t k : {7, 8, 100})
      REQUIRE(scheduled_rate(s, optimizer, k).learning_rate == Approx(last).margin(1e-12));
  }
  // Every type with a last step, of every length.
  s.min_lr_ratio = 0.5;
  s.warmup_min_lr = 0.0625;
  s.cos_min_ratio = 0.75;
  s.num_decay_steps = 1;
  s.warmup_type = WarmupShape::kLinear;
  for (const LearningRateScheduleTraits& traits : kLearningRateScheduleTraits) {
    if (!traits.has_last_step) continue;
    s.type = traits.type;
    for (const int64_t total : {1, 2, 3, 6}) {
      s.total_num_steps = total;
      CAPTURE(traits.name, total);
      for (const int64_t k : {total + 4, total + 100})
        REQUIRE(scheduled_rate(s, optimizer, k).learning_rate == final_learning_rate(s, optimizer));
    }
  }
  s.type = SchedulerType::kWarmupStableDecay;
  REQUIRE(final_learning_rate(s, optimizer) == 0.5);
  s.type = SchedulerType::kWarmupDecayLR;
  REQUIRE(final_learning_rate(s, optimizer) == 0.0625);
  s.type = SchedulerType::kWarmupCosineLR;
  REQUIRE(final_learning_rate(s, optimizer) == 0.75);
  s.type = SchedulerType::kInverseSqrt;
  REQUIRE(scheduled_rate(s, optimizer, 9).learning_rate == Approx(0.5));
  REQUIRE(scheduled_rate(s, optimizer, 33).learning_rate == Approx(0.25));
}

}  // namespace
}  // namespace ftrun
