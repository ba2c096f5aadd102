#include "sim/step_time.h"

#include <algorithm>

#include "base/error.h"
#include "machine/machine_file.h"
#include "program/models.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

constexpr const char* kGpus = R"(machine: gpus
device: gpu
devices: 3
rates:
  - memory: 1 GB/s
    products: {fp32: 1 GFLOP/s}
    otherwise: 2
links:
  node: {latency: 1 us, bandwidth: 100 MB/s}
  cluster: {latency: 1 ms, bandwidth: 1 MB/s}
  host: {latency: 1 us, bandwidth: 10 MB/s}
host_memory: 100 MB/s
disk: {read: 2 MB/s, write: 1 MB/s}
)";

/// A program with a buffer on each tier and a group of 4 ranks.
struct ProgramWithCosts {
  Machine machine = parse_machine("gpus.yaml", kGpus);
  Program program;
  ModelDescription model;

  ProgramWithCosts() {
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk})
      program.buffers.push_back({.name = "buffer", .tier = tier, .bytes = 4000});
    program.groups.push_back({{"data@0", {0, 1, 2, 3}}, {4, 0}});
  }
  Picoseconds time_of(const Instr& instr, int ranks_on_node = 4) {
    InstrCostModel costs(machine, 3, program, model, {ranks_on_node});
    return costs.cost_of(instr).unshared_time;
  }
};

BufferRange first_bytes(BufferId buffer, int64_t count) {
  return {buffer, 0, count};
}

constexpr Picoseconds kMicrosecond = 1'000'000;

TEST_CASE("an instruction's time follows from the bytes that it moves and their tier") {
  ProgramWithCosts priced;
  Instr update{.kind = InstrKind::kUpdate};
  update.reads = {first_bytes(0, 400)};
  update.writes = {first_bytes(0, 400), first_bytes(0, 400), first_bytes(0, 400)};
  update.detail = UpdateDetail{};
  // The update reads 400 bytes, and reads and writes 1,200: 2,800 bytes at 1 GB/s, and updates take
  // twice as long as that.
  CHECK(priced.time_of(update) == 5'600'000);
  for (BufferRange& range : update.writes) range.buffer = 1;
  update.reads[0].buffer = 1;
  CHECK(priced.time_of(update) == 28 * kMicrosecond);  // at the 100 MB/s of main memory

  const auto copy = [&](BufferId from, BufferId to) {
    Instr instr{.kind = InstrKind::kCopy};
    instr.reads = {first_bytes(from, 1000)};
    instr.writes = {first_bytes(to, 1000)};
    return priced.time_of(instr);
  };
  CHECK(copy(0, 0) == 4 * kMicrosecond);    // 2,000 bytes at 1 GB/s, times 2
  CHECK(copy(0, 1) == 101 * kMicrosecond);  // a latency, and 1,000 bytes at 10 MB/s
  CHECK(copy(1, 0) == 101 * kMicrosecond);
  // Each of the node's three ranks has a third of its disk.
  CHECK(copy(2, 1) == 3 * 500 * kMicrosecond);   // 2 MB/s
  CHECK(copy(1, 2) == 3 * 1000 * kMicrosecond);  // 1 MB/s

  Instr clear{.kind = InstrKind::kClear};
  clear.writes = {first_bytes(0, 1000)};
  CHECK(priced.time_of(clear) == 2 * kMicrosecond);
  Instr norm{.kind = InstrKind::kGradientNorm};
  norm.reads = {first_bytes(0, 1000)};
  norm.writes = {first_bytes(0, 8)};
  CHECK(priced.time_of(norm) == 2 * kMicrosecond);
}

TEST_CASE("collectives use the node's link, or the cluster's if their ranks are on several nodes") {
  ProgramWithCosts priced;
  Instr sum{.kind = InstrKind::kAllReduce};
  sum.detail = Communication{.group = 0};
  sum.reads = sum.writes = {first_bytes(0, 1000), first_bytes(0, 2000)};
  // Each of the two calls takes 6 latencies and 1.5 times its bytes.
  CHECK(priced.time_of(sum) == (6 + 15 + 6 + 30) * kMicrosecond);
  CHECK(priced.time_of(sum, 1) == (6000 + 1500 + 6000 + 3000) * kMicrosecond);
  Instr gather{.kind = InstrKind::kAllGather};
  gather.detail = Communication{.group = 0};
  gather.reads = {first_bytes(0, 250)};
  gather.writes = {first_bytes(0, 1000)};
  CHECK(priced.time_of(gather) == (3 * 10 + 75) * kMicrosecond / 10);  // 3 latencies, 750 bytes
}

TEST_CASE(
    "a missing entry of a machine file is named with what to add, an impossible one is refused") {
  ProgramWithCosts priced;
  priced.machine.host_link = {};
  priced.machine.host_memory_bandwidth = 0;
  priced.machine.disk_read_bandwidth = 0;
  Instr copy{.kind = InstrKind::kCopy};
  copy.reads = {first_bytes(0, 1000)};
  copy.writes = {first_bytes(1, 1000)};
  CHECK_THROWS_WITH(priced.time_of(copy),
                    Catch::Contains("has no links.host, the link between a GPU and main memory"));
  copy.reads[0].buffer = 2;
  CHECK_THROWS_WITH(priced.time_of(copy), Catch::Contains("has no rates of a disk"));
  Instr clear{.kind = InstrKind::kClear};
  clear.writes = {first_bytes(1, 1000)};
  CHECK_THROWS_WITH(priced.time_of(clear),
                    Catch::Contains("has no host_memory, in which clear runs"));
  clear.writes = {first_bytes(0, int64_t{1} << 60)};
  CHECK_THROWS_WITH(priced.time_of(clear), Catch::Contains("would take 2.31e+09 s"));
}

Config config_on(DeviceKind device, int tensor, int data) {
  Config config;
  config.device = device;
  config.parallel.tensor = tensor;
  config.parallel.data = data;
  config.train_micro_batch_size_per_gpu = 1;
  config.gradient_accumulation_steps = 1;
  config.data.sequence_length = 8;
  return config;
}

StepTime predict(const Config& config, const Machine& machine, const RunConditions& conditions) {
  const ModelConfig model = small_config(2, false);
  const StepPlan own = plan_steps(config, model, 0);
  const RankClassPlans all(config, model, 0, own);
  return predict_step(all, machine, conditions);
}

TEST_CASE("the parts of a step on CPUs are means over the ranks, of which a slow one waits less") {
  const Machine machine = parse_machine("cpus.yaml", R"(machine: cpus
devices: 2
rates:
  - ranks: 2
    memory: 1 GB/s
    products: {fp32: 1 GFLOP/s}
links:
  node: {latency: 1 us, bandwidth: 100 MB/s}
)");
  const Config config = config_on(DeviceKind::kCpu, 1, 2);
  const ModelConfig model = small_config(2, false);
  const StepPlan own = plan_steps(config, model, 0);
  const RankClassPlans all(config, model, 0, own);
  StepTimeline timeline;
  const StepTime time =
      predict_step(all, machine, {.slow_ranks = {{.rank = 1, .factor = 3}}}, &timeline);
  REQUIRE(timeline.ranks.size() == 2);
  const StepTime &fast = timeline.ranks[0].time, &slow = timeline.ranks[1].time;
  CHECK(fast.collective_wait_seconds > 1.5 * slow.collective_wait_seconds);
  CHECK(time.collective_wait_seconds ==
        Approx((fast.collective_wait_seconds + slow.collective_wait_seconds) / 2));
  CHECK(time.layer_seconds == Approx((fast.layer_seconds + slow.layer_seconds) / 2));
  CHECK(time.idle_by_lane.collective_seconds() ==
        Approx((fast.idle_by_lane.collective_seconds() + slow.idle_by_lane.collective_seconds()) /
               2));
}

TEST_CASE("a step in which ranks take turns on cores is the mean of several") {
  const std::string head = "machine: cpus\nrates:\n  - ranks: 4\n    memory: 1 GB/s\n";
  const std::string tail =
      "    products: {fp32: 1 GFLOP/s}\nlinks:\n  node: {latency: 1 us, bandwidth: 1 GB/s}\n";
  const Config config = config_on(DeviceKind::kCpu, 2, 2);
  const ModelConfig model = small_config(2, false);
  const StepPlan own = plan_steps(config, model, 0);
  const RankClassPlans all(config, model, 0, own);
  // Predicts the step on a number of cores; returns it and the end of its timeline, in seconds.
  const auto predict_on = [&](int cores) {
    const Machine machine = parse_machine("cpus.yaml", head + tail + cat("devices: ", cores, "\n"));
    StepTimeline timeline;
    const StepTime time = predict_step(all, machine, {}, &timeline);
    CHECK(timeline.simulated_steps == (cores < 4 ? 4 : 1));
    return std::pair(time, static_cast<double>(timeline.end) / kPicosecondsPerSecond);
  };
  const auto [enough, enough_end] = predict_on(4);
  const auto [turns, turns_end] = predict_on(2);
  CHECK(enough.seconds == enough_end);
  CHECK(turns.seconds != turns_end);
  CHECK(turns.seconds == Approx(turns_end).epsilon(0.03));
  // Two cores take longer than four, and ranks wait longer for each other.
  CHECK(turns.seconds > 1.5 * enough.seconds);
  CHECK(turns.collective_wait_seconds > enough.collective_wait_seconds);
}

TEST_CASE("a pair of tensor ranks on two nodes is slow, although the pair of rank 0 is on one") {
  Machine machine = parse_machine("gpus.yaml", kGpus);
  machine.inter_node_link.latency_seconds = 1;
  const Config config = config_on(DeviceKind::kCuda, 2, 3);
  // There are six ranks. On nodes of three, ranks 2 and 3 are on different nodes; on nodes of two,
  // no pair is split.
  const double apart = predict(config, machine, {.nodes = 2}).seconds;
  const double together = predict(config, machine, {.nodes = 3}).seconds;
  // Two blocks have at least four exchanges each in each direction, with a latency of 1 s.
  CHECK(apart > together + 8);
}

TEST_CASE("recompute of whole layers adds the collective that backward does not need") {
  Machine machine = parse_machine("gpus.yaml", kGpus);
  machine.intra_node_link.latency_seconds =
      10;  // every all-reduce of two ranks takes 20 s, all else far less
  Config config = config_on(DeviceKind::kCuda, 2, 1);
  config.parallel.sequence = false;
  const double kept = predict(config, machine, {}).seconds;
  config.recompute.policy = RecomputeLevel::kFull;
  // Each of two blocks has two all-reduces in forward. Backward reads the result of the first one
  // only.
  CHECK(predict(config, machine, {}).seconds - kept == Approx(2 * 20).margin(1));
  machine.recomputes_whole_layers = true;
  CHECK(predict(config, machine, {}).seconds - kept == Approx(4 * 20).margin(1));
  // A block's backward begins with a collective under sequence parallelism.
  Config split = config;
  split.parallel.sequence = true;
  const double whole = predict(split, machine, {}).seconds;
  machine.recomputes_whole_layers = false;
  CHECK(whole - predict(split, machine, {}).seconds > 10);
  machine.recomputes_whole_layers = true;
  config.recompute.policy = RecomputeLevel::kSelective;
  const double selective = predict(config, machine, {}).seconds;
  machine.recomputes_whole_layers = false;
  CHECK(predict(config, machine, {}).seconds == selective);
}

TEST_CASE("the device, the number of GPUs and of threads are those of the machine") {
  const Machine gpus = parse_machine("gpus.yaml", kGpus);
  CHECK_THROWS_WITH(
      predict(config_on(DeviceKind::kCpu, 1, 2), gpus, {}),
      Catch::Contains("the run computes on CPUs, but the machine gpus is one of GPUs"));
  CHECK_THROWS_WITH(predict(config_on(DeviceKind::kCuda, 1, 4), gpus, {}),
                    Catch::Contains("4 ranks do not fit on 1 node of 3 GPUs"));
  Machine cores = gpus;
  cores.has_gpus = false;
  cores.devices = 4;
  cores.rates[0].ranks = 2;
  cores.rates[0].threads = 2;
  const Config config = config_on(DeviceKind::kCpu, 1, 2);
  CHECK_THROWS_WITH(
      predict(config, cores, {.nodes = 1, .threads = 3}),
      Catch::Contains(
          "threads is 3, but the machine gpus was measured with 2 per rank for 2 ranks"));
  const StepTime time = predict(config, cores, {.nodes = 1, .threads = 2});
  CHECK(time.matmul_flop_rate == 2e9);
  CHECK(time.seconds >= time.layer_seconds + time.update_seconds + time.other_seconds);
  // Eight ranks with two threads each share four cores, so at most two ranks compute at once.
  CHECK(predict(config_on(DeviceKind::kCpu, 1, 8), cores, {}).matmul_flop_rate == 2e9);
  // A rank computes as fast as with two ranks whenever it has cores, and three other pairs have
  // their turns in between.
  const StepTime eight = predict(config_on(DeviceKind::kCpu, 1, 8), cores, {});
  CHECK(eight.layer_seconds == Approx(time.layer_seconds).epsilon(0.2));
  CHECK(eight.seconds > 4 * time.layer_seconds);
}

}  // namespace
}  // namespace ftrun
