#include "engine/executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <map>

#include "base/clock.h"
#include "data/counting_new.h"
#include "rank_fixture.h"
#include "training/stop_signal.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::RankFixture;
using testing::SingleRank;

/// Returns the parameters and optimizer states of the whole model, all of which a rank holds at
/// stage 0.
std::vector<float> floats_of(const RankFixture& fixture) {
  std::vector<float> all;
  for (const auto& [name, bytes] : testing::saved_contents(fixture.state)) {
    const auto* begin = reinterpret_cast<const float*>(bytes.data());
    all.insert(all.end(), begin, begin + bytes.size() / sizeof(float));
  }
  return all;
}

/// Returns the number of allocations that all ranks together make in four steps, after two steps of
/// warm-up. It is the smallest of three tries, because a one-time allocation of a slow thread may
/// fall into the first.
int64_t allocations_of_steps(int world_size, const Config& config, const ModelConfig& model,
                             bool traced = false) {
  int64_t made = -1;
  testing::require_no_failures(testing::errors_on_ranks(
      world_size,
      [&](Rendezvous&, Communicator& group) {
        RankFixture fixture(config, model, group);
        for (int64_t step = 1; step <= 2; ++step) fixture.train(step);
        // The fixture builds new batches for each step, which allocates; only the executor's step
        // counts.
        StepRun run = fixture.prepare_step(3);
        run.traced = traced;
        for (int attempt = 0; attempt < 3; ++attempt) {
          group.barrier({"begin"});
          const int64_t before = testing::allocations_so_far();
          for (int step = 0; step < 4; ++step) fixture.train_executor.run(run);
          group.barrier({"end"});
          const int64_t now = testing::allocations_so_far() - before;
          if (group.rank() == 0) made = attempt == 0 ? now : std::min(made, now);
        }
      },
      std::chrono::hours(1)));
  return made;
}

TEST_CASE("after the second step nothing is allocated, at any stage and tier") {
  set_kernel_threads(1);
  for (const int world_size : {1, 2})
    for (const int64_t stage : {0, 1, 2, 3})
      for (const bool overlap : {false, true})
        for (const OffloadDevice device :
             {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
          if (stage == 0 && device != OffloadDevice::kNone) continue;
          Config config = testing::config_of_stage(stage);
          config.zero.overlap_comm = overlap;
          config.zero.reduce_bucket_size = 1000;
          testing::offload_to(config, device);
          INFO(world_size << " ranks, stage " << stage << ", overlap " << overlap << ", tier "
                          << name_of(device));
          REQUIRE(allocations_of_steps(world_size, config, testing::small_model()) == 0);
        }
}

TEST_CASE("nothing is allocated after the second step in 16 bits with recompute either") {
  set_kernel_threads(1);
  for (const int64_t stage : {0, 2, 3}) {
    for (const bool half : {false, true}) {
      Config config = testing::config_of_stage(stage);
      (half ? config.fp16.enabled : config.bf16.enabled) = true;
      config.recompute.policy = RecomputeLevel::kFull;
      config.activation_checkpointing.cpu_checkpointing = true;
      testing::offload_to(config, OffloadDevice::kCpu);
      INFO("stage " << stage << (half ? " fp16" : " bf16"));
      REQUIRE(allocations_of_steps(2, config, testing::model_of_many_blocks()) == 0);
    }
  }
}

TEST_CASE("traced steps after the first one allocate nothing") {
  set_kernel_threads(1);
  Config config = testing::config_of_stage(3);
  testing::offload_to(config, OffloadDevice::kCpu);
  REQUIRE(allocations_of_steps(2, config, testing::small_model(), true) == 0);
}

/// Returns what is wrong with a trace: an instruction that began before an instruction it waits
/// for, or before its predecessor on the lane, had ended; "" if nothing is.
std::string trace_fault(const Program& program, const std::vector<RunInterval>& ran) {
  constexpr double kRounding = 1e-9;
  std::map<Lane, double> free;
  for (size_t i = 0; i < ran.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const RunInterval& own = ran[i];
    if (own.end_seconds == own.begin_seconds) continue;
    if (own.begin_seconds < 0 || own.end_seconds < own.begin_seconds)
      return cat(instr_label(instr), " has no time");
    if (own.begin_seconds + kRounding < free[instr.lane])
      return cat(instr_label(instr), " overlaps");
    free[instr.lane] = own.end_seconds;
    for (const InstrId wait : instr.waits)
      if (own.begin_seconds + kRounding < ran[static_cast<size_t>(wait)].end_seconds)
        return cat(instr_label(instr), " began before the end of ",
                   instr_label(program.instr(wait)));
  }
  return "";
}

TEST_CASE(
    "a trace has every instruction in an order that the waits allow, and tracing changes no "
    "result") {
  set_kernel_threads(1);
  for (const int64_t stage : {1, 3}) {
    Config config = testing::config_of_stage(stage);
    config.zero.overlap_comm = true;
    testing::offload_to(config, OffloadDevice::kCpu);
    testing::require_no_failures(testing::errors_on_ranks(2, [&](Rendezvous&, Communicator& group) {
      RankFixture fixture(config, testing::model_of_many_blocks(), group);
      RankFixture plain(config, testing::model_of_many_blocks(), group);
      const Program& program = fixture.plan.train.program;
      require(fixture.train(1).result.loss_sum == plain.train(1).result.loss_sum,
              "both train alike");
      require(fixture.train_executor.trace().instrs.empty(),
              "nothing is recorded unless requested");
      const double expected = plain.train(2).result.loss_sum;
      fixture.batches = plain.batches;
      StepRun run = fixture.prepare_step(2);
      run.traced = true;
      const auto start = std::chrono::steady_clock::now();
      fixture.train_executor.run(run);
      const double took = seconds_since(start);
      const RunTrace& trace = fixture.train_executor.trace();
      require(run.result.loss_sum == expected, "a traced step is the same step");
      require(trace.begin >= start, "the trace begins in its step");
      require(trace.instrs.size() == program.instrs.size(), "every instruction has its times");
      std::array<double, kInstrKinds> by_kind{};
      size_t left_out = 0;
      for (size_t i = 0; i < trace.instrs.size(); ++i) {
        const RunInterval& ran = trace.instrs[i];
        left_out += ran.end_seconds > ran.begin_seconds ? 0 : 1;
        require(ran.end_seconds <= took, "an instruction ends in its step");
        by_kind[static_cast<size_t>(program.instrs[i].kind)] += ran.end_seconds - ran.begin_seconds;
      }
      require(left_out == 0, "every instruction ran");
      const std::string fault = trace_fault(program, trace.instrs);
      require(fault.empty(), fault.c_str());
      for (size_t kind = 0; kind < kInstrKinds; ++kind)
        require(std::abs(by_kind[kind] - fixture.train_executor.seconds_by_kind()[kind]) < 1e-6,
                "the instructions of a kind take as long as the executor counts");
      // A trace that violates a wait must be reported.
      std::vector<RunInterval> wrong = trace.instrs;
      for (size_t i = 0; i < wrong.size(); ++i)
        if (!program.instrs[i].waits.empty()) {
          wrong[static_cast<size_t>(program.instrs[i].waits.front())].end_seconds =
              wrong[i].end_seconds;
          break;
        }
      require(!trace_fault(program, wrong).empty(), "a trace that violates a wait is detected");
    }));
  }
}

TEST_CASE(
    "instructions that a step leaves out because it is not finite have no time in its trace") {
  set_kernel_threads(1);
  SingleRank single_rank;
  RankFixture fixture(testing::config_of_stage(1), testing::small_model(), *single_rank.group);
  fixture.train(1);
  StepRun run = fixture.prepare_step(2);
  run.traced = true;
  run.scalars.token_loss_factor = std::numeric_limits<float>::infinity();
  fixture.train_executor.run(run);
  REQUIRE_FALSE(run.result.finite);
  const Program& program = fixture.plan.train.program;
  const std::vector<RunInterval> ran = fixture.train_executor.trace().instrs;
  for (size_t i = 0; i < ran.size(); ++i)
    CHECK((ran[i].end_seconds > ran[i].begin_seconds) == !program.instrs[i].if_finite);
  // find_nonfinite() runs the step once more, untraced: the trace stays the first run's.
  StepRun again = run;
  fixture.train_executor.find_nonfinite(again);
  CHECK(fixture.train_executor.trace().instrs == ran);
}

TEST_CASE(
    "two ranks, and one rank with twice the micro-batches, take the same step up to rounding") {
  set_kernel_threads(1);
  std::vector<MicroBatch> batches;
  for (uint64_t i = 0; i < 4; ++i) batches.push_back(testing::random_batch({2, 8}, i));
  const auto step = [&](RankFixture& fixture, std::span<const MicroBatch> mine) {
    StepRun run = fixture.prepare_step(1);
    run.micro_batches = mine;
    run.scalars.token_loss_factor = 1.0F / 64;
    run.policy = step_policy({.clip_norm = 0.1});
    fixture.train_executor.run(run);
    return run;
  };
  SingleRank single_rank;
  Config four = testing::small_run_config();
  four.gradient_accumulation_steps = 4;
  RankFixture single(four, testing::small_model(), *single_rank.group);
  const StepRun one = step(single, batches);
  REQUIRE(one.result.counted_tokens == 64);
  REQUIRE(one.result.finite);
  const std::vector<float> expected = floats_of(single);
  testing::require_no_failures(testing::errors_on_ranks(2, [&](Rendezvous&, Communicator& group) {
    RankFixture fixture(testing::small_run_config(), testing::small_model(), group);
    const StepRun two = step(fixture, std::span<const MicroBatch>(batches).subspan(
                                          static_cast<size_t>(group.rank()) * 2, 2));
    require(two.result.counted_tokens == 64, "all ranks' tokens are counted");
    require(std::abs(two.result.loss_sum - one.result.loss_sum) < 1e-5 * one.result.loss_sum,
            "the loss is that of all ranks");
    require(std::abs(two.result.gradient_norm - one.result.gradient_norm) <
                1e-5 * one.result.gradient_norm,
            "the gradient norm equals the single rank's");
    // Each rank holds the whole model, although it saves only half of it.
    for (const UnitStatePiece& piece : fixture.plan.train.pieces) {
      const auto* mine = reinterpret_cast<const float*>(
          fixture.memory.at(fixture.plan.train.program, piece.range));
      for (const UnitStatePiece& other : single.plan.train.pieces) {
        if (other.state != piece.state || other.unit != piece.unit) continue;
        const auto* theirs = reinterpret_cast<const float*>(
            single.memory.at(single.plan.train.program, other.range));
        require(piece.begin == 0 && piece.end == other.end, "stage 0 shares out nothing");
        for (int64_t i = 0; i < piece.end; ++i)
          require(std::abs(mine[i] - theirs[i]) < 1e-4F,
                  "parameters and optimizer state equal the single rank's");
      }
    }
  }));
  REQUIRE_FALSE(expected.empty());
}

TEST_CASE("all ranks learn each flag, whatever other flags are set") {
  testing::require_no_failures(testing::errors_on_ranks(3, [&](Rendezvous&, Communicator& group) {
    for (const int64_t stage : {0, 3}) {
      RankFixture fixture(testing::config_of_stage(stage), testing::small_model(), group);
      fixture.train(1);
      StepRun run = fixture.prepare_step(2);
      if (group.rank() == 1) add_stop_flag(SIGTERM, run.flags);
      if (group.rank() == 0) run.flags.add(RankFlag::kSaveDue);
      if (group.rank() == 0) run.flags.add(RankFlag::kEvaluationDue);
      run.flags.add(RankFlag::kSaveEnded);
      fixture.train_executor.run(run);
      require(stop_signal_of(run.result.flags_of_all_ranks) == SIGTERM, "every rank stops");
      require(run.result.flags_of_all_ranks.count_of(RankFlag::kTerminate) == 1 &&
                  run.result.flags_of_all_ranks.count_of(RankFlag::kInterrupt) == 0,
              "one rank was told to");
      require(run.result.flags_of_all_ranks.count_of(RankFlag::kSaveEnded) == 3,
              "all saves have ended");
      require(run.result.flags_of_all_ranks.count_of(RankFlag::kSaveDue) == 1 &&
                  run.result.flags_of_all_ranks.count_of(RankFlag::kEvaluationDue) == 1,
              "the save and the evaluation are due on every rank");
      // Flag k is set k + 1 times, so that each has a different count.
      run.flags = {};
      for (int64_t flag = 0; flag < kRankFlags; ++flag)
        for (int64_t times = 0; times <= flag; ++times) run.flags.add(static_cast<RankFlag>(flag));
      fixture.train_executor.run(run);
      for (int64_t flag = 0; flag < kRankFlags; ++flag)
        require(
            run.result.flags_of_all_ranks.count_of(static_cast<RankFlag>(flag)) == 3 * (flag + 1),
            "each kind has a slot of its own");
      require(run.result.counted_tokens == 3 * 32, "token counts have a slot of their own");
      run.flags = {};
      fixture.train_executor.run(run);
      for (const double count : run.result.flags_of_all_ranks.counts())
        require(count == 0, "the flags of the step before are gone");
    }
  }));
}

TEST_CASE(
    "if a rank leaves, the step of the others ends with the error that a peer was lost, not in a "
    "hang") {
  for (const int64_t stage : {0, 1, 2, 3}) {
    INFO("stage " << stage);
    const auto failures = testing::errors_on_ranks(3, [&](Rendezvous&, Communicator& group) {
      RankFixture fixture(testing::config_of_stage(stage), testing::small_model(), group);
      fixture.train(1);
      if (group.rank() == 1) throw Error(ExitCode::kBadInput, "this rank's data is bad");
      fixture.train(2);
    });
    REQUIRE(failures[1] == "this rank's data is bad");
    const char* waits_in = stage == 3 ? "all_gather" : stage == 0 ? "all_reduce" : "";
    for (const size_t rank : {0, 2})
      REQUIRE_THAT(failures[rank], Catch::Contains("lost a peer in ") && Catch::Contains(waits_in));
  }
}

TEST_CASE("a rank whose step fails ends the step of the others") {
  for (const int64_t stage : {0, 2, 3}) {
    INFO("stage " << stage);
    const auto failures = testing::errors_on_ranks(2, [&](Rendezvous&, Communicator& group) {
      RankFixture fixture(testing::config_of_stage(stage), testing::small_model(), group);
      fixture.train(1);
      if (group.rank() == 1) fixture.batches[1].labels.pop_back();
      StepRun run = fixture.prepare_step(2);
      fixture.train_executor.run(run);
    });
    REQUIRE_THAT(failures[1], Catch::Contains("a batch part has 60 bytes, its buffer 64"));
    REQUIRE_THAT(failures[0], Catch::Contains("lost a peer in ") || Catch::Contains("gave up"));
  }
}

TEST_CASE("a batch of another shape is reported as a defect, and the next step can run") {
  SingleRank single_rank;
  RankFixture fixture(testing::small_run_config(), testing::small_model(), *single_rank.group);
  fixture.train(1);
  fixture.batches[1].tokens.pop_back();
  StepRun run = fixture.prepare_step(2);
  REQUIRE_THROWS_WITH(fixture.train_executor.run(run),
                      Catch::Contains("a batch part has 60 bytes, its buffer 64"));
  REQUIRE(fixture.train(2).result.finite);
}

/// Returns a config with optimizer state and parameters on disk; the weights of norms stay on the
/// device.
Config disk_config(bool overlap) {
  Config config = testing::config_of_stage(3);
  config.zero.param_persistence_threshold = 64;
  config.zero.overlap_comm = overlap;
  testing::offload_to(config, OffloadDevice::kNvme);
  return config;
}

TEST_CASE("the disk lane continues from one request's writes directly with the next one's reads") {
  set_kernel_threads(1);
  for (const bool overlap : {false, true}) {
    SingleRank single_rank;
    RankFixture fixture(disk_config(overlap), testing::model_of_many_blocks(), *single_rank.group);
    fixture.train(1);
    const Program& program = fixture.plan.train.program;
    int64_t requests = 0;
    int64_t follow = 0;   // requests that wait only for their predecessor on the lane
    int64_t returns = 0;  // how many of those read after a write
    const Instr* last = nullptr;
    for (const Instr& instr : program.instrs) {
      if (instr.lane != Lane::kDisk) continue;
      const bool reads = program.at(instr.reads[0].buffer).tier == Tier::kDisk;
      const bool other = last != nullptr && !overlaps(last->reads[0], instr.writes[0]) &&
                         !overlaps(last->writes[0], instr.reads[0]);
      ++requests;
      if (other && instr.waits.empty()) {
        ++follow;
        returns += reads && program.at(last->writes[0].buffer).tier == Tier::kDisk;
      }
      last = &instr;
    }
    INFO(program_text(program));
    REQUIRE(returns >= 3);
    const SwapCounters before = fixture.memory.swap()->counters();
    StepRun run = fixture.train(2);
    const SwapCounters& after = fixture.memory.swap()->counters();
    REQUIRE(run.result.finite);
    CHECK(after.requests - before.requests == requests);
    CHECK(after.overlapped_requests - before.overlapped_requests >= follow);
  }
}

TEST_CASE(
    "a step with a value that is not finite neither reads nor writes optimizer state on disk") {
  set_kernel_threads(1);
  for (const bool overlap : {false, true}) {
    SingleRank single_rank;
    RankFixture fixture(disk_config(overlap), testing::model_of_many_blocks(), *single_rank.group);
    fixture.train(1);
    const Program& program = fixture.plan.train.program;
    const auto decide = std::find_if(program.instrs.begin(), program.instrs.end(),
                                     [](const Instr& i) { return i.kind == InstrKind::kDecide; });
    int64_t read = 0;
    for (auto instr = program.instrs.begin(); instr != decide; ++instr)
      if (instr->lane == Lane::kDisk) read += instr->reads[0].bytes;
    const auto state = testing::saved_contents(fixture.state);
    const SwapCounters before = fixture.memory.swap()->counters();
    StepRun run = fixture.prepare_step(2);
    run.scalars.token_loss_factor = std::numeric_limits<float>::infinity();
    fixture.train_executor.run(run);
    const SwapCounters after = fixture.memory.swap()->counters();
    REQUIRE_FALSE(run.result.finite);
    CHECK(after.bytes_written == before.bytes_written);
    CHECK(after.bytes_read - before.bytes_read == read);
    CHECK(testing::saved_contents(fixture.state) == state);
    REQUIRE(fixture.train(2).result.finite);
    CHECK(testing::saved_contents(fixture.state) != state);
  }
}

}  // namespace
}  // namespace ftrun
