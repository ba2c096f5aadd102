#include "mesh_runs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun::fixtures {
namespace {

constexpr int64_t kGlobalMicroBatches = 12;

double relative(double found, double expected) {
  return std::abs(found - expected) / std::abs(expected);
}

/// ||found - expected|| / ||expected|| of each parameter.
std::map<std::string, double> weight_differences(const TrainingOutcome& found,
                                                 const TrainingOutcome& expected) {
  std::map<std::string, double> differences;
  for (const auto& [name, bytes] : expected.state) {
    if (!name.ends_with(".param")) continue;
    const auto* a = reinterpret_cast<const float*>(found.state.at(name).data());
    const auto* b = reinterpret_cast<const float*>(bytes.data());
    double difference = 0, size = 0;
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
      difference += std::pow(double{a[i]} - b[i], 2);
      size += std::pow(double{b[i]}, 2);
    }
    differences[name] = std::sqrt(difference / size);
  }
  return differences;
}

}  // namespace

std::string TrainingMesh::text() const {
  return cat("tensor ", tensor, ", shards ", shards, ", replicas ", replicas, ", stages ", stages);
}

Config meshed(Config config, const TrainingMesh& mesh) {
  config.parallel.tensor = mesh.tensor;
  config.parallel.data = mesh.data();
  config.parallel.data_replicate = mesh.replicas;
  config.parallel.pipeline = mesh.stages;
  config.gradient_accumulation_steps = kGlobalMicroBatches / mesh.data();
  return config;
}

void give_batches(RankRig& rig, int64_t step) {
  const StateOptions& place = rig.plan.options.state;
  rig.batches.resize(static_cast<size_t>(rig.config.gradient_accumulation_steps));
  for (size_t slot = 0; slot < rig.batches.size(); ++slot) {
    const auto number = slot * static_cast<size_t>(data_ranks(place)) +
                        static_cast<size_t>(data_index(place));
    rig.batches[slot] =
        random_batch(rig.plan.train.model.batch, static_cast<uint64_t>(step) * 100 + number,
                     rig.plan.train.model.vocab_rows);
  }
}

StateOptions options_of(const TrainingMesh& mesh, const Config& config, const ModelConfig& model) {
  return plan_steps(meshed(config, mesh), model, 0).options.state;
}

TrainingOutcome train_on(const Config& plain, const ModelConfig& model, const TrainingMesh& mesh,
                         int64_t steps) {
  TrainingOutcome outcome;
  WholeState whole;
  const Config config = meshed(plain, mesh);
  on_mesh(options_of(mesh, config, model), [&](Rendezvous& rendezvous, const RankGroups& open) {
    RankRig rig(config, model, open);
    for (int64_t step = 1; step <= steps; ++step) {
      give_batches(rig, step);
      StepRun run = rig.prepared(step);
      rig.train_executor.run(run);
      require(run.finite, "the steps are finite");
      if (rendezvous.rank() > 0) continue;
      outcome.losses.push_back(run.loss_sum / run.counted_tokens);
      outcome.norms.push_back(run.gradient_norm);
    }
    whole.add(rig.state.slices());
  });
  outcome.state = whole.take();
  return outcome;
}

void require_same(const TrainingOutcome& found, const TrainingOutcome& expected) {
  REQUIRE(found.losses.size() == expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    REQUIRE(relative(found.losses[i], expected.losses[i]) < 1e-5);
    REQUIRE(relative(found.norms[i], expected.norms[i]) < 5e-5);
  }
  for (const auto& [tensor, difference] : weight_differences(found, expected)) {
    INFO(tensor);
    // A key's bias moves all scores of a query alike, rotation apart: of a gradient that is next to
    // nothing AdamW makes full steps, rounding included.
    REQUIRE(difference < (tensor.ends_with("k_proj.bias.param") ? 1e-3 : 1e-4));
  }
}

}  // namespace ftrun::fixtures
