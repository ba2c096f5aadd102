#include <cmath>

#include "kernels/kernels.h"
#include "rig.h"

#include <catch2/catch.hpp>

// Tensor parallelism changes which rank computes what, not what is computed: one process that trains
// the same global batch is the oracle, up to rounding.

namespace ftrun {
namespace {

using fixtures::RankRig;

/// Ranks along each dimension of a mesh.
struct TensorMesh {
  int tensor = 1;
  int shards = 1;
  int replicas = 1;

  int data() const { return shards * replicas; }
  std::string text() const {
    return cat("tensor ", tensor, ", shards ", shards, ", replicas ", replicas);
  }
};

/// What training leaves: each step's loss and norm, and the weights.
struct TensorOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, std::vector<std::byte>> state;
};

/// Micro-batches of a global batch, on all data-parallel ranks together.
constexpr int64_t kGlobalMicroBatches = 12;

Config meshed(Config config, const TensorMesh& mesh) {
  config.parallel.tensor = mesh.tensor;
  config.parallel.data = mesh.data();
  config.parallel.data_replicate = mesh.replicas;
  config.gradient_accumulation_steps = kGlobalMicroBatches / mesh.data();
  return config;
}

/// Data-parallel rank d takes micro-batches d, d + n, ... of n ranks.
void give_batches(RankRig& rig, int64_t step) {
  const StateOptions& place = rig.plan.options.state;
  rig.batches.resize(static_cast<size_t>(rig.config.gradient_accumulation_steps));
  for (size_t slot = 0; slot < rig.batches.size(); ++slot) {
    const auto number = slot * static_cast<size_t>(data_ranks(place)) +
                        static_cast<size_t>(data_index(place));
    rig.batches[slot] =
        fixtures::random_batch(rig.plan.train.model.batch, static_cast<uint64_t>(step) * 100 + number,
                               rig.plan.train.model.vocab_rows);
  }
}

TensorOutcome train_on(const Config& plain, const ModelConfig& model, const TensorMesh& mesh, int64_t steps) {
  TensorOutcome outcome;
  fixtures::WholeState whole;
  const Config config = meshed(plain, mesh);
  StateOptions groups;
  groups.shard.count = config.zero.stage > 0 ? mesh.shards : mesh.data();
  groups.replicas = config.zero.stage > 0 ? mesh.replicas : 1;
  groups.tensor.count = mesh.tensor;
  groups.tensor_copies = std::max(1, mesh.tensor / static_cast<int>(model.kv_heads));
  fixtures::on_mesh(groups, [&](Rendezvous& rendezvous, const RankGroups& open) {
    RankRig rig(config, model, open);
    for (int64_t step = 1; step <= steps; ++step) {
      give_batches(rig, step);
      StepRun run = rig.prepared(step);
      rig.trainer.run(run);
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

double relative(double found, double expected) {
  return std::abs(found - expected) / std::abs(expected);
}

/// ||found - expected|| / ||expected|| of the largest tensor-wise difference among the parameters.
double weight_difference(const TensorOutcome& found, const TensorOutcome& expected) {
  double worst = 0;
  for (const auto& [name, bytes] : expected.state) {
    if (!name.ends_with(".param")) continue;
    const auto* a = reinterpret_cast<const float*>(found.state.at(name).data());
    const auto* b = reinterpret_cast<const float*>(bytes.data());
    double difference = 0, size = 0;
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
      difference += std::pow(double{a[i]} - b[i], 2);
      size += std::pow(double{b[i]}, 2);
    }
    worst = std::max(worst, std::sqrt(difference / size));
  }
  return worst;
}

void require_same(const TensorOutcome& found, const TensorOutcome& expected) {
  REQUIRE(found.losses.size() == expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    REQUIRE(relative(found.losses[i], expected.losses[i]) < 1e-5);
    REQUIRE(relative(found.norms[i], expected.norms[i]) < 5e-5);
  }
  REQUIRE(weight_difference(found, expected) < 1e-4);
}

TEST_CASE("tensor ranks train what one process trains, at every ZeRO stage") {
  set_kernel_threads(1);
  const ModelConfig model = fixtures::small_model();
  for (const int64_t stage : {0, 1, 2, 3}) {
    const Config config = fixtures::run_of_stage(stage);
    const TensorOutcome expected = train_on(config, model, {}, 3);
    for (const TensorMesh& mesh : {TensorMesh{2}, TensorMesh{4}, TensorMesh{2, 2}}) {
      INFO("stage " << stage << ", " << mesh.text());
      require_same(train_on(config, model, mesh, 3), expected);
    }
  }
}

}  // namespace
}  // namespace ftrun
