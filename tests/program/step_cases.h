#pragma once

#include <initializer_list>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "axes/tensor/split.h"
#include "cluster/rank_mesh.h"
#include "model/freeze.h"
#include "models.h"
#include "schedule_text.h"

namespace ftrun::testing {

/// Mesh describes the ranks of a run. Stages of the pipeline are the slowest axis, then replicas,
/// then shards, and tensor ranks the fastest: within a replica, rank r is tensor rank r % tensor of
/// shard r / tensor % shards. Each `secondary_shards` neighboring shards form a node.
struct Mesh {
  int shards = 1;
  int replicas = 1;
  int secondary_shards = 1;
  int tensor = 1;
  int stages = 1;
  /// The number of neighboring shards that share each sequence; it divides `shards`.
  int context = 1;
  /// Returns the number of ranks that have different tokens.
  int data() const { return shards * replicas; }
  int ranks() const { return data() * tensor * stages; }
  RankMesh grid() const {
    return RankMesh({.pipeline = stages,
                     .data_replicate = replicas,
                     .data = shards / context,
                     .context = context,
                     .tensor = tensor});
  }
};

template <typename T>
T pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
}

inline bool decays_matrices(const TensorInfo& tensor) {
  return tensor.shape.size() > 1;
}

/// StepCase is a model with its mesh and the options of its step, from which the programs of ranks
/// are built.
struct StepCase {
  PartitionedModel built;
  StepOptions options;
  Mesh mesh;
  ModelConfig config;

  /// Returns the options of a rank.
  StepOptions options_of_rank(int rank) const {
    StepOptions rank_options = options;
    const int shard = rank / mesh.tensor % mesh.shards;
    rank_options.state.data = {mesh.shards / mesh.context, shard / mesh.context};
    rank_options.state.context = {mesh.context, shard % mesh.context};
    rank_options.state.replicas = mesh.replicas;
    rank_options.state.replica = rank / mesh.tensor / mesh.shards % mesh.replicas;
    rank_options.state.pipeline_stage = rank / mesh.tensor / mesh.data();
    rank_options.state.tensor = {mesh.tensor, rank % mesh.tensor};
    rank_options.state.tensor_copies = kv_copies(config, built.model.split);
    return rank_options;
  }

  /// Builds the program of a rank from the model of tensor rank 0. Models of other tensor ranks
  /// differ only in attributes of operations and in the offsets of their parts of tensors.
  StepProgram step(int rank) const {
    return build_training_step(built.model, built.partition, options_of_rank(rank));
  }
  StepProgram last_step() const { return step(mesh.ranks() - 1); }

  /// Builds the programs of all ranks.
  std::vector<StepProgram> steps() const {
    std::vector<StepProgram> all;
    for (int r = 0; r < mesh.ranks(); ++r) all.push_back(step(r));
    return all;
  }

  /// Returns the same ranks' model for another kind of pass.
  ModelDescription model_for(GraphMode mode) const {
    return build_model(config, built.model.batch, mode, built.model.dtypes, {}, built.model.split);
  }

  std::string text() const {
    const StateOptions& s = options.state;
    return cat(
        "stage ", s.zero_stage, ", ", mesh.shards, " shards (", mesh.context, " a row) x ",
        mesh.replicas, " replicas x ", mesh.tensor, " tensor ranks x ", mesh.stages, " stages of ",
        s.pipeline.chunks(), " chunks", built.model.split.sequence ? " (by tokens)" : "",
        ", nodes of ", s.secondary_shards, ", ", options.micro_batches,
        " micro-batches, parameters on ", tier_name(s.parameter_tier), ", optimizer on ",
        tier_name(s.optimizer_tier), " (", s.optimizer_ratio, "), compute ",
        dtype_name(built.model.dtypes.compute), ", gradients ",
        dtype_name(built.model.dtypes.gradients), ", travel as ", dtype_name(s.communication),
        ", master ", dtype_name(s.master), ", buckets ", options.bucket_elements, "/",
        options.gather_bucket_elements, ", prefetch ", options.prefetch_elements, ", live ",
        options.max_live_elements, ", reuse ", options.reuse_distance, ", ",
        schedule_text(make_schedule(options.schedule, mesh.stages, s.pipeline.chunks(), 0,
                                    options.micro_batches)),
        options.overlap ? ", overlap" : "", options.offload_activations ? ", activations" : "");
  }
};

/// Returns a step case that trains a small model in two micro-batches on this mesh. Its units are
/// cut into blocks of 64 elements, and each unit is a separate bucket.
inline StepCase small_step_case(const ModelConfig& config, Mesh mesh) {
  StepCase step_case{
      build(config, GraphMode::kTrain, UnitGranularity::kLayer, {1, 4}, {mesh.tensor, 0, true}),
      {},
      mesh,
      config};
  step_case.built.partition =
      build_units(step_case.built.model, UnitGranularity::kLayer, {64, INT64_MAX});
  step_case.options.micro_batches = 2;
  step_case.options.bucket_elements = 1;
  return step_case;
}

inline ModelDtypes random_dtypes(std::mt19937_64& random) {
  ModelDtypes dtypes;
  dtypes.compute = pick(random, {DType::kF32, DType::kBF16, DType::kF16});
  dtypes.gradients = random() % 2 == 0 ? dtypes.compute : DType::kF32;
  return dtypes;
}

inline RecomputeOptions random_recompute(std::mt19937_64& random) {
  RecomputeOptions recompute;
  recompute.policy.level =
      pick(random, {RecomputeLevel::kNone, RecomputeLevel::kSelective, RecomputeLevel::kFull});
  recompute.every = static_cast<int64_t>(1 + random() % 2);
  return recompute;
}

inline PartitionedModel random_partitioned_model(std::mt19937_64& random, const ModelConfig& config,
                                                 const TensorSplit& split = {}) {
  PartitionedModel built;
  const BatchShape batch{static_cast<int64_t>(1 + random() % 2), 4};
  built.model = build_model(config, batch, GraphMode::kTrain, random_dtypes(random),
                            random_recompute(random), split);
  const SmallTensorThresholds small{pick<int64_t>(random, {0, 0, 64, 500, 10'000}),
                                    random() % 3 == 0 ? int64_t{200} : INT64_MAX};
  built.partition = build_units(built.model, kGranularities[random() % 3], small);
  return built;
}

inline void draw_tiers(std::mt19937_64& random, StateOptions& state) {
  const auto tier = [&] { return pick(random, {Tier::kDevice, Tier::kHost, Tier::kDisk}); };
  if (state.zero_stage > 0) state.optimizer_tier = tier();
  if (state.zero_stage == 3) state.parameter_tier = tier();
  if (state.zero_stage == 3) state.optimizer_ratio = pick(random, {1.0, 1.0, 0.5, 0.01});
  state.update_elements = kUnitBlock * static_cast<int64_t>(1 + random() % 3);
}

inline StepOptions random_options(std::mt19937_64& random, const PartitionedModel& built,
                                  Mesh mesh) {
  StepOptions options;
  options.micro_batches = static_cast<int32_t>(1 + random() % 3);
  options.schedule = pick(random, {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B,
                                   PipelineSchedule::k1F1B, PipelineSchedule::kZbH1});
  StateOptions& state = options.state;
  state.zero_stage =
      mesh.replicas > 1 ? static_cast<int>(1 + random() % 3) : static_cast<int>(random() % 4);
  state.reduce_scatter = random() % 3 != 0;
  const ModelDtypes& dtypes = built.model.dtypes;
  state.communication = pick(random, {dtypes.gradients, dtypes.compute, DType::kF32});
  state.master = dtypes.compute == DType::kBF16 && random() % 3 == 0 ? DType::kBF16 : DType::kF32;
  const DType kept = random() % 4 == 0 ? DType::kBF16 : DType::kF32;
  state.optimizer_states.assign(random() % 3, {kept});
  state.decays = decays_matrices;
  draw_tiers(random, state);
  const auto size = [&] { return pick<int64_t>(random, {1, 5000, 10'000, 30'000, 1'000'000}); };
  options.bucket_elements = size();
  options.gather_bucket_elements = size();
  options.prefetch_elements = pick<int64_t>(random, {0, 5000, 20'000, 1'000'000});
  options.max_live_elements = pick<int64_t>(random, {1, 20'000, 40'000, 1'000'000});
  options.reuse_distance = pick<int64_t>(random, {0, 0, 10'000, 40'000, 1'000'000});
  options.overlap = random() % 3 != 0;
  options.offload_activations = random() % 3 == 0;
  state.gradient_buffer_bytes = pick<int64_t>(random, {1, 40'000, 1'000'000});
  return options;
}

inline int random_divisor(std::mt19937_64& random, int number) {
  const int divisor = static_cast<int>(1 + random() % static_cast<uint64_t>(number));
  return number % divisor == 0 ? divisor : random_divisor(random, number);
}

/// Draws a mesh of at most eight ranks.
inline Mesh random_mesh(std::mt19937_64& random) {
  Mesh mesh{static_cast<int>(1 + random() % 4), static_cast<int>(1 + random() % 2)};
  mesh.tensor = pick(random, {1, 2, 4});
  while (mesh.ranks() > 8) mesh.tensor /= 2;
  return mesh;
}

/// Draws a model that can be divided among tensor ranks; it may have fewer key/value heads than
/// there are ranks.
inline ModelConfig random_config(std::mt19937_64& random, int tensor) {
  ModelConfig config = random_config(random);
  config.kv_heads = pick<int64_t>(random, {1, 2});
  config.feed_forward -= config.feed_forward % tensor;
  config.vocab_rows -= config.vocab_rows % tensor;
  return config;
}

inline StepCase random_step_case(std::mt19937_64& random) {
  Mesh mesh = random_mesh(random);
  ModelConfig config = random_config(random, mesh.tensor);
  PartitionedModel built =
      random_partitioned_model(random, config, {mesh.tensor, 0, random() % 2 == 0});
  StepOptions options = random_options(random, built, mesh);
  mesh.secondary_shards = options.state.secondary_shards = random_divisor(random, mesh.shards);
  return {std::move(built), std::move(options), mesh, std::move(config)};
}

/// Adds a pipeline to a step case, with a random number of layers in each stage.
inline void add_pipeline(std::mt19937_64& random, StepCase& step_case, PipelineSchedule kind,
                         int stages, int chunks) {
  const auto layers = static_cast<int32_t>(step_case.built.model.layers.size());
  const int model_chunks = stages * chunks;
  std::vector<int32_t> cuts(static_cast<size_t>(layers) - 1);
  std::iota(cuts.begin(), cuts.end(), 1);
  std::shuffle(cuts.begin(), cuts.end(), random);
  cuts.resize(static_cast<size_t>(model_chunks) - 1);
  std::sort(cuts.begin(), cuts.end());
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(layers);
  StateOptions& state = step_case.options.state;
  step_case.options.schedule = kind;
  step_case.mesh.stages = stages;
  state.pipeline = PipelineLayout(stages, chunks, traits_of(kind).placement, cuts);
  state.ties_first_and_last_stage =
      step_case.built.model.tied && state.pipeline.stage_of(model_chunks - 1) != 0;
}

/// Draws a step case of at most eight ranks, with at least two stages.
inline StepCase random_pipeline_case(std::mt19937_64& random) {
  Mesh mesh = random_mesh(random);
  const int stages = pick(random, {2, 2, 3, 4});
  while (mesh.ranks() * stages > 8) {
    if (mesh.tensor > 1)
      mesh.tensor /= 2;
    else if (mesh.replicas > 1)
      mesh.replicas = 1;
    else
      --mesh.shards;
  }
  const PipelineSchedule kind = pick(
      random, {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved,
               PipelineSchedule::kZbH1, PipelineSchedule::kZbV});
  const int fixed = required_chunks(kind);
  const int chunks = fixed > 0 ? fixed : static_cast<int>(1 + random() % 3);
  ModelConfig config = random_config(random, mesh.tensor);
  config.layers = stages * chunks - 2 + static_cast<int64_t>(1 + random() % 3);
  config.windows.assign(static_cast<size_t>(config.layers), 0);
  PartitionedModel built =
      random_partitioned_model(random, config, {mesh.tensor, 0, random() % 2 == 0});
  // Units of the whole model are left out, because such a unit would be on all stages.
  built.partition = build_units(built.model, kGranularities[random() % 2],
                                {pick<int64_t>(random, {0, 64, 500, 10'000}), INT64_MAX});
  StepOptions options = random_options(random, built, mesh);
  options.micro_batches = static_cast<int32_t>(1 + random() % 5);
  while (!accepts_micro_batches(kind, stages, options.micro_batches)) ++options.micro_batches;
  mesh.secondary_shards = options.state.secondary_shards = random_divisor(random, mesh.shards);
  StepCase step_case{std::move(built), std::move(options), mesh, std::move(config)};
  add_pipeline(random, step_case, kind, stages, chunks);
  return step_case;
}

/// Returns the step case with an optimizer whose states are 8-bit codes in tensors from a random
/// size on. In most models here, blocks of codes extend over the borders of tensors' parts.
inline StepCase with_8bit_states(const StepCase& step_case, std::mt19937_64& random) {
  StepCase out = step_case;
  StateOptions& state = out.options.state;
  state.has_8bit_states = [least = pick<int64_t>(random, {1, 200, 300, 700})](
                              const TensorInfo& tensor) { return tensor.numel() >= least; };
  const auto states = static_cast<size_t>(1 + random() % 2);
  state.optimizer_states.assign(states, {});
  state.optimizer_states.insert(state.optimizer_states.end(), states,
                                {.dtype = DType::kU8, .is_8bit = true});
  state.optimizer_states.insert(state.optimizer_states.end(), states,
                                {.is_8bit = true, .block = kTensorBlock});
  const uint64_t granularities =
      step_case.mesh.stages > 1 ? 2 : 3;  // else a unit would be on all stages
  out.built.partition =
      build_units(out.built.model, kGranularities[random() % granularities],
                  {pick<int64_t>(random, {0, 64, 500}), INT64_MAX}, state.has_8bit_states);
  return out;
}

/// Returns the step case with some parameters frozen, the same ones on all ranks: `share` percent
/// of them, and at least one.
inline StepCase with_frozen(const StepCase& step_case, std::mt19937_64& random, uint64_t share) {
  StepCase out = step_case;
  std::set<TensorId> frozen;
  for (const Layer& layer : step_case.built.model.layers)
    for (const GraphParam& param : layer.params)
      if (frozen.empty() || random() % 100 < share)
        frozen.insert(param.tensors.begin(), param.tensors.end());
  const TensorInfo* const first = step_case.built.model.tensors.data();
  std::set<std::string> names;
  for (const TensorId id : frozen) names.insert(first[id].name);
  out.built.model = freeze(step_case.built.model,
                           [&](const TensorInfo& tensor) { return !names.contains(tensor.name); });
  out.built.partition = build_units(out.built.model, kGranularities[random() % 3],
                                    {pick<int64_t>(random, {0, 64, 500}), INT64_MAX});
  return out;
}

/// Returns the step case where only layers from a random one on train, the same on all ranks, so
/// that backward ends at the first of these. At least one layer is frozen.
inline StepCase with_frozen_below(const StepCase& step_case, std::mt19937_64& random) {
  StepCase out = step_case;
  const std::vector<Layer>& layers = step_case.built.model.layers;
  const size_t first = random() % (layers.size() + 1);
  std::set<std::string> trained;
  const auto trains_too = [&](size_t l) { return l == first || random() % 3 != 0; };
  for (size_t l = first; l < layers.size(); ++l)
    for (const GraphParam& param : layers[l].params)
      if (trains_too(l))
        for (const TensorId id : param.tensors)
          trained.insert(step_case.built.model.tensor(id).name);
  out.built.model = freeze(step_case.built.model,
                           [&](const TensorInfo& tensor) { return trained.contains(tensor.name); });
  const uint64_t granularities =
      step_case.mesh.stages > 1 ? 2 : 3;  // else a unit would be on all stages
  out.built.partition = build_units(out.built.model, kGranularities[random() % granularities],
                                    {pick<int64_t>(random, {0, 64, 500}), INT64_MAX});
  return out;
}

/// Returns the plainest step case on the same ranks: no sharding, buckets, overlap or other tiers.
inline StepCase plain(const StepCase& step_case) {
  StepCase out = step_case;
  out.mesh = {.shards = step_case.mesh.data(),
              .tensor = step_case.mesh.tensor,
              .context = step_case.mesh.context};
  out.options = {
      .micro_batches = step_case.options.micro_batches, .bucket_elements = 1, .overlap = false};
  out.options.state.optimizer_states = step_case.options.state.optimizer_states;
  out.options.state.communication = step_case.built.model.dtypes.gradients;
  out.options.state.decays = step_case.options.state.decays;
  out.options.state.has_8bit_states = step_case.options.state.has_8bit_states;
  return out;
}

}  // namespace ftrun::testing
