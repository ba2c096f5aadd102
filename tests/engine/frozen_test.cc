#include <map>
#include <string>
#include <vector>

#include "mesh_runs.h"

#include <catch2/catch.hpp>

// These tests freeze units. At every stage and tier the trainable tensors train to the same values,
// and frozen tensors keep their bits and have no optimizer state.

namespace ftrun {
namespace {

using testing::RankFixture;

constexpr int kShards = 3;
constexpr int kTrainedSteps = 3;

using Trained = testing::TrainingOutcome;

using Trains = std::function<bool(const TensorInfo&)>;

using Values = std::map<std::string, std::vector<float>>;

/// Trains the model; `frozen`, if given, receives the values of the frozen tensors after the last
/// step.
Trained train_selected(const Config& config, const Trains& trains, int steps = kTrainedSteps,
                       Values* frozen = nullptr) {
  Trained out;
  testing::CombinedState whole;
  testing::run_on_mesh(1, kShards, [&](Rendezvous&, const RankCommunicators& communicators) {
    RankFixture fixture(config, testing::model_of_many_blocks(true), communicators, nullptr,
                        {.trains = trains});
    testing::train_steps(fixture, steps, out);
    whole.add(fixture.state.slices());
    for (const TensorInfo& tensor : fixture.plan.train.model.tensors) {
      if (frozen == nullptr || trains(tensor)) continue;
      const bool first = communicators.host_model->rank() == 0;
      std::vector<float> values(first ? static_cast<size_t>(tensor.numel()) : 0);
      fixture.state.gather_elements(tensor.name, 0, tensor.numel(), first,
                                    *communicators.host_model, values);
      if (first) (*frozen)[tensor.name] = std::move(values);
    }
  });
  out.state = whole.contents();
  return out;
}

/// Returns whether a tensor is frozen: the first two layers' attention and all vectors are.
bool is_frozen(const std::string& name) {
  return name.find("norm") != std::string::npos || (name.find("self_attn") != std::string::npos &&
                                                    name.find("layers.2.") == std::string::npos);
}

TEST_CASE("frozen units keep their bits at every stage and tier, and the others train alike") {
  const Trains trains = [](const TensorInfo& tensor) { return !is_frozen(tensor.name); };
  const Trained before = train_selected(testing::config_of_stage(0), trains, 0);
  Values frozen;
  const Trained expected =
      train_selected(testing::config_of_stage(0), trains, kTrainedSteps, &frozen);
  const Trained all =
      train_selected(testing::config_of_stage(0), [](const TensorInfo&) { return true; });
  size_t changed = 0;
  for (const auto& [name, bytes] : expected.state) {
    INFO(name);
    // Frozen tensors are not saved, because the model folder has them.
    CHECK_FALSE(is_frozen(name));
    if (name.ends_with(".param")) CHECK(bytes != before.state.at(name));
    changed += 1;
  }
  CHECK(frozen.size() > 5);
  for (const auto& [name, values] : frozen) {
    INFO(name);
    CHECK(is_frozen(name));
    bool same = true;
    for (size_t i = 0; i < values.size(); ++i)
      same = same && values[i] == testing::weight_of(name, static_cast<int64_t>(i));
    CHECK(same);
  }
  CHECK(changed > 5);
  // The forward pass is the same, but fewer parameters have gradients.
  CHECK(expected.losses[0] == all.losses[0]);
  CHECK(expected.losses[2] != all.losses[2]);
  CHECK(expected.norms[0] < all.norms[0]);
  for (const int64_t stage : {1, 2, 3})
    for (const OffloadDevice device :
         {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme})
      for (const bool overlap : {false, true}) {
        INFO("stage " << stage << ", " << name_of(device) << (overlap ? ", overlap" : ""));
        Config config = testing::config_of_stage(stage);
        config.zero.overlap_comm = overlap;
        if (device != OffloadDevice::kNone) testing::offload_to(config, device);
        Values kept;
        const Trained found = train_selected(config, trains, kTrainedSteps, &kept);
        CHECK(kept == frozen);
        if (stage == 1) {
          CHECK(found.losses == expected.losses);
          CHECK(found.norms == expected.norms);
          CHECK(found.state == expected.state);
        }
        // Two micro-batches are added either before or after the reduction over ranks, depending on
        // the stage.
        for (int step = 0; step < kTrainedSteps; ++step) {
          CHECK(found.losses[step] == Approx(expected.losses[step]).epsilon(1e-6));
          CHECK(found.norms[step] == Approx(expected.norms[step]).epsilon(1e-5));
        }
        CHECK(found.state.size() == expected.state.size());
      }
}

/// Returns the config without clipping, so that the gradients of one step do not depend on which
/// other parameters train.
Config without_clipping(Config config) {
  config.gradient_clipping = 0;
  return config;
}

TEST_CASE(
    "trained tensors get the same bits when others are frozen, however little of backward "
    "remains") {
  const std::vector<std::pair<const char*, const char*>> choices{
      {"one block", "layers.1."},
      {"one linear layer", "layers.2.mlp.down_proj"},
      {"the last norm", "model.norm"},
      {"the head", "lm_head"},
      {"above one block", "layers.[12].|norm|lm_head"}};
  for (const auto& [what, only] : choices)
    for (const int64_t stage : {0, 3})
      for (const int tensor : {1, 2})
        for (const RecomputeLevel recompute : {RecomputeLevel::kNone, RecomputeLevel::kFull}) {
          INFO(what << ", stage " << stage << ", " << tensor << " tensor ranks, recompute "
                    << name_of(recompute));
          Config config = without_clipping(testing::config_of_stage(stage));
          config.recompute.policy = recompute;
          config.activation_checkpointing.cpu_checkpointing = recompute == RecomputeLevel::kFull;
          const ModelConfig model = testing::model_of_many_blocks(false);
          const testing::TrainingMesh mesh{.tensor = tensor, .shards = 2, .micro_batches = 4};
          const Trained all = testing::train_on_mesh(config, model, mesh, 1);
          config.train.only = {only};
          const Trained some = testing::train_on_mesh(config, model, mesh, 1);
          CHECK(some.losses == all.losses);
          CHECK(some.norms[0] < all.norms[0]);
          CHECK(some.state.size() < all.state.size());
          REQUIRE_FALSE(some.state.empty());
          for (const auto& [name, bytes] : some.state) {
            INFO(name);
            CHECK(bytes == all.state.at(name));
          }
        }
}

}  // namespace
}  // namespace ftrun
