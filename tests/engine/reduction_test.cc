#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "program/step_builder.h"
#include "rank_fixture.h"
#include "training/gradient_scale.h"

#include <catch2/catch.hpp>

// These tests check the keys that say how gradients are divided before and after the sum over
// ranks. What four ranks send and sum in fp32, bf16 and fp16 is compared with sums that the test
// computes from the gradients of each rank alone.

namespace ftrun {
namespace {

using testing::RankFixture;
using testing::SingleRank;

constexpr int kReducingRanks = 4;
/// The number of tokens in the global batch: 4 ranks, 2 micro-batches, 2 rows of 8.
constexpr double kTokens = 128;
using Floats = std::vector<float>;

/// Rounds to a float with `bits` significant bits, the last of which is worth at least 2^least;
/// ties to even. Values beyond `most` become infinite.
float round_to_bits(float value, int bits, int least, float most) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int last = std::max(exponent - bits, least);
  const auto near =
      static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(double{value}, -last)), last));
  return std::fabs(near) > most ? std::copysign(std::numeric_limits<float>::infinity(), near)
                                : near;
}

float rounded_to(ConfigDtype wire, float value) {
  if (wire == ConfigDtype::kFp16) return round_to_bits(value, 11, -24, 65504.0F);
  if (wire == ConfigDtype::kBf16)
    return round_to_bits(value, 8, -133, std::numeric_limits<float>::max());
  return value;
}

/// A setting of the three keys, and the numbers by which DeepSpeed divides a rank's gradient before
/// the sum (`before`) and the sum (`after`). Without a factor, ftrun divides by the number of ranks
/// before the sum.
struct Setting {
  std::string name;
  std::function<void(ReductionConfig&)> set;
  double before = 1;
  double after = 1;
};

std::vector<Setting> settings() {
  constexpr auto kSum = AllreduceOp::kSum;
  return {
      {"default", [](ReductionConfig&) {}, 4, 1},
      {"prescaled", [](ReductionConfig& r) { r.prescale_gradients = true; }, 4, 1},
      {"prescaled, which makes the factor void",
       [](ReductionConfig& r) {
         r.prescale_gradients = true;
         r.gradient_predivide_factor = 2;
       },
       4, 1},
      {"factor 2", [](ReductionConfig& r) { r.gradient_predivide_factor = 2; }, 2, 2},
      {"factor 16", [](ReductionConfig& r) { r.gradient_predivide_factor = 16; }, 16, 0.25},
      {"factor 0.5", [](ReductionConfig& r) { r.gradient_predivide_factor = 0.5; }, 0.5, 8},
      {"sum", [](ReductionConfig& r) { r.gradient_allreduce_op = kSum; }, 4, 0.25},
      {"sum, factor 2",
       [](ReductionConfig& r) {
         r.gradient_allreduce_op = kSum;
         r.gradient_predivide_factor = 2;
       },
       2, 0.5},
  };
}

Config config_of_setting(const Setting& setting, ConfigDtype wire) {
  Config config = testing::config_of_stage(0);
  config.parallel.data = kReducingRanks;
  config.optimizer.type = OptimizerType::kSgd;
  config.optimizer.momentum = 0;
  config.optimizer.weight_decay = 0;
  config.optimizer.lr = 1;
  config.reduction.communication_data_type = wire;
  setting.set(config.reduction);
  return config;
}

/// Returns all parameters, or all gradients, of a rank. Nothing else in the step reuses the memory
/// of the gradients, so they can be read after the step.
Floats values_of(const RankFixture& fixture, Category category) {
  const Program& program = fixture.plan.train.program;
  Floats values;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (program.buffers[b].category != category) continue;
    const int64_t bytes = program.buffers[b].bytes;
    const auto* from = reinterpret_cast<const float*>(
        fixture.memory.at(program, {static_cast<BufferId>(b), 0, bytes}));
    values.insert(values.end(), from, from + bytes / 4);
  }
  return values;
}

struct Result {
  Floats gradients, weights_before, weights_after;
  double norm = 0;
  bool finite = true;
};

/// Trains one step on the batches of rank `rank`; if several ranks train, each takes its own.
Result train_one_step(RankFixture& fixture, const Config& config, double loss_scale, int rank) {
  fixture.rank = rank;
  fixture.batches.resize(2);
  for (size_t slot = 0; slot < 2; ++slot)
    fixture.batches[slot] = testing::random_batch(fixture.plan.train.model.batch,
                                                  10 * static_cast<uint64_t>(rank) + slot);
  StepRun run = fixture.prepare_step(1);
  const GradientScale scale = gradient_scale(config, loss_scale, kTokens);
  run.scalars.token_loss_factor = scale.token_loss_factor;
  run.policy = step_policy({.gradient_divisor = scale.unscale_divisor});
  Result result;
  result.weights_before = values_of(fixture, Category::kParameters);
  fixture.train_executor.run(run);
  result.gradients = values_of(fixture, Category::kGradients);
  result.weights_after = values_of(fixture, Category::kParameters);
  result.norm = run.result.gradient_norm;
  result.finite = run.result.finite;
  return result;
}

/// Returns the gradient of each rank's own mean loss. No setting changes it.
const std::vector<Floats>& gradients_of_ranks() {
  static const std::vector<Floats> all = [] {
    std::vector<Floats> made;
    for (int rank = 0; rank < kReducingRanks; ++rank) {
      SingleRank single_rank;
      RankFixture fixture(config_of_setting(settings()[0], ConfigDtype::kModel),
                          testing::small_model(), *single_rank.group);
      Config config = fixture.config;
      config.parallel.data = kReducingRanks;
      made.push_back(train_one_step(fixture, config, kReducingRanks, rank).gradients);
    }
    return made;
  }();
  return all;
}

Result train_on_all_ranks(const Setting& setting, ConfigDtype wire, double loss_scale) {
  const Config config = config_of_setting(setting, wire);
  Result first;
  testing::require_no_failures(
      testing::errors_on_ranks(kReducingRanks, [&](Rendezvous& rendezvous, Communicator& group) {
        RankFixture fixture(config, testing::small_model(), group);
        const Result own = train_one_step(fixture, config, loss_scale, rendezvous.rank());
        if (rendezvous.rank() == 0) first = own;
      }));
  return first;
}

/// Returns the sums that communication must return: each rank's gradient is rounded to the dtype
/// `wire` before it is sent, and so is the sum.
Floats expected_sums(const Setting& setting, ConfigDtype wire, double loss_scale) {
  const std::vector<Floats>& ranks = gradients_of_ranks();
  Floats out(ranks[0].size());
  for (size_t e = 0; e < out.size(); ++e) {
    float sum = 0;
    for (const Floats& own : ranks)
      sum += rounded_to(wire, static_cast<float>(double{own[e]} * loss_scale / setting.before));
    out[e] = rounded_to(wire, sum);
  }
  return out;
}

constexpr ConfigDtype kWires[] = {ConfigDtype::kFp32, ConfigDtype::kBf16, ConfigDtype::kFp16};

TEST_CASE("sums over ranks are divided and rounded as the config's reduction keys say") {
  set_kernel_threads(1);
  std::map<ConfigDtype, std::vector<Floats>> weights;
  for (const ConfigDtype wire : kWires)
    for (const Setting& setting : settings()) {
      INFO(setting.name << ", sent in " << name_of(wire));
      constexpr double kLossScale = 64;
      const Floats expected = expected_sums(setting, wire, kLossScale);
      const Result found = train_on_all_ranks(setting, wire, kLossScale);
      REQUIRE(found.finite);
      REQUIRE(found.gradients == expected);
      double squares = 0;
      for (size_t e = 0; e < expected.size(); ++e) {
        const double own = expected[e] / kLossScale / setting.after;
        squares += own * own;
      }
      REQUIRE(found.norm > 0.01);
      REQUIRE(found.norm == Approx(std::sqrt(squares)).epsilon(1e-12));
      weights[wire].push_back(found.weights_after);
    }
  // Without rounding (fp32), the result does not depend on how the division is split into steps;
  // the sum is four times the mean.
  const auto& fp32 = weights[ConfigDtype::kFp32];
  for (const size_t same : {1, 2, 3, 4, 5}) REQUIRE(fp32[same] == fp32[0]);
  REQUIRE(fp32[7] == fp32[6]);
  REQUIRE(fp32[6] != fp32[0]);
  // Dividing by powers of two loses bits only in fp16, whose smallest numbers have fewer bits.
  for (const size_t same : {3, 4, 5})
    REQUIRE(weights[ConfigDtype::kBf16][same] == weights[ConfigDtype::kBf16][0]);
  REQUIRE(weights[ConfigDtype::kFp16][4] != weights[ConfigDtype::kFp16][5]);
}

TEST_CASE("the update takes the mean of the ranks' gradients, or their sum") {
  set_kernel_threads(1);
  const std::vector<Floats>& ranks = gradients_of_ranks();
  for (const Setting& setting : settings()) {
    INFO(setting.name);
    const bool sum = setting.name.starts_with("sum");
    const Result found = train_on_all_ranks(setting, ConfigDtype::kFp32, 1);
    REQUIRE(found.weights_after.size() == found.weights_before.size());
    // Units may be stored in another order than in gradients_of_ranks(), so only the sum of all
    // absolute changes is compared.
    double moved = 0, expected_total = 0;
    for (size_t e = 0; e < found.weights_after.size(); ++e)
      moved += std::fabs(double{found.weights_after[e]} - found.weights_before[e]);
    for (size_t e = 0; e < ranks[0].size(); ++e) {
      double all = 0;
      for (const Floats& own : ranks) all += own[e];
      expected_total += std::fabs(sum ? all : all / kReducingRanks);
    }
    REQUIRE(moved == Approx(expected_total).epsilon(1e-4));
  }
}

TEST_CASE(
    "in fp16, a sum of values divided by too little overflows in the collective, and only there") {
  set_kernel_threads(1);
  // Sums of gradients divided by four fit in fp16; sums of gradients divided by two overflow.
  float largest = 0;
  for (const float sum : expected_sums(settings()[0], ConfigDtype::kFp32, 1))
    largest = std::max(largest, std::fabs(sum));
  for (const Floats& own : gradients_of_ranks())
    for (const float part : own) largest = std::max(largest, std::fabs(part) / kReducingRanks);
  const double loss_scale = std::exp2(std::floor(std::log2(65504.0 / largest)));
  for (const ConfigDtype wire : kWires)
    for (const Setting& setting : settings()) {
      const bool overflows = wire == ConfigDtype::kFp16 && setting.before < 4;
      INFO(setting.name << ", sent in " << name_of(wire));
      const Floats expected = expected_sums(setting, wire, loss_scale);
      const bool any =
          std::any_of(expected.begin(), expected.end(), [](float x) { return !std::isfinite(x); });
      REQUIRE(any == overflows);
      const Result found = train_on_all_ranks(setting, wire, loss_scale);
      REQUIRE(found.finite == !overflows);
      REQUIRE((found.weights_after == found.weights_before) == overflows);
    }
}

}  // namespace
}  // namespace ftrun
