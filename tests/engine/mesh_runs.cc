#include "mesh_runs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

double relative_difference(double found, double expected) {
  return std::abs(found - expected) / std::abs(expected);
}

/// Returns ||found - expected|| / ||expected|| of each parameter.
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

ModelConfig with_layers(ModelConfig model, int64_t layers) {
  model.layers = layers;
  model.windows.assign(static_cast<size_t>(layers), 0);
  return model;
}

std::string TrainingMesh::text() const {
  return cat("tensor ", tensor, ", shards ", shards, ", replicas ", replicas, ", stages ", stages,
             ", ", micro_batches, " micro-batches");
}

Config config_on_mesh(Config config, const TrainingMesh& mesh) {
  config.parallel.tensor = mesh.tensor;
  config.parallel.data = mesh.data();
  config.parallel.data_replicate = mesh.replicas;
  config.parallel.pipeline = mesh.stages;
  config.gradient_accumulation_steps = mesh.micro_batches / mesh.data();
  return config;
}

MicroBatch micro_batch_of_step(const ModelDescription& model, int64_t step, int64_t number) {
  return random_batch(model.batch, static_cast<uint64_t>(step * 100 + number), model.vocab_rows);
}

void set_batches(RankFixture& fixture, int64_t step) {
  const GroupPlace place = data_parallel_place(fixture.plan.options.state);
  fixture.batches.resize(static_cast<size_t>(fixture.config.gradient_accumulation_steps));
  for (size_t slot = 0; slot < fixture.batches.size(); ++slot) {
    const auto number = static_cast<int64_t>(slot) * place.count + place.index;
    fixture.batches[slot] = micro_batch_of_step(fixture.plan.train.model, step, number);
  }
}

StateOptions options_of(const TrainingMesh& mesh, const Config& config, const ModelConfig& model) {
  return plan_steps(config_on_mesh(config, mesh), model, 0).options.state;
}

void train_steps(RankFixture& fixture, int64_t steps, TrainingOutcome& outcome) {
  for (int64_t step = 1; step <= steps; ++step) {
    const StepRun run = fixture.train(step);
    require(run.result.finite, "the steps are finite");
    if (fixture.rank > 0) continue;
    outcome.losses.push_back(run.result.loss_sum);
    outcome.norms.push_back(run.result.gradient_norm);
  }
}

std::vector<std::pair<const char*, std::function<void(Config&)>>> bit_preserving_changes(
    int64_t stage) {
  std::vector<std::pair<const char*, std::function<void(Config&)>>> changes{
      {"overlap, tiny buckets",
       [](Config& c) {
         c.zero.overlap_comm = true;
         c.zero.reduce_bucket_size = c.zero.allgather_bucket_size = 1;
       }},
      {"full recompute, inputs on the host", [](Config& c) {
         c.recompute.policy = RecomputeLevel::kFull;
         c.activation_checkpointing.cpu_checkpointing = true;
       }}};
  if (stage > 0)
    changes.emplace_back("optimizer on the host, overlap", [](Config& c) {
      offload_to(c, OffloadDevice::kCpu);
      c.zero.overlap_comm = true;
    });
  if (stage == 3)
    changes.emplace_back("parameters kept and brought early", [](Config& c) {
      c.zero.overlap_comm = true;
      c.zero.max_reuse_distance = 1'000'000;
      c.zero.prefetch_bucket_size = 20'000;
    });
  return changes;
}

StepRun train_step(RankFixture& fixture, int64_t step) {
  set_batches(fixture, step);
  StepRun run = fixture.prepare_step(step);
  run.scalars.rounding_key = static_cast<uint64_t>(step);
  fixture.train_executor.run(run);
  require(run.result.finite, "the steps are finite");
  return run;
}

SavedState state_saved_on(const Config& plain, const ModelConfig& model, const TrainingMesh& mesh,
                          const std::function<void(Rendezvous&, RankFixture&)>& work) {
  CombinedState whole;
  const Config config = config_on_mesh(plain, mesh);
  run_on_mesh(options_of(mesh, config, model),
              [&](Rendezvous& rendezvous, const RankCommunicators& open) {
                RankFixture fixture(config, model, open);
                work(rendezvous, fixture);
                whole.add(fixture.state.slices());
              });
  return whole.contents();
}

TrainingOutcome train_on_mesh(const Config& plain, const ModelConfig& model,
                              const TrainingMesh& mesh, int64_t steps) {
  TrainingOutcome outcome;
  outcome.state =
      state_saved_on(plain, model, mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
        for (int64_t step = 1; step <= steps; ++step) {
          const StepRun run = train_step(fixture, step);
          if (rendezvous.rank() > 0) continue;
          outcome.losses.push_back(run.result.loss_sum / run.result.counted_tokens);
          outcome.norms.push_back(run.result.gradient_norm);
        }
      });
  return outcome;
}

std::map<std::string, std::vector<float>> tensors_collected_on(const Config& plain,
                                                               const ModelConfig& model,
                                                               const TrainingMesh& mesh) {
  std::map<std::string, std::vector<float>> collected;
  state_saved_on(plain, model, mesh, [&](Rendezvous& rendezvous, RankFixture& fixture) {
    const bool receives = rendezvous.rank() == 0;
    // One replica collects; the others would only repeat it.
    if (fixture.plan.options.state.replica > 0) return;
    for (const TensorInfo& tensor : fixture.plan.train.model.tensors) {
      const int64_t size = tensor.numel();
      std::vector<float> values(receives ? static_cast<size_t>(size) : 0);
      const int64_t cuts[] = {0, 1, size / 3, size / 2, size - 1, size};
      for (size_t i = 0; i + 1 < std::size(cuts); ++i)
        fixture.state.gather_elements(
            tensor.name, cuts[i], cuts[i + 1], receives, *fixture.communicators.host_model,
            receives ? std::span(values).subspan(static_cast<size_t>(cuts[i]),
                                                 static_cast<size_t>(cuts[i + 1] - cuts[i]))
                     : std::span<float>());
      if (receives) collected[tensor.name] = std::move(values);
    }
  });
  return collected;
}

Differences differences(const TrainingOutcome& found, const TrainingOutcome& expected) {
  require(found.losses.size() == expected.losses.size(), "as many steps");
  Differences all;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    all.loss = std::max(all.loss, relative_difference(found.losses[i], expected.losses[i]));
    all.norm = std::max(all.norm, relative_difference(found.norms[i], expected.norms[i]));
  }
  all.weights = weight_differences(found, expected);
  return all;
}

double weight_bound(const std::string& parameter) {
  return parameter.ends_with("k_proj.bias.param") ? 1e-3 : 1e-4;
}

void require_identical(const TrainingOutcome& found, const TrainingOutcome& expected) {
  REQUIRE(found.losses == expected.losses);
  REQUIRE(found.norms == expected.norms);
  REQUIRE(found.state == expected.state);
}

void require_within_bounds(const TrainingOutcome& found, const TrainingOutcome& expected) {
  const Differences all = differences(found, expected);
  REQUIRE(all.loss < kLossBound);
  REQUIRE(all.norm < kGradientNormBound);
  for (const auto& [tensor, difference] : all.weights) {
    INFO(tensor);
    REQUIRE(difference < weight_bound(tensor));
  }
}

}  // namespace ftrun::testing
