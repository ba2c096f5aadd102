#include "sim/rank_class_plans.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "config/load.h"
#include "config/resolve.h"
#include "model/families.h"
#include "program/models.h"
#include "sim/walk.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;
using Faults = std::vector<std::string>;

Config config_of(int64_t stage, int64_t data, int64_t replicas, int64_t tensor) {
  Config config;
  config.parallel.data = data;
  config.parallel.data_replicate = replicas;
  config.parallel.tensor = tensor;
  config.zero.stage = stage;
  config.zero.overlap_comm = true;
  config.train_micro_batch_size_per_gpu = 1;
  config.gradient_accumulation_steps = 2;
  config.data.sequence_length = 4;
  return config;
}

TEST_CASE("the ranks of a config are checked by their classes, whichever rank asks") {
  const ModelConfig model = small_config(2, false);
  for (int64_t stage = 0; stage < 4; ++stage)
    for (const int64_t replicas : {1, 2})
      for (const int64_t tensor : {1, 4}) {
        if (stage == 0 && replicas > 1) continue;
        const Config config = config_of(stage, 6, replicas, tensor);
        for (const int rank : {0, 5}) {
          INFO("stage " << stage << ", replicas " << replicas << ", tensor " << tensor << ", rank "
                        << rank);
          const StepPlan own_plan = plan_steps(config, model, rank);
          const RankClassPlans all(config, model, rank, own_plan);
          CHECK(all.classes().ranks() == 6 * tensor);
          CHECK(&all.plan(all.classes().class_of(rank)) == &own_plan);
          CHECK(all.representative_of(all.classes().class_of(rank)) == rank);
          CHECK(all.find_faults() == Faults{});
        }
      }
}

TEST_CASE("the check of all ranks covers training and validation") {
  const ModelConfig model = small_config(2, false);
  const Config config = config_of(1, 4, 1, 1);
  const StepPlan good = plan_steps(config, model, 1);
  for (const auto pass : {&StepPlan::train, &StepPlan::evaluate}) {
    StepPlan own_plan = plan_steps(config, model, 1);
    std::vector<Instr>& instrs = (own_plan.*pass).program.instrs;
    instrs[positions_of((own_plan.*pass).program, InstrKind::kAllReduce).at(0)].waits.clear();
    const Faults faults = RankClassPlans(config, model, 1, own_plan).find_faults();
    REQUIRE(faults.size() >= 1);
    INFO(faults[0]);
    CHECK(faults[0].starts_with("rank "));
    CHECK(faults[0].find("(all_reduce) does not wait for instruction ") != std::string::npos);
  }
  CHECK(RankClassPlans(config, model, 1, good).find_faults() == Faults{});
}

TEST_CASE("the check of all ranks covers text generation, which changes the hash of the plans") {
  const ModelConfig model = small_config(2, false);
  Config config = config_of(3, 4, 1, 1);
  config.zero.param_persistence_threshold = 0;
  const StepPlan quiet = plan_steps(config, model, 1);
  const uint64_t without = RankClassPlans(config, model, 1, quiet).hash();
  config.train.generate = {.prompt_tokens = 2, .tokens = 2};
  config.data.validation = {"validation.bin"};
  StepPlan own_plan = plan_steps(config, model, 1);
  CHECK(RankClassPlans(config, model, 1, own_plan).find_faults() == Faults{});
  CHECK(RankClassPlans(config, model, 1, own_plan).hash() != without);
  std::vector<Instr>& instrs = own_plan.generation->program.instrs;
  const auto gather = positions_of(own_plan.generation->program, InstrKind::kAllGather).at(0);
  instrs.erase(instrs.begin() + static_cast<std::ptrdiff_t>(gather));
  CHECK_FALSE(RankClassPlans(config, model, 1, own_plan).find_faults().empty());
}

TEST_CASE("a tier that is too small for some ranks says how many, and which needs most") {
  const ModelConfig model = small_config(2, false);
  const Config config = config_of(3, 5, 1, 1);
  const StepPlan own_plan = plan_steps(config, model, 4);
  const RankClassPlans all(config, model, 4, own_plan);
  std::vector<int64_t> needed;
  for (int rank = 0; rank < 5; ++rank)
    needed.push_back(plan_memory(plan_steps(config, model, rank)).at(Tier::kDevice).total);
  const auto over = [&](int64_t device) {
    TierBudget budget = kNoBudget;
    budget[static_cast<size_t>(Tier::kDevice)] = device;
    return all.list_budget_excesses(budget);
  };
  const auto most = std::max_element(needed.begin(), needed.end());
  CHECK(all.list_budget_excesses(kNoBudget).empty());
  CHECK(over(*most).empty());
  for (const int64_t budget : {*most - 1, *std::min_element(needed.begin(), needed.end()) - 1}) {
    const std::vector<BudgetExcess> found = over(budget);
    REQUIRE(found.size() == 1);
    CHECK(found[0].tier == Tier::kDevice);
    CHECK(found[0].budget_bytes == budget);
    CHECK(found[0].ranks == std::count_if(needed.begin(), needed.end(),
                                          [&](int64_t bytes) { return bytes > budget; }));
    CHECK(found[0].rank == most - needed.begin());
    CHECK(found[0].needed_bytes == *most);
  }
  CHECK(budget_excess_text({Tier::kHost, 1 << 20, 1, 3, 2 << 20}) ==
        "1 rank needs more than 1.00 MiB of the host tier: rank 3 needs 2.00 MiB");
  CHECK(budget_excess_text({Tier::kDevice, 1 << 20, 12, 0, 2 << 20}) ==
        "12 ranks need more than 1.00 MiB of the device tier; rank 0 needs the most: 2.00 MiB");
}

TEST_CASE("the device and host tiers of a rank may share one budget") {
  const ModelConfig model = small_config(2, false);
  Config config = config_of(1, 2, 1, 1);
  config.zero.offload_optimizer.device = OffloadDevice::kCpu;
  const StepPlan own_plan = plan_steps(config, model, 0);
  const RankClassPlans all(config, model, 0, own_plan);
  const MemoryPlan memory = plan_memory(own_plan);
  REQUIRE(memory.at(Tier::kHost).total > 0);
  TierBudget budget = kNoBudget;
  budget[static_cast<size_t>(Tier::kDevice)] = memory.main_memory_bytes() - 1;
  const std::vector<BudgetExcess> over = all.list_budget_excesses(budget, true);
  REQUIRE(over.size() == 1);
  CHECK(over[0].needed_bytes == memory.main_memory_bytes());
  CHECK(budget_excess_text(over[0]).find(" of the device and host tiers") != std::string::npos);
  CHECK(all.list_budget_excesses(budget).empty());
}

TEST_CASE("Llama-3-405B on 16,384 ranks is planned and checked for all of them", "[long]") {
  const std::string folder = testing::source_dir() + "/tests/sim/llama-3-405b";
  const LoadResult loaded = load_config({folder + "/plan.yaml"});
  REQUIRE(loaded.ok());
  const ModelConfig model =
      parse_model_config(read_file(folder + "/config.json", 1 << 20), folder + "/config.json");
  const ResolvedConfig resolved =
      resolve(loaded.written, {.world_size = 16384, .hidden_size = model.hidden});
  REQUIRE(resolved.ok());
  const StepPlan own_plan = plan_steps(resolved.config, model, 0);
  CHECK(own_plan.partition.units.size() == 128 + 127);  // norms have their own units
  const RankClassPlans all(resolved.config, model, 0, own_plan);
  CHECK(all.classes().ranks() == 16384);
  CHECK(all.classes().count() > 1);
  CHECK(all.classes().count() <= 16);
  CHECK(all.find_faults() == Faults{});
  // One rank in the middle reduces in another dtype than all others.
  const int odd = 7777;
  StepPlan other = plan_steps(resolved.config, model, odd);
  Program& program = other.train.program;
  program.instrs[positions_of(program, InstrKind::kReduceScatter).back()].communication().dtype =
      DType::kF16;
  const Faults faults = RankClassPlans(resolved.config, model, odd, other).find_faults();
  REQUIRE_FALSE(faults.empty());
  INFO(faults.back());
  CHECK(faults.back().find(" as F16 over data@") != std::string::npos);
}

/// Returns the number of steps that a simulation of all ranks takes.
int64_t walked_steps(const RankClassPlans& all) {
  std::vector<int64_t> entries;  // of one rank of each class
  for (int32_t c = 0; c < all.classes().count(); ++c) {
    const LaneSchedule schedule =
        join_collectives(make_collective_schedule(all.plan(c).train.program));
    entries.push_back(0);
    for (const auto& lane : schedule.lanes) entries.back() += static_cast<int64_t>(lane.size());
  }
  int64_t sum = 0;
  for (const int32_t rank_class : all.classes().of_rank)
    sum += entries[static_cast<size_t>(rank_class)];
  return sum;
}

TEST_CASE(
    "pipelines of Llama-3-405B on 16,384 ranks are planned per stage and micro-batch, not per rank",
    "[long]") {
  const std::string folder = testing::source_dir() + "/tests/sim/llama-3-405b";
  const ModelConfig model =
      parse_model_config(read_file(folder + "/config.json", 1 << 20), folder + "/config.json");
  constexpr int64_t kStages = 16, kMicroBatches = 16;
  struct ScheduleCase {
    PipelineSchedule schedule;
    int64_t chunks, zero_stage;
  };
  for (const auto& [schedule, chunks, zero_stage] :
       {ScheduleCase{PipelineSchedule::k1F1B, 1, 1},
        ScheduleCase{PipelineSchedule::kInterleaved, 2, 1},
        ScheduleCase{PipelineSchedule::kZbH1, 1, 1}, ScheduleCase{PipelineSchedule::k1F1B, 1, 3}}) {
    const LoadResult loaded = load_config(
        {folder + "/plan.yaml"},
        {"parallel.data=128", cat("parallel.pipeline=", kStages),
         cat("parallel.schedule=", name_of(schedule)), cat("parallel.virtual_stages=", chunks),
         cat("gradient_accumulation_steps=", kMicroBatches),
         cat("zero_optimization.stage=", zero_stage)});
    REQUIRE(loaded.ok());
    INFO(name_of(schedule) << ", ZeRO-" << zero_stage);
    const ResolvedConfig resolved =
        resolve(loaded.written, {.world_size = 16384, .hidden_size = model.hidden});
    REQUIRE(resolved.ok());
    const StepPlan own_plan = plan_steps(resolved.config, model, 0);
    const RankClassPlans all(resolved.config, model, 0, own_plan);
    CHECK(all.classes().ranks() == 16384);
    // In a stage some ranks count the norms and others do not, and some shards end in the padding
    // of a unit.
    CHECK(all.classes().count() <= 4 * kStages);
    CHECK(all.find_faults() == Faults{});
    size_t instructions = 0;
    for (int32_t c = 0; c < all.classes().count(); ++c)
      instructions = std::max(instructions, all.plan(c).train.program.instrs.size());
    CHECK(instructions < 400 * kMicroBatches);
    CHECK(walked_steps(all) < 16384 * 60 * kMicroBatches);
  }
}

}  // namespace
}  // namespace ftrun
