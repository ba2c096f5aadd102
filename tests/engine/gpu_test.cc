#include "engine/gpu.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "emulated_gpu.h"
#include "engine/choose_gpu.h"
#include "engine/device_times.h"
#include "engine/generate.h"
#include "engine/gpu_device.h"
#include "exchange_runs.h"
#include "rank_fixture.h"
#include "training/describe_step.h"

#include <catch2/catch.hpp>

// These tests run the lanes of a GPU on an emulated one that uses the CPU's kernels. Training must
// have the bits of the CPU in whatever order the streams advance. Host code must not access device
// memory: that would end the test's process.

namespace ftrun {
namespace {

using testing::EmulatedGpu;
using testing::EmulatedLinks;
using testing::EmulatedNccl;
using testing::EmulatorOptions;
using testing::RankFixture;
using testing::SingleRank;

constexpr int kGpuSteps = 3;

/// A Gpu that runs on the emulator, and the emulator itself.
struct Emulated {
  explicit Emulated(uint64_t seed, GpuOptions options = {})
      : Emulated(EmulatorOptions{.seed = seed}, options) {}
  explicit Emulated(const EmulatorOptions& emulator, GpuOptions options = {})
      : device(new EmulatedGpu(emulator)), gpu(std::unique_ptr<DeviceKernels>(device), options) {}
  EmulatedGpu* device;
  Gpu gpu;
};

/// GpuOutcome holds the result of a training.
struct GpuOutcome {
  std::map<std::string, std::vector<std::byte>> state;
  std::vector<double> losses;
  std::vector<double> norms;
  double evaluation_loss = 0;
  bool operator==(const GpuOutcome&) const = default;
};

void require_within_bounds(const GpuOutcome& outcome, const GpuOutcome& expected) {
  REQUIRE(outcome.losses == expected.losses);
  REQUIRE(outcome.norms == expected.norms);
  REQUIRE(outcome.evaluation_loss == expected.evaluation_loss);
  REQUIRE(outcome.state == expected.state);
}

double evaluate_loss(RankFixture& fixture) {
  ForwardRun run;
  run.micro_batches = {fixture.batches.data(), 1};
  fixture.evaluation_executor.run_forward(run);
  return run.result.loss_sum;
}

/// Trains with evaluations in between; the gradient of the last step is clipped.
void train_on_gpu(RankFixture& fixture, GpuOutcome& outcome) {
  const auto note = [&](const StepRun& run) {
    require(run.result.finite && run.result.counted_tokens > 0, "the steps are finite");
    outcome.losses.push_back(run.result.loss_sum);
    outcome.norms.push_back(run.result.gradient_norm);
  };
  for (int64_t step = 1; step <= kGpuSteps; ++step) {
    note(fixture.train(step));
    if (step == 2) outcome.evaluation_loss = evaluate_loss(fixture);
  }
  StepRun clipped = fixture.prepare_step(kGpuSteps + 1);
  constexpr double kClipNorm = 1e-3;
  clipped.policy = step_policy({.clip_norm = kClipNorm});
  fixture.train_executor.run(clipped);
  note(clipped);
  require(clipped.result.gradient_norm > kClipNorm, "there is something to clip");
}

GpuOutcome train_alone(const Config& config, Gpu* gpu) {
  SingleRank single_rank;
  GpuOutcome outcome;
  RankFixture fixture(config, testing::model_of_many_blocks(),
                      testing::communicators_of(*single_rank.group), gpu);
  train_on_gpu(fixture, outcome);
  outcome.state = testing::saved_contents(fixture.state);
  return outcome;
}

/// Returns the function with which a communicator adds in rank order when comm.deterministic is
/// set.
SumBlocks sums_of(EmulatedGpu& gpu) {
  return [&gpu](const BlockSum& sum) {
    gpu.sum_blocks(sum.blocks, sum.ranks, sum.stride, sum.dtype, sum.count, sum.out,
                   static_cast<DeviceStream>(sum.stream));
  };
}

/// Trains on several ranks, on emulated GPUs that advance in an order drawn from `seed`; 0 trains
/// on the CPU.
GpuOutcome train_together(const Config& config, int ranks, uint64_t seed,
                          testing::EmulatedSums sums = testing::EmulatedSums::kRankOrder,
                          bool deterministic = false) {
  GpuOutcome outcome;
  testing::CombinedState whole;
  EmulatedLinks links(ranks, sums);
  testing::run_on_mesh(1, ranks, [&](Rendezvous& rendezvous, const RankCommunicators& host) {
    std::optional<Emulated> emulated;
    std::optional<EmulatedNccl> nccl;
    RankCommunicators communicators = host;
    if (seed > 0) {
      emulated.emplace(seed + 100 * static_cast<uint64_t>(rendezvous.rank()));
      nccl.emplace(*emulated->device, links, *host.host_world,
                   testing::EmulatedNcclOptions{
                       .sum_blocks = deterministic ? sums_of(*emulated->device) : SumBlocks{}});
      communicators.group_communicators = {&*nccl};
    }
    RankFixture fixture(config, testing::model_of_many_blocks(), communicators,
                        emulated ? &emulated->gpu : nullptr);
    GpuOutcome own;
    train_on_gpu(fixture, own);
    whole.add(fixture.state.slices());
    if (rendezvous.rank() == 0) outcome = own;
  });
  outcome.state = whole.contents();
  return outcome;
}

using Variants = std::vector<std::pair<std::string, Config>>;

/// Lists configs of a ZeRO stage with different tiers, overlap and recompute.
Variants gpu_variants(int64_t stage, bool bf16) {
  Config plain = testing::config_of_stage(stage);
  plain.bf16.enabled = bf16;
  plain.zero.param_persistence_threshold = 64;
  Variants all;
  const auto with = [&](const std::string& name, const std::function<void(Config&)>& change) {
    all.emplace_back(cat("stage ", stage, bf16 ? " bf16, " : " fp32, ", name), plain);
    change(all.back().second);
  };
  with("plain", [](Config&) {});
  with("overlap", [](Config& c) { c.zero.overlap_comm = true; });
  // Five micro-batches need more pinned memory than the ring has slots.
  with("five micro-batches", [](Config& c) { c.gradient_accumulation_steps = 5; });
  with("full recompute, inputs on the host", [](Config& c) {
    c.recompute.policy = RecomputeLevel::kFull;
    c.activation_checkpointing.cpu_checkpointing = true;
    c.zero.overlap_comm = true;
  });
  with("selective recompute", [](Config& c) { c.recompute.policy = RecomputeLevel::kSelective; });
  if (bf16)
    with("gradients in fp32, sent in bf16", [](Config& c) {
      c.data_types.grad_accum_dtype = ConfigDtype::kFp32;
      c.reduction.communication_data_type = ConfigDtype::kBf16;
      testing::offload_to(c, OffloadDevice::kCpu);
    });
  if (stage == 0) return all;
  for (const OffloadDevice device : {OffloadDevice::kCpu, OffloadDevice::kNvme})
    for (const bool overlap : {false, true})
      with(cat("tier ", name_of(device), overlap ? ", overlap" : ""), [&](Config& c) {
        testing::offload_to(c, device);
        c.zero.overlap_comm = overlap;
      });
  with("half of the optimizer on the host", [](Config& c) {
    testing::offload_to(c, OffloadDevice::kCpu);
    c.zero.offload_optimizer.ratio = 0.5;
    c.zero.offload_param.device = OffloadDevice::kNone;
    c.zero.overlap_comm = true;
  });
  if (stage < 3) return all;
  with("parameters on disk, the optimizer on the host", [](Config& c) {
    testing::offload_to(c, OffloadDevice::kNvme);
    c.zero.offload_optimizer.device = OffloadDevice::kCpu;
    c.zero.overlap_comm = true;
    c.zero.max_reuse_distance = 100'000;
  });
  with("parameters on the host, the optimizer on the device", [](Config& c) {
    testing::offload_to(c, OffloadDevice::kCpu);
    c.zero.offload_optimizer.device = OffloadDevice::kNone;
    c.zero.overlap_comm = true;
  });
  return all;
}

Variants all_variants() {
  Variants all;
  for (const int64_t stage : {0, 1, 2, 3})
    for (const bool bf16 : {false, true})
      for (auto& variant : gpu_variants(stage, bf16)) all.push_back(std::move(variant));
  return all;
}

std::set<Lane> lanes_of(const StepPlan& plan) {
  std::set<Lane> lanes{Lane::kCompute};
  for (const Program* program : {&plan.train.program, &plan.evaluate.program})
    for (const Instr& instr : program->instrs) lanes.insert(instr.lane);
  return lanes;
}

TEST_CASE("gpu: the lanes that the programs use have a stream each, and no others do") {
  SingleRank single_rank;
  for (const bool offloads : {false, true}) {
    Emulated emulated(3);
    REQUIRE(emulated.device->streams() == 1);
    Config config = testing::config_of_stage(2);
    if (offloads) testing::offload_to(config, OffloadDevice::kCpu);
    RankFixture fixture(config, testing::small_model(),
                        testing::communicators_of(*single_rank.group), &emulated.gpu);
    fixture.train(1);
    const std::set<Lane> lanes = lanes_of(fixture.plan);
    REQUIRE(lanes.contains(Lane::kToHost) == offloads);
    REQUIRE(emulated.device->streams() == lanes.size());
  }
}

TEST_CASE(
    "gpu: one rank gets the CPU's bits at every stage and tier, in any order of the streams") {
  set_kernel_threads(1);
  for (const auto& [name, config] : all_variants()) {
    const GpuOutcome expected = train_alone(config, nullptr);
    REQUIRE(expected.losses[0] != expected.losses[2]);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      INFO(name << ", seed " << seed);
      Emulated emulated(seed);
      require_within_bounds(train_alone(config, &emulated.gpu), expected);
    }
  }
}

TEST_CASE("gpu: two and three ranks with collectives of device memory get the CPU's bits") {
  set_kernel_threads(1);
  int ranks = 3;
  for (const auto& [name, config] : all_variants()) {
    ranks = 5 - ranks;  // alternates 2 and 3: neighboring variants differ in little else
    const GpuOutcome expected = train_together(config, ranks, 0);
    INFO(name << ", " << ranks << " ranks");
    require_within_bounds(train_together(config, ranks, static_cast<uint64_t>(ranks)), expected);
  }
}

TEST_CASE("gpu: SGD, a tied matrix, pageable memory and measured time change no bit") {
  set_kernel_threads(1);
  Config sgd = testing::config_of_stage(3);
  sgd.optimizer.type = OptimizerType::kSgd;
  sgd.optimizer.momentum = 0.9;
  sgd.optimizer.weight_decay = 0.1;
  for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
    testing::offload_to(sgd, device);
    Emulated emulated(5, {.pin_memory = false, .timed = true});
    REQUIRE(train_alone(sgd, &emulated.gpu) == train_alone(sgd, nullptr));
  }
  SingleRank single_rank;
  Emulated emulated(6);
  RankFixture gpu_fixture(testing::small_run_config(), testing::small_model(true),
                          testing::communicators_of(*single_rank.group), &emulated.gpu);
  RankFixture cpu_fixture(testing::small_run_config(), testing::small_model(true),
                          *single_rank.group);
  for (int64_t step = 1; step <= kGpuSteps; ++step)
    REQUIRE(gpu_fixture.train(step).result.loss_sum == cpu_fixture.train(step).result.loss_sum);
  REQUIRE(testing::saved_contents(gpu_fixture.state) == testing::saved_contents(cpu_fixture.state));
}

/// Returns a config whose whole optimizer state is on the host, and is updated while compute runs.
Config offloading_config(OffloadDevice device) {
  Config config = testing::config_of_stage(3);
  testing::offload_to(config, device);
  config.zero.overlap_comm = true;
  return config;
}

TEST_CASE("gpu: waits that are missing from a program are found") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  SingleRank single_rank;
  RankFixture sound(offloading_config(OffloadDevice::kCpu), model, *single_rank.group);
  sound.train(1);
  StepRun expected = sound.prepare_step(2);
  sound.train_executor.run(expected);
  int found = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Emulated emulated(seed);
    RankFixture fixture(offloading_config(OffloadDevice::kCpu), model,
                        testing::communicators_of(*single_rank.group), &emulated.gpu);
    Program careless = fixture.plan.train.program;
    for (Instr& instr : careless.instrs)
      if (instr.kind == InstrKind::kForward || instr.kind == InstrKind::kBackward)
        instr.waits.clear();
    Executor executor(careless, fixture.plan.train.model, fixture.memory, fixture.communicators);
    fixture.train(1);
    StepRun run = fixture.prepare_step(2);
    // A kernel that reads a micro-batch before it has arrived may find invalid labels and throw.
    try {
      executor.run(run);
    } catch (const std::exception&) {
      run.result.loss_sum = std::numeric_limits<double>::quiet_NaN();
    }
    found += run.result.loss_sum == expected.result.loss_sum ? 0 : 1;
  }
  REQUIRE(found > 0);
}

/// Returns the gradient norm of the second step on two ranks. With `careless`, their programs do
/// not wait for collectives.
double second_norm(const Config& config, uint64_t seed, bool careless) {
  double norm = 0;
  EmulatedLinks links(2);
  testing::run_on_mesh(1, 2, [&](Rendezvous& rendezvous, const RankCommunicators& host) {
    Emulated emulated(seed + 100 * static_cast<uint64_t>(rendezvous.rank()));
    EmulatedNccl nccl(*emulated.device, links, *host.host_world);
    const RankCommunicators communicators{{&nccl}, host.host_world, host.host_model};
    RankFixture fixture(config, testing::model_of_many_blocks(), communicators, &emulated.gpu);
    fixture.train(1);
    Program program = fixture.plan.train.program;
    if (careless)
      for (Instr& instr : program.instrs)
        std::erase_if(instr.waits,
                      [&](InstrId wait) { return program.instr(wait).lane == lane_of(0); });
    Executor executor(program, fixture.plan.train.model, fixture.memory, communicators);
    StepRun run = fixture.prepare_step(2);
    executor.run(run);
    if (rendezvous.rank() == 0) norm = run.result.gradient_norm;
  });
  return norm;
}

TEST_CASE("gpu: collectives that nobody waits for are found") {
  set_kernel_threads(1);
  for (const int64_t stage : {0, 1, 2, 3}) {
    Config config = testing::config_of_stage(stage);
    config.zero.overlap_comm = true;
    const double expected = second_norm(config, 1, false);
    INFO("stage " << stage);
    REQUIRE(second_norm(config, 2, false) == expected);
    bool found = false;
    for (uint64_t seed = 2; seed <= 9 && !found; ++seed)
      found = second_norm(config, seed, true) != expected;
    REQUIRE(found);
  }
}

/// Trains three ranks over a transport that adds in another order than rank order, as NCCL may.
GpuOutcome train_hop_by_hop(const Config& config, bool deterministic) {
  return train_together(config, 3, 4, testing::EmulatedSums::kHopByHop, deterministic);
}

TEST_CASE(
    "gpu: with sums in rank order, ranks get the CPU's bits over a transport that adds in another "
    "order") {
  set_kernel_threads(1);
  for (const int64_t stage : {0, 1, 2, 3})
    for (const bool bf16 : {false, true}) {
      INFO("stage " << stage << (bf16 ? " bf16" : " fp32"));
      Config config = testing::config_of_stage(stage);
      config.bf16.enabled = bf16;
      config.zero.overlap_comm = true;
      const GpuOutcome expected = train_together(config, 3, 0);
      require_within_bounds(train_hop_by_hop(config, true), expected);
      REQUIRE(train_hop_by_hop(config, false).state != expected.state);
    }
}

/// OrderedSumFixture holds numbers on a device, and the results of collectives on these numbers.
struct OrderedSumFixture {
  OrderedSumFixture(Rendezvous& rendezvous, EmulatedLinks& links, const RankCommunicators& host)
      : emulated(11 + static_cast<uint64_t>(rendezvous.rank())),
        nccl(*emulated.device, links, *host.host_world, {.sum_blocks = sums_of(*emulated.device)}) {
    nccl.use_stream(emulated.gpu.stream(Lane::kCompute));
  }
  Emulated emulated;
  EmulatedNccl nccl;
};

template <typename T>
T operand_element(int rank, int64_t i) {
  return static_cast<T>(std::sin(static_cast<double>(i % 1009 * 7 + rank * 13)) * 1e3);
}
template <typename T>
std::vector<T> operand_of(int rank, int64_t count) {
  std::vector<T> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(operand_element<T>(rank, i));
  return numbers;
}

template <typename T>
void check_ordered_sums(DType dtype, int64_t count) {
  constexpr int kRanks = 3;
  const auto expected = [&](int64_t i) {
    T sum = operand_element<T>(0, i);
    for (int rank = 1; rank < kRanks; ++rank) sum += operand_element<T>(rank, i);
    return sum;
  };
  EmulatedLinks links(kRanks, testing::EmulatedSums::kHopByHop);
  testing::run_on_mesh(1, kRanks, [&](Rendezvous& rendezvous, const RankCommunicators& host) {
    OrderedSumFixture fixture(rendezvous, links, host);
    const std::vector<T> input = operand_of<T>(rendezvous.rank(), count);
    const auto bytes = static_cast<int64_t>(input.size() * sizeof(T));
    std::vector<T> output(input.size());
    const GpuBlock data = GpuBlock::allocate_on_device(fixture.emulated.gpu, bytes);
    const auto check_at = [&](int64_t i) {
      if (output[static_cast<size_t>(i)] != expected(i))
        bug(cat("element ", i, " is not the sum in rank order"));
    };
    fixture.emulated.gpu.upload(data.data(), input.data(), bytes);
    fixture.nccl.all_reduce(data.data(), count, dtype, ReduceOp::kSum, {"sums"}).wait();
    fixture.emulated.gpu.download(output.data(), data.data(), bytes);
    for (int64_t i = 0; i < count; i += std::max<int64_t>(1, count / 97)) check_at(i);
    check_at(count - 1);
    // reduce_scatter writes a rank's third in place, into the same buffer.
    const int64_t third = count / kRanks;
    if (third == 0) return;
    fixture.emulated.gpu.upload(data.data(), input.data(), bytes);
    const int64_t own = third * rendezvous.rank();
    T* const out = data.as<T>() + own;
    fixture.nccl.reduce_scatter(data.data(), out, third, dtype, ReduceOp::kSum, {"sums"}).wait();
    fixture.emulated.gpu.download(output.data() + own, out,
                                  third * static_cast<int64_t>(sizeof(T)));
    for (int64_t i = own; i < own + third; i += std::max<int64_t>(1, third / 97)) check_at(i);
  });
}

TEST_CASE(
    "gpu: sums in rank order are exact for few numbers, for uneven parts, and for more than the "
    "scratch holds") {
  for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{5001}, int64_t{50'003}}) {
    check_ordered_sums<float>(DType::kF32, count);
    check_ordered_sums<double>(DType::kF64, count);
  }
  check_ordered_sums<float>(DType::kF32, DeviceCommunicator::kScratchBytes / 4 + 77);
}

/// LostPeer holds the error that rank 0 reports when rank 1 does not reach the second step, and the
/// state that rank 0 publishes on its board while it waits for the device.
struct LostPeer {
  std::string message;
  RankState waiting;
};

bool is_deciding(const RankState& state) {
  return std::ranges::any_of(state.lanes, [](const Activity& lane) {
    return std::string_view(lane.what).find("decide") != std::string_view::npos;
  });
}

LostPeer lose_peer() {
  LostPeer found;
  EmulatedLinks links(2);
  Communicator* waits = nullptr;
  testing::run_on_mesh(1, 2, [&](Rendezvous& rendezvous, const RankCommunicators& host) {
    Emulated emulated(20 + static_cast<uint64_t>(rendezvous.rank()));
    EmulatedNccl nccl(*emulated.device, links, *host.host_world, {.rendezvous = &rendezvous});
    RankCommunicators communicators{{&nccl}, host.host_world, host.host_model};
    communicators.board = &rendezvous.board();
    RankFixture fixture(testing::config_of_stage(2), testing::model_of_many_blocks(), communicators,
                        &emulated.gpu);
    const auto shown = [&](int rank) { return rendezvous.view_members({rank}, nccl.name())[0]; };
    fixture.train(1);
    emulated.gpu.drain();
    if (rendezvous.rank() == 0) {
      waits = &nccl;
      rendezvous.all_gather_text("away", "");
      found.message = testing::error_text_of([&] { fixture.train(2); });
      rendezvous.all_gather_text("noticed", "");
      return;
    }
    // The watching threads publish the end of a collective a little later than it happens.
    const auto last = [&] { return shown(1).record; };
    while (last().sequence < nccl.stats().total().calls ||
           last().state != CollectiveState::kFinished)
      continue;
    rendezvous.all_gather_text("away", "");
    while (shown(0).record.state != CollectiveState::kEntered || !is_deciding(shown(0).state))
      continue;
    found.waiting = shown(0).state;
    waits->set_timeout(std::chrono::milliseconds(1));
    rendezvous.all_gather_text("noticed", "");
  });
  return found;
}

TEST_CASE("gpu: programs exchange blocks, shift and exchange counted rows of device memory") {
  constexpr int kRanks = 4;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    EmulatedLinks links(kRanks);
    testing::run_on_mesh(1, kRanks, [&](Rendezvous& rendezvous, const RankCommunicators& host) {
      Emulated emulated(seed + 100 * static_cast<uint64_t>(rendezvous.rank()));
      EmulatedNccl nccl(*emulated.device, links, *host.host_world);
      testing::require_exchanges({{&nccl}, host.host_world, host.host_model, nullptr},
                                 &emulated.gpu);
    });
  }
}

TEST_CASE(
    "gpu: a lost peer is named within the time limit, with the collective in which the device "
    "waits") {
  set_kernel_threads(1);
  const auto [message, waiting] = lose_peer();
  REQUIRE_THAT(message,
               Catch::StartsWith("rank 0 waited ") && Catch::Contains(" in reduce_scatter #") &&
                   Catch::Contains(" of GPUs: rank 1 (process ") &&
                   Catch::Contains(" has not entered it; its last was all_gather #") &&
                   Catch::Contains(", finished ") && Catch::Contains("raise comm.timeout"));
  // Rank 0 is not busy with work of its own, so peers that wait for rank 0 name the rank for which
  // it waits.
  REQUIRE_FALSE(find_own_work(waiting).has_value());
}

TEST_CASE(
    "gpu: steps that are captured once and started as a whole give the same bits, with new batches "
    "and scalars") {
  set_kernel_threads(1);
  Config sgd = testing::config_of_stage(0);
  sgd.optimizer.type = OptimizerType::kSgd;
  sgd.optimizer.momentum = 0.9;
  Config five = testing::config_of_stage(1);
  five.gradient_accumulation_steps = 5;
  Config bf16 = testing::config_of_stage(2);
  bf16.bf16.enabled = true;
  Config again = testing::config_of_stage(3);
  again.recompute.policy = RecomputeLevel::kFull;
  Config dropping = testing::with_dropout(testing::config_of_stage(2));
  dropping.recompute.policy = RecomputeLevel::kSelective;
  for (const Config& config : {sgd, five, bf16, again, dropping}) {
    const GpuOutcome expected = train_alone(config, nullptr);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      Emulated emulated(seed, {.step_graph = true});
      require_within_bounds(train_alone(config, &emulated.gpu), expected);
      // The second and later steps, three of the four, are each captured in two parts: before and
      // after the decision.
      REQUIRE(emulated.device->counters().launches == 6);
    }
  }
}

TEST_CASE(
    "gpu: a replayed micro-batch has the dropout masks of its own position in the global batch, "
    "not of the captured one") {
  set_kernel_threads(1);
  SingleRank single_rank;
  Emulated emulated(4, {.step_graph = true});
  const Config config = testing::with_dropout(testing::config_of_stage(1));
  RankFixture captured(config, testing::model_of_many_blocks(),
                       testing::communicators_of(*single_rank.group), &emulated.gpu);
  RankFixture plain(config, testing::model_of_many_blocks(), *single_rank.group);
  for (int64_t step = 1; step <= 3; ++step)
    REQUIRE(captured.train(step).result.loss_sum == plain.train(step).result.loss_sum);
  for (RankFixture* fixture : {&captured, &plain}) fixture->batches[1].first_token += 1000;
  StepRun moved = captured.prepare_step(4), expected = plain.prepare_step(4);
  captured.train_executor.run(moved);
  plain.train_executor.run(expected);
  REQUIRE(moved.result.loss_sum == expected.result.loss_sum);
  REQUIRE(testing::saved_contents(captured.state) == testing::saved_contents(plain.state));
}

TEST_CASE(
    "gpu: a captured step that is not finite updates nothing and is located; programs with work on "
    "the host are not captured") {
  set_kernel_threads(1);
  SingleRank single_rank;
  Emulated emulated(5, {.step_graph = true});
  RankFixture fixture(testing::config_of_stage(1), testing::model_of_many_blocks(),
                      testing::communicators_of(*single_rank.group), &emulated.gpu);
  fixture.train(1);
  fixture.train(2);
  const auto before = testing::saved_contents(fixture.state);
  StepRun run = fixture.prepare_step(3);
  run.scalars.token_loss_factor = std::numeric_limits<float>::infinity();
  fixture.train_executor.run(run);
  REQUIRE_FALSE(run.result.finite);
  REQUIRE(testing::saved_contents(fixture.state) == before);
  REQUIRE(fixture.train_executor.find_nonfinite(run).text.find("mb 0") != std::string::npos);
  REQUIRE(fixture.train(3).result.finite);
  REQUIRE(testing::saved_contents(fixture.state) != before);
  Emulated offloading(6, {.step_graph = true});
  const Config host = offloading_config(OffloadDevice::kCpu);
  require_within_bounds(train_alone(host, &offloading.gpu), train_alone(host, nullptr));
  REQUIRE(offloading.device->counters().launches == 0);
}

TEST_CASE("gpu: a profiler shows each instruction of a step by its name") {
  set_kernel_threads(1);
  SingleRank single_rank;
  Emulated emulated(3);
  RankFixture fixture(testing::config_of_stage(1), testing::model_of_many_blocks(),
                      testing::communicators_of(*single_rank.group), &emulated.gpu);
  fixture.train(1);
  std::vector<std::string> expected;
  for (const Instr& instr : fixture.plan.train.program.instrs)
    expected.push_back(instr_label(instr));
  std::vector<std::string> found = emulated.device->ranges();
  std::sort(expected.begin(), expected.end());
  std::sort(found.begin(), found.end());
  REQUIRE(found == expected);
  REQUIRE(std::count(found.begin(), found.end(), "forward layer 2 mb 1") == 1);
}

TEST_CASE("gpu: a step makes no stream, event or memory, and waits for the device once") {
  set_kernel_threads(1);
  SingleRank single_rank;
  Emulated emulated(3);
  RankFixture fixture(testing::config_of_stage(1), testing::model_of_many_blocks(),
                      testing::communicators_of(*single_rank.group), &emulated.gpu);
  fixture.train(1);
  const EmulatedGpu::Counters before = emulated.device->counters();
  fixture.train(2);
  const EmulatedGpu::Counters after = emulated.device->counters();
  REQUIRE(after.operations > before.operations);
  REQUIRE(after.created_objects == before.created_objects);
  // The host waits once, for the decision. The marks of pinned slots (two of scalars, one of the
  // flags, one per micro-batch) were reached long before, so they cause no wait.
  REQUIRE(after.host_waits - before.host_waits == 1);
}

TEST_CASE(
    "gpu: a step with a value that is not finite changes nothing, and the first such value is "
    "located as on the CPU") {
  set_kernel_threads(1);
  for (const int64_t stage : {0, 2, 3})
    for (const OffloadDevice device :
         {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      INFO("stage " << stage << ", " << name_of(device));
      Config config = testing::config_of_stage(stage);
      testing::offload_to(config, device);
      std::vector<std::string> places;
      for (const bool on_gpu : {false, true}) {
        SingleRank single_rank;
        Emulated emulated(7);
        RankFixture fixture(config, testing::model_of_many_blocks(),
                            testing::communicators_of(*single_rank.group),
                            on_gpu ? &emulated.gpu : nullptr);
        fixture.train(1);
        const auto before = testing::saved_contents(fixture.state);
        StepRun run = fixture.prepare_step(2);
        run.scalars.token_loss_factor = std::numeric_limits<float>::infinity();
        fixture.train_executor.run(run);
        REQUIRE_FALSE(run.result.finite);
        places.push_back(fixture.train_executor.find_nonfinite(run).text);
        REQUIRE(testing::saved_contents(fixture.state) == before);
        REQUIRE(fixture.train(2).result.finite);
        REQUIRE(testing::saved_contents(fixture.state) != before);
      }
      REQUIRE(places[0].find("mb 0") != std::string::npos);
      REQUIRE(places[1] == places[0]);
    }
}

TEST_CASE("gpu: a GPU's checkpoint continues on the CPU, and the other way round") {
  set_kernel_threads(1);
  for (const OffloadDevice device :
       {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme})
    for (const bool bf16 : {false, true})
      for (const bool from_gpu : {false, true}) {
        INFO(name_of(device) << (bf16 ? " bf16" : " fp32")
                             << (from_gpu ? " from the GPU" : " from the CPU"));
        Config config = testing::config_of_stage(2);
        config.bf16.enabled = bf16;
        testing::offload_to(config, device);
        SingleRank single_rank;
        Emulated emulated(8);
        const auto rig_on = [&](bool gpu) {
          return std::make_unique<RankFixture>(config, testing::model_of_many_blocks(),
                                               testing::communicators_of(*single_rank.group),
                                               gpu ? &emulated.gpu : nullptr);
        };
        const auto first = rig_on(from_gpu);
        first->train(1);
        const testing::TemporaryFolder scratch;
        save_checkpoint(posix_files(), {scratch.path()}, {}, first->state.slices(), {});
        const auto second = rig_on(!from_gpu);
        Checkpoint checkpoint(scratch / "step-00000000");
        second->load(checkpoint);
        REQUIRE(testing::saved_contents(second->state) == testing::saved_contents(first->state));
        REQUIRE(second->train(2).result.loss_sum == first->train(2).result.loss_sum);
        REQUIRE(testing::saved_contents(second->state) == testing::saved_contents(first->state));
      }
}

TEST_CASE("gpu: parameters are collected for export, and text is continued, as on the CPU") {
  set_kernel_threads(1);
  const ModelConfig model = testing::small_model();
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<float>> heads;
  for (const bool on_gpu : {false, true}) {
    SingleRank single_rank;
    Emulated emulated(9);
    RankFixture fixture(testing::small_run_config(), model,
                        testing::communicators_of(*single_rank.group),
                        on_gpu ? &emulated.gpu : nullptr);
    fixture.train(1);
    const ProgramPlan writes = plan_generation(model, fixture.plan, 8);
    fixture.memory.allocate(writes.program);
    Executor writer(writes.program, writes.model, fixture.memory, fixture.communicators);
    texts.push_back(generate_tokens(writer, writes, fixture.memory, std::vector<int32_t>{3, 1, 4},
                                    {.tokens = 12}));
    heads.emplace_back(static_cast<size_t>(32 * 16));
    fixture.state.gather_elements("lm_head.weight", 0, 32 * 16, true, *single_rank.group,
                                  heads.back());
  }
  REQUIRE(texts[0].size() == 12);
  REQUIRE(texts[1] == texts[0]);
  REQUIRE(heads[1] == heads[0]);
}

TEST_CASE("gpu: the host cannot reach device memory; uploads and downloads can, of any size") {
  Emulated emulated(10);
  const int64_t bytes = (int64_t{20} << 20) + 5;
  const GpuBlock block = GpuBlock::allocate_on_device(emulated.gpu, bytes);
  const int sink = ::open("/dev/null", O_WRONLY);
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  REQUIRE(::write(pipe_ends[1], block.data(), 1) == -1);
  REQUIRE(errno == EFAULT);
  for (const int end : {sink, pipe_ends[0], pipe_ends[1]}) ::close(end);
  std::vector<char> input(static_cast<size_t>(bytes)), output(static_cast<size_t>(bytes), 1);
  emulated.gpu.download(output.data(), block.data(), bytes);
  REQUIRE(output == input);  // fresh memory is zero
  std::iota(input.begin(), input.end(), 0);
  emulated.gpu.upload(block.data(), input.data(), bytes);
  emulated.gpu.download(output.data(), block.data(), bytes);
  REQUIRE(output == input);
}

TEST_CASE("gpu: an array is finite only if each of its numbers is") {
  Emulated emulated(11);
  Program program;
  program.instrs.emplace_back().kind = InstrKind::kForward;
  GpuDevice device(program, emulated.gpu, {});
  std::vector<double> numbers(1000, 1e300);
  const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(double));
  const GpuBlock block = GpuBlock::allocate_on_device(emulated.gpu, bytes);
  const TypedSpan span{block.data(), DType::kF64, static_cast<int64_t>(numbers.size())};
  const auto is_finite = [&] {
    emulated.gpu.upload(block.data(), numbers.data(), bytes);
    return device.is_finite(Lane::kCompute, span);
  };
  CHECK(is_finite());
  for (const size_t place : {size_t{0}, size_t{1}, numbers.size() - 1}) {
    const double finite = std::exchange(numbers[place], std::numeric_limits<double>::infinity());
    CHECK_FALSE(is_finite());
    numbers[place] = finite;
  }
}

TEST_CASE(
    "gpu: the host tier is pinned unless the config switches that off, and a refusal says what the "
    "memory is for") {
  SingleRank single_rank;
  const auto allocate = [&](const EmulatorOptions& options, const GpuOptions& gpu) {
    return testing::error_text_of([&] {
      Emulated emulated(options, gpu);
      Config config = testing::config_of_stage(1);
      testing::offload_to(config, OffloadDevice::kCpu);
      RankFixture fixture(config, testing::model_of_many_blocks(),
                          testing::communicators_of(*single_rank.group), &emulated.gpu);
      require(fixture.train(1).result.finite, "it trains");
    });
  };
  REQUIRE(allocate({}, {}) == "");
  // The staging memory for transfers to and from the GPU is pinned in any case.
  const int64_t staging = (int64_t{16} << 20) + (int64_t{64} << 10);
  REQUIRE(allocate({.max_pinned_bytes = staging}, {.pin_memory = false}) == "");
  REQUIRE_THAT(
      allocate({.max_pinned_bytes = staging}, {}),
      Catch::StartsWith("out of memory: optimizer (buffer ") && Catch::Contains(".host) needs ") &&
          Catch::Contains(" in the host tier, ") && Catch::Contains(": cannot pin ") &&
          Catch::Contains("raise the limit; or set pin_memory: false for what is offloaded"));
  REQUIRE_THAT(allocate({.bytes = int64_t{1} << 20}, {}),
               Catch::StartsWith("out of memory: the arena of temporary buffers (peak at ") &&
                   Catch::Contains("gradients ") &&
                   Catch::Contains(" in the device tier, the rank has ") &&
                   Catch::Contains(" already: GPU 0 (the emulator) cannot allocate "));
}

TEST_CASE("gpu: seconds on the device are counted by kind if requested") {
  set_kernel_threads(1);
  SingleRank single_rank;
  Emulated emulated(11, {.timed = true});
  RankFixture fixture(offloading_config(OffloadDevice::kCpu), testing::model_of_many_blocks(),
                      testing::communicators_of(*single_rank.group), &emulated.gpu);
  fixture.train(1);
  const auto seconds = fixture.train_executor.seconds_by_kind();
  REQUIRE(seconds[static_cast<size_t>(InstrKind::kForward)] > 0);
  REQUIRE(seconds[static_cast<size_t>(InstrKind::kBackward)] > 0);
  REQUIRE(seconds[static_cast<size_t>(InstrKind::kCopy)] > 0);
  REQUIRE(seconds[static_cast<size_t>(InstrKind::kAllReduce)] == 0);
  REQUIRE(fixture.train_executor.device_times()->copy_seconds > 0);
}

TEST_CASE(
    "gpu: a traced step is launched, not replayed, and no instruction begins before those it waits "
    "for end") {
  set_kernel_threads(1);
  for (const bool captured : {false, true}) {
    Config config = testing::config_of_stage(1);
    if (!captured) config = offloading_config(OffloadDevice::kCpu);
    SingleRank single_rank;
    Emulated emulated(12, {.step_graph = captured});
    RankFixture fixture(config, testing::model_of_many_blocks(),
                        testing::communicators_of(*single_rank.group), &emulated.gpu);
    RankFixture cpu_fixture(config, testing::model_of_many_blocks(), *single_rank.group);
    for (int64_t step = 1; step <= 5; ++step) {
      const double expected = cpu_fixture.train(step).result.loss_sum;
      fixture.batches = cpu_fixture.batches;
      StepRun run = fixture.prepare_step(step);
      run.traced = step == 3 || step == 4;
      const int64_t launches = emulated.device->counters().launches;
      fixture.train_executor.run(run);
      INFO("step " << step << (captured ? ", captured" : ""));
      REQUIRE(run.result.loss_sum == expected);
      const bool replays = captured && step > 1 && !run.traced;
      REQUIRE((emulated.device->counters().launches > launches) == replays);
      REQUIRE_FALSE(fixture.train_executor.device_times().has_value());
      if (!run.traced) continue;
      const Program& program = fixture.plan.train.program;
      const std::vector<RunInterval>& ran = fixture.train_executor.trace().instrs;
      REQUIRE(ran.size() == program.instrs.size());
      double busy = 0;
      for (size_t i = 0; i < ran.size(); ++i) {
        busy += ran[i].end_seconds - ran[i].begin_seconds;
        REQUIRE((ran[i].begin_seconds >= 0 && ran[i].end_seconds >= ran[i].begin_seconds));
        for (const InstrId wait : program.instrs[i].waits)
          REQUIRE(ran[static_cast<size_t>(wait)].end_seconds <= ran[i].begin_seconds);
      }
      REQUIRE(busy > 0);
    }
    REQUIRE(testing::saved_contents(fixture.state) == testing::saved_contents(cpu_fixture.state));
  }
}

TEST_CASE("gpu: work that overlaps with computation is distinguished from other work") {
  Program program;
  const auto add = [&](Lane lane, InstrKind kind) {
    program.instrs.emplace_back().lane = lane;
    program.instrs.back().kind = kind;
  };
  add(Lane::kCompute, InstrKind::kForward);   // 0 to 2
  add(Lane::kCompute, InstrKind::kBackward);  // 3 to 6
  add(Lane::kToDevice, InstrKind::kCopy);     // 1 to 4: 1 s of it between the two, so not hidden
  add(Lane::kToHost, InstrKind::kCopy);       // 6 to 7: after both
  add(lane_of(0), InstrKind::kAllReduce);     // 5 to 8
  add(Lane::kDisk, InstrKind::kCopy);         // not a copy between device and host
  const DeviceTimes times =
      compute_device_times(program, {{0, 2}, {3, 6}, {1, 4}, {6, 7}, {5, 8}, {0, 9}});
  REQUIRE(times.seconds_by_kind[static_cast<size_t>(InstrKind::kCopy)] == 13);
  REQUIRE(times.copy_seconds == 4);
  REQUIRE(times.hidden_copy_seconds == 2);
  REQUIRE(times.exposed_communication_seconds == 2);
  REQUIRE(overlap_text(times) ==
          "copies between device and host: 4000.00 ms, 50 % of it during computation");
}

TEST_CASE("gpu: each rank has a GPU of its own, or an error that says why not") {
  REQUIRE(gpu_of_rank(0, 1) == 0);
  REQUIRE(gpu_of_rank(3, 8) == 3);
  REQUIRE(gpu_of_rank(3, 1) == 0);
  REQUIRE(gpu_of_rank(2, 0) == 2);
  REQUIRE(testing::error_text_of([] { gpu_of_rank(4, 4); }) ==
          "this rank is number 4 of its machine, and its process sees 4 GPUs\n"
          "  remedy: start one rank per GPU, check CUDA_VISIBLE_DEVICES, or set "
          "device: cpu");
  // Slices of one GPU (MIG) have the same bus address, and two hosts may have the same name.
  const auto place = [](const char* uuid, const char* bus) {
    DeviceInfo gpu;
    gpu.uuid = uuid;
    gpu.bus_id = bus;
    return gpu_label(gpu, "node");
  };
  check_distinct_gpus({place("GPU-1", "0000:1B:00.0"), place("GPU-2", "0000:1B:00.0"),
                       place("GPU-3", "0000:1C:00.0")});
  REQUIRE(
      testing::error_text_of([&] {
        check_distinct_gpus({place("GPU-1", "0"), place("GPU-2", "0"), place("GPU-1", "0")});
      }) ==
      "ranks 0 and 2 have the same GPU, GPU-1 (0 of node)\n"
      "  remedy: start one rank per GPU; if the launcher makes one GPU visible to each process, it "
      "must be a different one for each (CUDA_VISIBLE_DEVICES)");
}

}  // namespace
}  // namespace ftrun
