#include "program/step_plan.h"

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "axes/pipeline/balance_stages.h"
#include "models.h"
#include "partition/flat_layout.h"
#include "partition/partition_text.h"
#include "program/memory_plan.h"
#include "program/traffic.h"
#include "sim/program_checker.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns a resolved config for four ranks.
Config base_config(int64_t stage) {
  Config config;
  config.parallel.data = 4;
  config.zero.stage = stage;
  config.zero.overlap_comm = true;
  config.train_micro_batch_size_per_gpu = 1;
  config.gradient_accumulation_steps = 2;
  config.data.sequence_length = 4;
  return config;
}

StepPlan plan_of(
    int64_t stage, const std::function<void(Config&)>& change = [](Config&) {}, int rank = 0) {
  Config config = base_config(stage);
  change(config);
  return plan_steps(config, small_config(2, false), rank);
}

TEST_CASE("data-parallel ranks are shards times replicas, and all shards without sharding") {
  Config config = base_config(3);
  config.parallel.data = 8;
  config.parallel.data_replicate = 2;
  CHECK(rank_mesh(config).size(MeshAxis::kData) == 4);
  CHECK(rank_mesh(config).size(MeshAxis::kDataReplicate) == 2);
  const StateOptions state = plan_steps(config, small_config(1, true), 6).options.state;
  CHECK(state.data.count == 4);
  CHECK(state.data.index == 2);
  CHECK(state.replicas == 2);
  CHECK(state.replica == 1);
  config.zero.stage = 0;
  CHECK(rank_mesh(config).size(MeshAxis::kData) == 8);
  CHECK(rank_mesh(config).size(MeshAxis::kDataReplicate) == 1);
  config.parallel.data = 0;
  config.parallel.data_replicate = 1;
  CHECK(rank_mesh(config).world_size() == 1);
}

TEST_CASE("context ranks read the same samples, but hold different parts of the state") {
  Config config = base_config(3);
  config.parallel.data = 4;
  config.parallel.data_replicate = 2;
  config.parallel.context = 3;
  const RankMesh mesh = rank_mesh(config);
  REQUIRE(mesh.world_size() == 12);
  std::map<int, std::vector<int>> readers;                 // by index of samples
  std::map<std::pair<int, int>, std::vector<int>> owners;  // by replica and index of the shard
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const StepPlan plan = plan_steps(config, small_config(1, true), rank);
    const StateOptions& state = plan.options.state;
    CHECK(data_parallel_place(state).count == 4);
    CHECK(state_place(state).count == 6);
    CHECK(count_gradient_ranks(state) == 12);
    CHECK(is_first_of_stage(state) == (rank == 0));
    readers[data_parallel_place(state).index].push_back(rank);
    owners[{state.replica, state_place(state).index}].push_back(rank);
    const Program& program = plan.train.program;
    CHECK(program.place_in_group(group_along(program, "data+context")).count == 6);
    CHECK(program.place_in_group(group_along(program, "data+context")).index ==
          state_place(state).index);
    CHECK(program.place_in_group(group_along(program, "context")).index == rank % 3);
    CHECK(program.place_in_group(group_along(program, "data_replicate")).index == rank / 6);
  }
  CHECK(readers == std::map<int, std::vector<int>>{
                       {0, {0, 1, 2}}, {1, {3, 4, 5}}, {2, {6, 7, 8}}, {3, {9, 10, 11}}});
  CHECK(owners.size() == 12);
  for (const auto& [place, ranks] : owners)
    CHECK(ranks == std::vector<int>{place.first * 6 + place.second});
}

TEST_CASE("context ranks change what follows from the state, not what follows from samples") {
  const auto plan = [](int64_t data, int64_t context) {
    Config config = base_config(2);
    config.parallel.data = data;
    config.parallel.context = context;
    config.parallel.pipeline = 2;
    config.parallel.virtual_stages = 1;
    config.gradient_accumulation_steps = 8;
    config.train.evaluation.samples = 5;
    return plan_steps(config, small_config(4, false), 0);
  };
  const StepPlan two = plan(2, 1), both = plan(2, 2), four = plan(4, 1);
  CHECK(two.evaluation_micro_batches == 3);
  CHECK(both.evaluation_micro_batches == 3);
  CHECK(four.evaluation_micro_batches == 2);
  CHECK(both.options.bucket_elements == four.options.bucket_elements);
  CHECK(both.options.bucket_elements < two.options.bucket_elements);
  const auto theory = [](const StepPlan& step) {
    return compare_traffic_with_theory(step.train.program, step.train.model, step.partition,
                                       step.options);
  };
  CHECK(theory(both).ranks == 4);
  CHECK(theory(both).bytes == theory(four).bytes);
}

TEST_CASE(
    "text generation is planned if the config asks for it, within training's memory if that is "
    "enough") {
  const auto plan = [](int64_t prompt, int64_t tokens, int64_t row) {
    return plan_of(3, [&](Config& config) {
      config.data.sequence_length = row;
      config.train.generate = {.prompt_tokens = prompt, .tokens = tokens};
      config.data.validation = {"validation.bin"};
    });
  };
  const StepPlan none = plan(0, 16, 64), with_generation = plan(8, 16, 64);
  CHECK_FALSE(none.generation);
  CHECK(none.program_plans() == std::vector<const ProgramPlan*>{&none.train, &none.evaluate});
  REQUIRE(with_generation.generation);
  CHECK(with_generation.program_plans() ==
        std::vector<const ProgramPlan*>{&with_generation.train, &with_generation.evaluate,
                                        &*with_generation.generation});
  CHECK(with_generation.generation->model.batch.tokens() == 24);
  CHECK(plan(8, 100, 64).generation->model.batch.tokens() == 64);
  CHECK(plan(100, 100, 512).generation->model.batch.tokens() == 128);
  const auto device = [](const StepPlan& of) { return plan_memory(of).at(Tier::kDevice).total; };
  CHECK(device(with_generation) == device(none));
  // A tensor-parallel rank has the logits of all tokens of a text, but only a part of those of a
  // training batch.
  ModelConfig model = small_config(1, false);
  model.vocab_rows = 1 << 16;
  Config config = base_config(0);
  config.parallel.data = 1;
  config.parallel.tensor = 4;
  config.data.sequence_length = 64;
  config.train.generate = {.prompt_tokens = 32, .tokens = 32};
  CHECK_FALSE(
      plan_steps(config, model, 0).generation);  // without validation data there are no prompts
  config.data.validation = {"validation.bin"};
  const StepPlan narrow = plan_steps(config, model, 0);
  CHECK(arena_total(narrow.generation->program) > arena_total(narrow.train.program));
  CHECK(plan_memory(narrow).at(Tier::kDevice).arenas >= arena_total(narrow.generation->program));
}

TEST_CASE(
    "only stage 3 has secondary shards, and none over all ranks if shards are on the device") {
  const auto node = [](int64_t stage, int64_t ranks, OffloadDevice parameters) {
    Config config = base_config(stage);
    config.zero.hpz_partition_size = ranks;
    config.zero.offload_param.device = parameters;
    const int found = secondary_shards(config);
    CHECK(plan_steps(config, small_config(1, true), 3).options.state.secondary_shards == found);
    return found;
  };
  CHECK(node(3, 2, OffloadDevice::kNone) == 2);
  CHECK(node(3, 0, OffloadDevice::kNone) == 1);
  CHECK(node(2, 2, OffloadDevice::kNone) == 1);
  CHECK(node(3, 4, OffloadDevice::kNone) == 1);
  CHECK(node(3, 4, OffloadDevice::kCpu) == 4);
}

TEST_CASE("the keys of the config become options of the step") {
  const StepPlan plan = plan_of(3, [](Config& config) {
    config.bf16.enabled = true;
    config.bf16.bf16_optimizer_states = true;
    config.data_types.grad_accum_dtype = ConfigDtype::kFp32;
    config.reduction.communication_data_type = ConfigDtype::kBf16;
    config.zero.offload_param.device = OffloadDevice::kCpu;
    config.zero.offload_optimizer.device = OffloadDevice::kNvme;
    config.zero.offload_optimizer.ratio = 0.5;
    config.zero.max_live_parameters = 77;
    config.zero.max_reuse_distance = 66;
    config.recompute = {RecomputeLevel::kFull, 1};
    config.activation_checkpointing.cpu_checkpointing = true;
  });
  CHECK(plan.train.model.dtypes == ModelDtypes{DType::kBF16, DType::kF32});
  CHECK(plan.evaluate.model.dtypes == plan.train.model.dtypes);
  const StateOptions& state = plan.options.state;
  CHECK(state.zero_stage == 3);
  CHECK(state.communication == DType::kBF16);
  CHECK(state.master == DType::kF32);
  for (const OptimizerStateSpec& spec : state.optimizer_states) CHECK(spec.dtype == DType::kBF16);
  CHECK(state.parameter_tier == Tier::kHost);
  CHECK(state.optimizer_tier == Tier::kDisk);
  CHECK(state.optimizer_ratio == 0.5);
  REQUIRE(state.optimizer_states.size() == 2);
  CHECK(state.optimizer_states[0].name == "exp_avg");
  CHECK(state.optimizer_states[1].name == "exp_avg_sq");
  CHECK(plan.options.micro_batches == 2);
  CHECK(plan.options.max_live_elements == 77);
  CHECK(plan.options.reuse_distance == 66);
  CHECK(plan.options.overlap);
  CHECK(plan.options.offload_activations);
}

TEST_CASE("gradients are sent in their own dtype unless the config sets another") {
  const auto communication = [](bool fp16, ConfigDtype gradients, ConfigDtype wanted) {
    return plan_of(1,
                   [&](Config& config) {
                     config.fp16.enabled = fp16;
                     config.data_types.grad_accum_dtype = gradients;
                     config.reduction.communication_data_type = wanted;
                   })
        .options.state.communication;
  };
  CHECK(communication(false, ConfigDtype::kModel, ConfigDtype::kModel) == DType::kF32);
  CHECK(communication(true, ConfigDtype::kModel, ConfigDtype::kModel) == DType::kF16);
  CHECK(communication(true, ConfigDtype::kFp32, ConfigDtype::kModel) == DType::kF32);
  CHECK(communication(true, ConfigDtype::kModel, ConfigDtype::kFp32) == DType::kF32);
}

TEST_CASE("a bucket is at most a quarter of the gradients that a rank keeps") {
  const auto quarter = [](int64_t stage) { return plan_of(stage).options.bucket_elements; };
  // There are four units of one block. From ZeRO-2 on, each of four ranks keeps a quarter of them.
  CHECK(quarter(0) == kUnitBlock);
  CHECK(quarter(1) == kUnitBlock);
  CHECK(plan_of(1).options.gather_bucket_elements == kUnitBlock);
  const auto small = [](Config& config) { config.zero.reduce_bucket_size = 5; };
  CHECK(plan_of(1, small).options.bucket_elements == 5);
  const auto none = [](Config& config) { config.zero.prefetch_bucket_size = 0; };
  CHECK(plan_of(3, none).options.prefetch_elements == 0);
  CHECK(plan_of(3).options.prefetch_elements > 0);
}

TEST_CASE("small tensors of the config's thresholds are units of their own at every stage") {
  for (int64_t stage = 0; stage < 4; ++stage) {
    const StepPlan plan =
        plan_of(stage, [](Config& config) { config.zero.param_persistence_threshold = 16; });
    CHECK(plan.partition.units.size() == 4 + 3);  // norms of two blocks and of the head
    CHECK(partition_text(plan.partition) == partition_text(plan_of(0, [](Config& c) {
                                                             c.zero.param_persistence_threshold =
                                                                 16;
                                                           }).partition));
  }
}

/// Returns the shape of Llama 2 70B.
ModelConfig llama2_70b_config() {
  ModelConfig config = small_config(80, false);
  config.vocab_rows = 32000;
  config.hidden = 8192;
  config.feed_forward = 28672;
  config.query_heads = 64;
  config.kv_heads = 8;
  config.head_size = 128;
  return config;
}

TEST_CASE("on 1,024 ranks at most 1 % of a rank's state is padding, at every stage") {
  for (const int64_t stage : {1, 2, 3}) {
    Config config = base_config(stage);
    config.parallel.data = 1024;
    config.bf16.enabled = true;
    config.zero.param_persistence_threshold = 100'000;
    // The bytes of state that a rank holds: 2 for weights, 2 for gradients and 12 for the optimizer
    // per parameter. A rank holds its part of what is sharded, and all of the norms, which are two
    // for each layer and the last one.
    const int64_t small = (80 * 2 + 1) * 8192;
    const StepPlan plan = plan_steps(config, llama2_70b_config(), 3);
    const int64_t large = plan.partition.numel() - small;
    const double whole = (stage < 3 ? 2 : 0) + (stage < 2 ? 2 : 0);
    const double needed = static_cast<double>(small) * 16 + static_cast<double>(large) * whole +
                          static_cast<double>(large) * (16 - whole) / 1024;
    const auto held = static_cast<double>(model_state_bytes(plan_memory(plan)));
    INFO("stage " << stage << ": " << held << " bytes for " << needed);
    CHECK(held >= needed);
    CHECK(held <= 1.01 * needed);
  }
}

TEST_CASE("a checkpoint has the tensors that train, on each stage of a pipeline") {
  const auto bytes_of = [](const std::vector<std::string>& only, bool bf16_state, int rank) {
    return checkpoint_bytes(plan_of(
        1,
        [&](Config& config) {
          config.parallel.data = config.parallel.pipeline = 2;
          config.parallel.virtual_stages = 1;
          config.train.only = only;
          config.bf16.enabled = true;
          config.bf16.bf16_master_weights_and_grads = config.bf16.bf16_optimizer_states =
              bf16_state;
        },
        rank));
  };
  const std::vector<std::string> none, second{R"(layers\.1\.)"};
  int64_t all = 0, of_second = 0;
  for (const TensorInfo& tensor : plan_of(1).train.model.tensors) {
    all += tensor.numel();
    if (tensor.name.find("layers.1.") != std::string::npos) of_second += tensor.numel();
  }
  REQUIRE((of_second > 0 && of_second < all));
  for (const int rank : {0, 1, 2, 3}) {
    INFO("rank " << rank);
    CHECK(bytes_of(none, false, rank) == 12 * all);
    CHECK(bytes_of(second, false, rank) == 12 * of_second);
    CHECK(bytes_of(none, true, rank) == 6 * all);
  }
}

TEST_CASE("an evaluation runs one micro-batch, whatever a step accumulates") {
  const StepPlan plan = plan_of(3);
  CHECK(positions_of(plan.train.program, InstrKind::kLoadBatch).size() == 2);
  CHECK(positions_of(plan.evaluate.program, InstrKind::kLoadBatch).size() == 1);
}

TEST_CASE("an evaluation fills a pipeline with equal parts of what it reads") {
  const auto batches = [](int64_t stages, int64_t accumulation, int64_t samples) {
    Config config = base_config(1);
    config.parallel.data = 2;
    config.parallel.pipeline = stages;
    config.parallel.virtual_stages = 1;
    config.gradient_accumulation_steps = accumulation;
    config.train.evaluation.samples = samples;
    const StepPlan plan = plan_steps(config, small_config(4, false), 0);
    CHECK(positions_of(plan.evaluate.program, InstrKind::kLoadBatch).size() ==
          static_cast<size_t>(plan.evaluation_micro_batches));
    return plan.evaluation_micro_batches;
  };
  CHECK(batches(1, 8, 64) == 1);
  CHECK(batches(2, 8, 64) == 8);    // 32 micro-batches per rank
  CHECK(batches(2, 12, 64) == 11);  // 11 + 11 + 10
  CHECK(batches(2, 8, 5) == 3);
  CHECK(batches(2, 8, 0) == 8);
  CHECK(batches(2, 100, 0) == 16);
}

TEST_CASE("the programs of all ranks of a config have no faults") {
  for (int64_t stage = 0; stage < 4; ++stage)
    for (const int64_t replicas : {1, 2})
      for (const int64_t tensor : {1, 2, 4}) {
        if (stage == 0 && replicas > 1) continue;
        INFO("stage " << stage << ", replicas " << replicas << ", tensor " << tensor);
        std::vector<StepPlan> plans;
        for (int rank = 0; rank < 4 * tensor; ++rank)
          plans.push_back(plan_of(
              stage,
              [&](Config& config) {
                config.parallel.data_replicate = replicas;
                config.parallel.tensor = tensor;
              },
              rank));
        for (const auto pass : {&StepPlan::train, &StepPlan::evaluate}) {
          std::vector<const Program*> programs;
          for (const StepPlan& plan : plans) programs.push_back(&(plan.*pass).program);
          CHECK(check_programs(programs) == std::vector<std::string>{});
        }
        std::vector<ProgramPlan> logits;
        for (const StepPlan& plan : plans)
          logits.push_back(plan_generation(small_config(2, false), plan, 6));
        std::vector<const Program*> programs;
        for (const ProgramPlan& pass : logits) programs.push_back(&pass.program);
        CHECK(check_programs(programs) == std::vector<std::string>{});
      }
}

double price_of(const ModelDescription& model) {
  double cost = 0;
  for (const PhaseSeconds& part : chunk_costs(model, {})) cost += part.forward + part.backward;
  return cost;
}

TEST_CASE(
    "the less of the first layers trains, the less a step takes: memory, time, gathers and "
    "activations on the host") {
  for (const bool recompute : {false, true}) {
    INFO(recompute);
    const auto only = [&](const std::string& pattern, int rank) {
      Config config = base_config(3);
      config.data.sequence_length = 64;
      config.train.only = {pattern};
      config.zero.param_persistence_threshold = 0;
      config.recompute.policy = recompute ? RecomputeLevel::kFull : RecomputeLevel::kNone;
      config.activation_checkpointing.cpu_checkpointing = recompute;
      return plan_steps(config, small_config(6, false), rank);
    };
    // The trainable shapes are the same, in different layers.
    const StepPlan low = only("layers.0.mlp", 0), high = only("layers.5.mlp", 0);
    const auto count = [](const StepPlan& plan, InstrKind kind) {
      return positions_of(plan.train.program, kind).size();
    };
    CHECK(arena_total(high.train.program) < arena_total(low.train.program));
    CHECK(price_of(high.train.model) < 0.7 * price_of(low.train.model));
    CHECK(count(high, InstrKind::kAllGather) < count(low, InstrKind::kAllGather));
    CHECK(program_traffic(high.train.program).bytes < program_traffic(low.train.program).bytes);
    if (recompute) CHECK(count(high, InstrKind::kCopy) < count(low, InstrKind::kCopy));
    std::vector<Program> programs;
    for (int rank = 0; rank < 4; ++rank)
      programs.push_back(only("layers.5.mlp", rank).train.program);
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    CHECK(check_programs(all) == std::vector<std::string>{});
  }
}

TEST_CASE("tensor-parallel ranks send the bytes of the published formula") {
  const int64_t blocks = 2;
  for (const bool sequence : {true, false})
    for (const int64_t stage : {0, 3})
      for (const int64_t t : {2, 4}) {
        INFO("tensor " << t << ", stage " << stage << (sequence ? ", sequence" : ""));
        const StepPlan plan = plan_of(stage, [&](Config& config) {
          config.parallel.tensor = t;
          config.parallel.sequence = sequence;
        });
        const ModelDescription& model = plan.train.model;
        const int64_t micro_batches = plan.options.micro_batches;
        const int64_t tokens = model.batch.tokens();
        // An all-gather or a reduce-scatter of N x D elements sends this many bytes per rank; an
        // all-reduce is one of each. Korthikanti et al. 2022, section 4.2.2, plus the gathers of
        // inputs that are saved as N/t rows.
        const int64_t unit = tokens * model.hidden * 4 * (t - 1) / t;
        const int64_t in_blocks = blocks * (sequence ? 10 : 8) * unit;
        // Embedding and head have one collective in forward and one in backward each, or one
        // all-reduce.
        const int64_t ends = 4 * unit;
        const int64_t statistics = tokens * 2 * 4 * (t - 1);
        int64_t norms = sequence ? (2 * blocks + 1) * model.hidden : 0;
        if (stage == 3) norms *= micro_batches;
        int64_t shared = 2 * norms * 4 * (t - 1) / t;
        if (t == 4) {
          // Two ranks share each key/value head, so they sum the gradients of its rows of k and v.
          const int64_t rows = blocks * 2 * model.head_size * model.hidden;
          shared += 2 * rows * 4 / 2 * (stage == 3 ? micro_batches : 1);
        }
        int64_t sent = 0;
        for (const TrafficRow& row : program_traffic(plan.train.program).rows)
          if (row.axes.starts_with("tensor")) sent += row.bytes;
        CHECK(sent == micro_batches * (in_blocks + ends + statistics) + shared);
        const TrafficTheory theory =
            compare_traffic_with_theory(plan.train.program, model, plan.partition, plan.options);
        int64_t explained = 0;
        for (const TrafficDeviation& deviation : theory.deviations)
          if (deviation.cause.find("tensor-parallel") != std::string::npos)
            explained += deviation.bytes;
        CHECK(explained == sent);
      }
}

}  // namespace
}  // namespace ftrun
