#include "optimizers/optimizers.h"

#include <algorithm>
#include <set>

#include "optimizers/max_states.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

std::vector<OptimizerType> all_types() {
  std::vector<OptimizerType> types;
  for (size_t i = 0; i < kNamedOptimizers; ++i) types.push_back(static_cast<OptimizerType>(i));
  return types;
}

OptimizerConfig default_config(OptimizerType type) {
  OptimizerConfig config = optimizer_traits(type).defaults;
  config.type = type;
  return config;
}

TEST_CASE("supported optimizers come before refused ones") {
  for (const OptimizerType type : all_types()) {
    CAPTURE(name_of(type));
    REQUIRE(optimizer_traits(type).is_offered() ==
            (static_cast<size_t>(type) < kOfferedOptimizers));
  }
}

TEST_CASE("each name or alias means exactly one optimizer") {
  std::set<std::string_view> words;
  for (const OptimizerType type : all_types()) REQUIRE(words.insert(name_of(type)).second);
  for (const auto& [alias, name, sets] : optimizer_aliases()) {
    CAPTURE(alias);
    REQUIRE(words.insert(alias).second);
    REQUIRE(words.contains(name));
    REQUIRE(std::all_of(alias.begin(), alias.end(), [](char c) { return c < 'A' || c > 'Z'; }));
  }
}

TEST_CASE("the defaults of an optimizer's parameters are in range and contradict no other") {
  for (const OptimizerType type : all_types()) {
    CAPTURE(name_of(type));
    const OptimizerTraits& optimizer = optimizer_traits(type);
    for (const Hyperparameter& parameter : optimizer.parameters) {
      CAPTURE(parameter.name);
      REQUIRE(std::string_view(parameter.doc) != "");
      const auto* number = std::get_if<double OptimizerConfig::*>(&parameter.member);
      if (number == nullptr) continue;
      REQUIRE(optimizer.defaults.*(*number) >= parameter.minimum.value_or(0));
      REQUIRE(optimizer.defaults.*(*number) < parameter.upper_bound.value_or(10'000));
    }
    if (optimizer.conflict != nullptr) REQUIRE_FALSE(optimizer.conflict(default_config(type)));
  }
}

TEST_CASE(
    "every optimizer has a learning rate and weight decay, which other sections of a config also "
    "set") {
  for (const OptimizerType type : all_types()) {
    if (type == OptimizerType::kTorch) continue;
    CAPTURE(name_of(type));
    REQUIRE(optimizer_traits(type).has_parameter(hyperparameters::kLr.name));
    REQUIRE(optimizer_traits(type).has_parameter(hyperparameters::kWeightDecay.name));
  }
}

TEST_CASE("an optimizer's states have different names, and are as many as its rule can update") {
  for (const OptimizerType type : all_types()) {
    if (!optimizer_traits(type).is_offered()) continue;
    CAPTURE(name_of(type));
    const auto states = optimizer_states(default_config(type));
    REQUIRE(states.size() <= kMaxOptimizerStates);
    std::set<std::string_view> names;
    for (const OptimizerStateTraits& state : states) REQUIRE(names.insert(state.name).second);
  }
}

TEST_CASE("SGD keeps a buffer where it has momentum") {
  OptimizerConfig sgd = default_config(OptimizerType::kSgd);
  REQUIRE(optimizer_states(sgd).empty());
  sgd.momentum = 0.9;
  REQUIRE(optimizer_states(sgd).size() == 1);
  sgd.nesterov = true;
  REQUIRE_FALSE(optimizer_traits(sgd.type).conflict(sgd));
  sgd.dampening = 0.1;
  REQUIRE(optimizer_traits(sgd.type).conflict(sgd)->parameter == "nesterov");
}

TEST_CASE("the types that have a parameter are listed, each followed by its variants") {
  REQUIRE(types_with_parameter("adam_w_mode") == std::vector<std::string>{"AdamW", "Adam"});
  REQUIRE(types_with_parameter("nesterov") == std::vector<std::string>{"SGD", "MuSGD"});
  const std::vector<std::string> corrected = types_with_parameter("bias_correction");
  REQUIRE(std::vector<std::string>(corrected.begin(), corrected.begin() + 3) ==
          std::vector<std::string>{"AdamW", "Adam", "OneBitAdam"});
}

}  // namespace
}  // namespace ftrun
