#include "sim/what_if.h"

#include <algorithm>
#include <cfloat>
#include <utility>

#include "base/error.h"
#include "machine/machine_file.h"
#include "program/models.h"
#include "program/traffic.h"
#include "sim/rank_class_plans.h"
#include "sim/run_estimate.h"
#include "sim/step_time.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

Machine gpu_machine(int devices) {
  return parse_machine("gpus.yaml", cat("machine: gpus\ndevice: gpu\ndevices: ", devices, R"(
rates:
  - memory: 1 GB/s
    products: {fp32: 1 GFLOP/s}
links:
  node: {latency: 1 us, bandwidth: 100 MB/s}
  cluster: {latency: 20 us, bandwidth: 10 MB/s}
)"));
}

Config config_of(int data, int tensor, int pipeline, int stage, int64_t micro_batches) {
  Config config;
  config.device = DeviceKind::kCuda;
  config.parallel.data = data;
  config.parallel.tensor = tensor;
  config.parallel.pipeline = pipeline;
  config.parallel.virtual_stages = 1;
  config.zero.stage = stage;
  config.zero.overlap_comm = true;
  config.train_micro_batch_size_per_gpu = 1;
  config.gradient_accumulation_steps = micro_batches;
  config.train_batch_size = micro_batches * data;
  config.data.sequence_length = 8;
  return config;
}

StepTime predict(const Config& config, const ModelConfig& model, const Machine& machine,
                 const RunConditions& conditions) {
  const StepPlan own = plan_steps(config, model, 0);
  return predict_step(RankClassPlans(config, model, 0, own), machine, conditions);
}

TEST_CASE("a folded world with a slow rank has the times of a walk of every rank") {
  const ModelConfig model = small_config(4, false);
  int compared = 0, changed = 0;
  for (const int stage : {0, 1, 3})
    for (const int data : {1, 2, 4})
      for (const int tensor : {1, 2})
        for (const int pipeline : {1, 2}) {
          const int ranks = data * tensor * pipeline;
          if (ranks == 1 || (pipeline > 1 && stage > 1)) continue;
          const Config config = config_of(data, tensor, pipeline, stage, 3);
          const Machine machine = gpu_machine(ranks / 2);
          const StepPlan own = plan_steps(config, model, 0);
          const RankClassPlans all(config, model, 0, own);
          for (const int64_t slow : {ranks - 1, ranks / 2}) {
            INFO("stage " << stage << ", data " << data << ", tensor " << tensor << ", pipeline "
                          << pipeline << ", slow " << slow);
            const RunConditions folded{.nodes = 2, .slow_ranks = {{slow, 1.7}}};
            // The factors are so close to 1 that no picosecond changes, but all different, so no
            // two ranks can be folded.
            RunConditions apart = folded;
            for (int rank = 0; rank < ranks; ++rank)
              if (rank != slow) apart.slow_ranks.push_back({rank, 1 + rank * DBL_EPSILON});
            const StepTime one = predict_step(all, machine, folded);
            const StepTime each = predict_step(all, machine, apart);
            CHECK(one.seconds == each.seconds);
            CHECK(one.layer_seconds == each.layer_seconds);
            CHECK(one.collective_wait_seconds == each.collective_wait_seconds);
            CHECK(one.pipeline_wait_seconds == each.pipeline_wait_seconds);
            CHECK(one.idle_by_lane.stage_seconds == each.idle_by_lane.stage_seconds);
            CHECK(one.idle_by_lane.collective_seconds() == each.idle_by_lane.collective_seconds());
            CHECK(one.stage_wait_seconds == each.stage_wait_seconds);
            ++compared;
            changed += one.seconds > predict_step(all, machine, {.nodes = 2}).seconds ? 1 : 0;
          }
        }
  CHECK(compared >= 30);
  CHECK(changed == compared);
}

TEST_CASE("a slow rank holds up all of data parallelism, and a pipeline by its own stage alone") {
  ModelConfig model = small_config(8, false);
  Machine machine = gpu_machine(2);
  machine.intra_node_link = {1e-9, 1e15};
  constexpr double kTimes = 2;
  const auto slower = [&](const Config& config) {
    return predict(config, model, machine, {.nodes = 1, .slow_ranks = {{1, kTimes}}}).seconds /
           predict(config, model, machine, {.nodes = 1}).seconds;
  };
  constexpr int64_t kMicroBatches = 4;
  // The times are not exactly twice as long, because rank 0 counts some norms alone.
  CHECK(slower(config_of(2, 1, 1, 0, kMicroBatches)) == Approx(kTimes).epsilon(0.03));
  // A step takes micro-batches + 1 times the time of a stage; all but one of these are the slow
  // stage's.
  const double pipeline = slower(config_of(1, 1, 2, 0, kMicroBatches));
  CHECK(pipeline < 0.98 * kTimes);
  CHECK(pipeline == Approx((kMicroBatches * kTimes + 1) / (kMicroBatches + 1)).epsilon(0.1));
  // The slow stage waits less for the other stage than that one waits for it.
  const StepTime time = predict(config_of(1, 1, 2, 0, kMicroBatches), model, machine,
                                {.nodes = 1, .slow_ranks = {{1, kTimes}}});
  REQUIRE(time.stage_wait_seconds.size() == 2);
  CHECK(time.stage_wait_seconds[1] < time.stage_wait_seconds[0]);
}

TEST_CASE("waits of compute are reported by axes, and traffic by kind of link") {
  const ModelConfig model = small_config(2, false);
  const StepTime time = predict(config_of(2, 2, 1, 1, 2), model, gpu_machine(2), {.nodes = 2});
  double sum = 0;
  std::vector<std::string> axes;
  for (const GroupIdle& wait : time.idle_by_lane.groups) {
    sum += wait.seconds;
    axes.push_back(wait.axes);
  }
  CHECK(sum == Approx(time.collective_wait_seconds));
  CHECK(time.collective_wait_seconds > 0);
  CHECK(std::find(axes.begin(), axes.end(), "tensor") != axes.end());
  // Tensor ranks share a node; data-parallel groups span two nodes.
  int64_t node = 0, cluster = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const StepPlan plan = plan_steps(config_of(2, 2, 1, 1, 2), model, rank);
    int64_t own_node = 0, own_cluster = 0;
    for (const TrafficRow& row : program_traffic(plan.train.program).rows)
      (row.axes == "tensor" ? own_node : own_cluster) += row.bytes;
    node = std::max(node, own_node);
    cluster = std::max(cluster, own_cluster);
  }
  CHECK(node > 0);
  CHECK(cluster > 0);
  CHECK(time.link_bytes.intra_node == node);
  CHECK(time.link_bytes.inter_node == cluster);
  CHECK(time.link_bytes.to_host == 0);
  CHECK(time.link_bytes.disk_read == 0);
}

TEST_CASE("a slow rank and a network are read, and what is wrong with them is named") {
  const auto slow = parse_slow_ranks({"rank=5:1.3", "rank=0:0.5"});
  CHECK(slow == std::vector<SlowRank>{{5, 1.3}, {0, 0.5}});
  CHECK(slow_factor_of(slow, 5) == 1.3);
  CHECK(slow_factor_of(slow, 4) == 1);
  const std::pair<const char*, const char*> wrong[] = {
      {"5:1.3", "expected a rank and how slow it is"},
      {"rank=5", "expected a rank and how slow it is"},
      {"rank=x:2", "\"x\" is not a rank"},
      {"rank=-1:2", "\"-1\" is not a rank"},
      {"rank=1:0", "\"0\" is not a factor above 0"},
      {"rank=1:-2", "\"-2\" is not a factor above 0"},
      {"rank=1:nan", "\"nan\" is not a factor above 0"},
      {"rank=1:2x", "\"2x\" is not a factor above 0"},
      {"rank=1:", "\"\" is not a factor above 0"}};
  for (const auto& [text, why] : wrong) {
    INFO(text);
    CHECK_THROWS_WITH(parse_slow_ranks({text}), Catch::Contains(why));
  }
  CHECK_THROWS_WITH(parse_slow_ranks({"rank=1:2", "rank=1:3"}),
                    Catch::Contains("rank 1 is given twice"));
  CHECK_THROWS_WITH(check_slow_ranks_exist({{4, 2}}, 4),
                    Catch::Contains("--slow rank=4:2: the run has 4 ranks, counted from 0"));
  CHECK_NOTHROW(check_slow_ranks_exist({{3, 2}}, 4));

  Machine machine = gpu_machine(2);
  set_network_bandwidth("200Gb/s", 2, machine);
  CHECK(machine.inter_node_link.bandwidth == Approx(25e9));
  set_network_bandwidth("5 GB/s", 2, machine);
  CHECK(machine.inter_node_link.bandwidth == Approx(5e9));
  CHECK(machine.inter_node_link.latency_seconds == gpu_machine(2).inter_node_link.latency_seconds);
  CHECK(what_if_text({{5, 1.3}}, machine, true) ==
        "rank 5 takes 1.3 times as long, the network has 5 GB/s");
  CHECK_THROWS_WITH(set_network_bandwidth("5 furlongs", 2, machine),
                    Catch::Contains("the unit is one of"));
  CHECK_THROWS_WITH(set_network_bandwidth("-5 GB/s", 2, machine),
                    Catch::Contains("not a number above 0"));
  CHECK_THROWS_WITH(set_network_bandwidth("5 GB/s", 1, machine),
                    Catch::Contains("there is one node, so nothing goes between nodes"));
  machine.inter_node_link = {};
  CHECK_THROWS_WITH(set_network_bandwidth("5 GB/s", 2, machine),
                    Catch::Contains("has no links.cluster"));
}

TEST_CASE("a run's hours, price and utilization follow from its step") {
  const ModelConfig model = small_config(4, false);
  Machine machine = gpu_machine(4);
  machine.price = {2.5, "USD"};
  machine.disk_read_bandwidth = machine.disk_write_bandwidth = 1e3;
  Config config = config_of(4, 1, 1, 1, 2);
  const StepPlan plan = plan_steps(config, model, 0);
  StepTime time;
  time.seconds = 36;
  time.matmul_flop_rate = 1e6;
  const RunEstimate run = estimate_run(config, model, plan, time, machine, 1, 1000);
  CHECK(run.hours == Approx(10));
  CHECK(run.device_hours == Approx(40));
  CHECK(run.cost == Approx(100));
  CHECK(run.tokens_per_second == Approx(8.0 * 8 / 36));
  CHECK(run.checkpoint_seconds == Approx(static_cast<double>(run.checkpoint_bytes) / 1e3));
  CHECK(run.mfu > 0);
  CHECK(run.mfu_causal < run.mfu);
  CHECK(run.hfu == run.mfu);
  const std::string text = run_estimate_text(run, time, machine, 10);
  CHECK(text.find("run: 1000 steps, 10h 00m, 40 device-hours, 100 USD (2.5 USD/h per device)\n") !=
        std::string::npos);
  CHECK(estimate_run(config, model, plan, time, machine, 1, 0).hours == 0);

  // Backward recomputes the matrix multiplications of all blocks, except the last of each: 2
  // operations per parameter and token.
  config.recompute.policy = RecomputeLevel::kFull;
  const StepPlan again = plan_steps(config, model, 0);
  const RunEstimate recomputed = estimate_run(config, model, again, time, machine, 1, 1000);
  CHECK(recomputed.mfu == run.mfu);
  const double hidden = 16, kv = 2 * 4, wide = 24, tokens = 8;
  const double recomputed_matmuls =
      4 * 2 * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * wide);
  const double flops = recomputed_flops_per_token(config, model, again.train.model);
  CHECK(flops < 1.2 * (recomputed_matmuls + 4 * 4 * hidden * tokens));
  CHECK(flops > recomputed_matmuls - 4 * 2 * hidden * wide);
  CHECK(recomputed.hfu - recomputed.mfu ==
        Approx(flops * run.tokens_per_second / time.matmul_flop_rate));
}

}  // namespace
}  // namespace ftrun
