#include "sim/program_checker.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/text.h"
#include "program/buffer_names.h"
#include "program/passes.h"
#include "program/step_cases.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;
using Faults = std::vector<std::string>;

constexpr int kRanks = 4;

// Returns the program that these tests break. Its instructions by position (see
// untied_step.golden): 0 begin, 1 load_batch mb 0, 2-3, 5 forward, 6, 8, 10 backward, 11 load_batch
// mb 1, 12-14 forward, 15 all_reduce of the loss, 16 backward layer 2, 17 all_reduce, 18 backward
// layer 1, 19 all_reduce, 20 backward layer 0, 21 all_reduce, 22 gradient_norm, 23 all_reduce of
// the norm, 24 decide, 25-27 update; the other positions are clears.
Program good_program() {
  return build(small_config(1, false))
      .step({.micro_batches = 2, .state = states(1), .bucket_elements = 1}, kRanks);
}

Program changed_program(const std::function<void(Program&)>& change) {
  Program program = good_program();
  change(program);
  return program;
}

/// Returns the faults of a run where rank 0 has the good program and rank 1 another one.
Faults faults_with_rank1(const Program& rank1) {
  const Program rank0 = good_program();
  const Program* ranks[] = {&rank0, &rank1};
  return check_programs(ranks);
}

TEST_CASE("the checker finds no fault in correct programs of one rank or of many ranks") {
  const Program program = good_program();
  REQUIRE(program.instrs.size() == 28);
  CHECK(check(program).empty());
  const std::vector<const Program*> ranks(kRanks, &program);
  CHECK(check_programs(ranks).empty());
  CHECK(faults_with_rank1(good_program()).empty());
  CHECK(check_programs(std::vector<const Program*>()).empty());
}

TEST_CASE("a reduction that does not wait for its gradients is named with what it misses") {
  CHECK(check(changed_program([](Program& p) { p.instrs[17].waits.clear(); })) ==
        Faults{"instruction 17 (all_reduce unit 2) does not wait for instruction 16 (backward "
               "layer 2 mb 1), which touches the same bytes"});
}

TEST_CASE("a disk request that starts early where it must not is named") {
  CHECK(check(changed_program([](Program& p) { p.instrs[17].detail = DiskRequest{true}; })).at(1) ==
        "instruction 17 (all_reduce unit 2) starts early, but no disk request comes before it");
  Program program;
  program.buffers = {{.name = "state",
                      .tier = Tier::kDisk,
                      .bytes = 64,
                      .persistent_kind = PersistentKind::kParameters},
                     {.name = "staging", .tier = Tier::kHost, .bytes = 64, .arena_offset = 0}};
  program.arena_bytes[static_cast<size_t>(Arena::kHost)] = 64;
  program.initialized_ranges = {{0, 0, 64}};
  program.instrs = {{.kind = InstrKind::kCopy,
                     .lane = Lane::kDisk,
                     .reads = {{0, 0, 64}},
                     .writes = {{1, 0, 64}}},
                    {.kind = InstrKind::kCopy,
                     .lane = Lane::kDisk,
                     .reads = {{1, 0, 64}},
                     .writes = {{0, 0, 64}}}};
  CHECK(check(program).empty());
  program.instrs[1].detail = DiskRequest{true};
  CHECK(check(program) ==
        Faults{"instruction 1 (copy) starts before instruction 0 (copy) is done, which touches the "
               "same bytes"});
}

TEST_CASE("the checker notices the absence of any single wait") {
  for (const bool overlap : {true, false}) {
    const Program program =
        build(small_config(2, true))
            .step({.micro_batches = 2, .bucket_elements = 1, .overlap = overlap});
    for (size_t i = 0; i < program.instrs.size(); ++i) {
      const bool needed = overlap || program.instrs[i].lane == lane_of(0);
      if (program.instrs[i].waits.empty() || !needed) continue;
      Program without = program;
      without.instrs[i].waits.clear();
      INFO(i);
      CHECK_FALSE(check(without).empty());
    }
  }
}

TEST_CASE("a norm without waits is reported for every reduction") {
  const Faults faults = check(changed_program([](Program& p) { p.instrs[22].waits.clear(); }));
  for (const int unit : {0, 1, 2})
    CHECK(std::count(
              faults.begin(), faults.end(),
              cat("instruction 22 (gradient_norm) does not wait for instruction ", 21 - 2 * unit,
                  " (all_reduce unit ", unit, "), which touches the same bytes")) == 1);
}

TEST_CASE(
    "an instruction that depends on the decision waits for it, even if the two share no bytes") {
  // The last unit of rank 1 has no elements to update, so its gather waits for the decision
  // directly.
  StepOptions options{.gather_bucket_elements = 1};
  options.state.zero_stage = 1;
  const PartitionedModel built = build(small_config(1, false));
  Program program = built.step(options, 2, 1);
  const size_t decide = positions_of(program, InstrKind::kDecide).at(0);
  const size_t gather = positions_of(program, InstrKind::kAllGather).at(0);
  REQUIRE(program.instrs[gather].waits == std::vector<InstrId>{static_cast<InstrId>(decide)});
  CHECK(check(program).empty());
  program.instrs[gather].waits = {static_cast<InstrId>(decide) - 3};
  const Faults faults = check(program);
  CHECK(std::count(faults.begin(), faults.end(),
                   cat("instruction ", gather,
                       " (all_gather unit 0) runs only if the step is finite, but "
                       "does not wait for the decision")) == 1);
}

TEST_CASE("an instruction may wait only for earlier ones") {
  const std::string end = ", which does not come before it";
  CHECK(check(changed_program([](Program& p) { p.instrs[5].waits = {17}; })) ==
        Faults{"instruction 5 (forward layer 2 mb 0) waits for instruction 17" + end});
  CHECK(check(changed_program([](Program& p) { p.instrs[5].waits = {5}; })) ==
        Faults{"instruction 5 (forward layer 2 mb 0) waits for instruction 5" + end});
  CHECK(check(changed_program([](Program& p) { p.instrs[5].waits = {-1}; })) ==
        Faults{"instruction 5 (forward layer 2 mb 0) waits for instruction -1" + end});
  CHECK(check(changed_program([](Program& p) { p.instrs[5].waits = {1000}; })) ==
        Faults{"instruction 5 (forward layer 2 mb 0) waits for instruction 1000" + end});
}

TEST_CASE("a read of bytes that nothing wrote is reported") {
  CHECK(
      check(changed_program(
          [](Program& p) { p.instrs[1].writes.erase(p.instrs[1].writes.begin()); })) ==
      Faults{"instruction 2 (forward layer 0 mb 0) reads bytes 0+16 of tokens.0 before they are "
             "written",
             "instruction 10 (backward layer 0 mb 0) reads bytes 0+16 of tokens.0 before they are "
             "written"});
}

TEST_CASE("a read of bytes that are only partly written is reported") {
  CHECK(
      check(changed_program([](Program& p) { p.instrs[1].writes[0].bytes = 12; })) ==
      Faults{"instruction 2 (forward layer 0 mb 0) reads bytes 0+16 of tokens.0 before they are "
             "written",
             "instruction 10 (backward layer 0 mb 0) reads bytes 0+16 of tokens.0 before they are "
             "written"});
  // Two adjacent writes, in either order, are as good as one.
  for (const bool swapped : {false, true})
    CHECK(check(changed_program([&](Program& p) {
            auto& writes = p.instrs[1].writes;
            BufferRange second = writes[0];
            second.offset = writes[0].bytes = 8;
            second.bytes = 8;
            writes.insert(writes.begin() + (swapped ? 0 : 1), second);
          })).empty());
}

TEST_CASE("a layer that runs before the one it reads from is noticed") {
  const Faults faults =
      check(changed_program([](Program& p) { std::swap(p.instrs[2], p.instrs[3]); }));
  CHECK(std::count(faults.begin(), faults.end(),
                   "instruction 2 (forward layer 1 mb 0) reads bytes 0+256 of hidden.0.0 before "
                   "they are written") == 1);
}

TEST_CASE("a range that exceeds its buffer is reported") {
  CHECK(check(changed_program([](Program& p) { p.instrs[22].reads[0].bytes += 4; })) ==
        Faults{"instruction 22 (gradient_norm) touches bytes 32768+16388 of gradients.2, which has "
               "49152"});
  CHECK(check(changed_program([](Program& p) { p.instrs[24].reads[0].offset = -8; })) ==
        Faults{"instruction 24 (decide) touches bytes -8+96 of norm, which has 96"});
  CHECK(check(changed_program([](Program& p) { p.instrs[24].reads[0].bytes = -1; })) ==
        Faults{"instruction 24 (decide) touches bytes 0+-1 of norm, which has 96"});
}

TEST_CASE("a range whose end overflows counts as outside its buffer") {
  constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();
  CHECK(check(changed_program([](Program& p) {
          p.instrs[24].reads[0] = {p.instrs[24].reads[0].buffer, 8, kMaxBytes};
        })) == Faults{cat("instruction 24 (decide) touches bytes 8+", kMaxBytes,
                          " of norm, which has 96")});
}

TEST_CASE("a range of a buffer that does not exist is reported") {
  CHECK(check(changed_program([](Program& p) { p.instrs[24].reads[0].buffer = 37; })) ==
        Faults{"instruction 24 (decide) touches buffer 37, but there are 37"});
  CHECK(check(changed_program([](Program& p) {
          p.instrs[24].writes = {{-1, 0, 8}};
        })) == Faults{"instruction 24 (decide) touches buffer -1, but there are 37"});
}

TEST_CASE("a collective that does not write one range for each range it reads is reported") {
  CHECK(check(changed_program([](Program& p) { p.instrs[17].writes.clear(); })) ==
        Faults{"instruction 17 (all_reduce unit 2) is a collective of 1 range into 0"});
  CHECK(check(changed_program([](Program& p) {
          p.instrs[17].writes.push_back(p.instrs[19].writes[0]);
        })) == Faults{"instruction 17 (all_reduce unit 2) is a collective of 1 range into 2"});
}

TEST_CASE("persistent buffers that a step must rewrite are not read before that") {
  CHECK(check(changed_program([](Program& p) { p.instrs[0].writes.pop_back(); })) ==
        Faults{"instruction 23 (all_reduce) reads bytes 0+96 of norm before they are written"});
  // Padding between tensors must be cleared too, because lists write only tensors.
  const Faults faults = check(changed_program([](Program& p) { p.instrs[7].writes.pop_back(); }));
  CHECK(std::count(
            faults.begin(), faults.end(),
            "instruction 19 (all_reduce unit 1) reads bytes 16384+16384 of gradients.2 before they "
            "are written") == 1);
}

/// Returns the program of rank 1 of two ranks at ZeRO-2: instruction 7 reduce-scatters unit 2 of
/// micro-batch 0, and 43 gathers the updated parameters (see zero2_offload_step.golden).
Program sharded_program() {
  StepOptions options{.micro_batches = 2, .bucket_elements = 1, .gather_bucket_elements = 1};
  options.state.zero_stage = 2;
  options.state.optimizer_tier = Tier::kHost;
  return build(small_config(1, false)).step(options, 2, 1);
}

Faults faults_of_sharded(const std::function<void(Program&)>& change) {
  Program program = sharded_program();
  REQUIRE(check(program).empty());
  change(program);
  return check(program);
}

TEST_CASE("a gather writes, and a reduce-scatter reads, as much as its group's parts hold") {
  const size_t gather = positions_of(sharded_program(), InstrKind::kAllGather).at(0);
  const size_t scatter = positions_of(sharded_program(), InstrKind::kReduceScatter).at(0);
  CHECK(faults_of_sharded([&](Program& p) { p.instrs[gather].writes[0].bytes = 16384; }).at(0) ==
        cat("instruction ", gather,
            " (all_gather unit 0) gathers 16384 bytes of parameters, but 2 parts of 16384 are "
            "32768"));
  CHECK(faults_of_sharded([&](Program& p) { p.instrs[scatter].reads[0].bytes -= 4; }).at(0) ==
        cat("instruction ", scatter,
            " (reduce_scatter unit 2) reduces 32764 bytes of gradient.2.0, but 2 parts of 16384 "
            "are 32768"));
}

TEST_CASE("a reduce-scatter in place that writes another rank's block is reported") {
  const size_t scatter = positions_of(sharded_program(), InstrKind::kReduceScatter).at(0);
  CHECK(faults_of_sharded([&](Program& p) { p.instrs[scatter].writes[0].offset = 0; }).at(0) ==
        cat("instruction ", scatter,
            " (reduce_scatter unit 2) has its part at byte 0 of gradient.2.0, which is not "
            "that of rank 1 of gradient.2.0"));
}

TEST_CASE("exchanges move whole blocks between different buffers of one size") {
  const auto faults = [](const std::function<void(Program&)>& change) {
    Program program = exchange_program({4, 1}, 1);
    change(program);
    return check(program);
  };
  CHECK(faults([](Program&) {}) == Faults{});
  CHECK(
      faults([](Program& p) { p.instrs[0].reads[0].bytes = p.instrs[0].writes[0].bytes = 4092; }) ==
      Faults{
          R"(instruction 0 (all_to_all) moves 4092 bytes of buffer "in", but not in blocks of 16)",
          R"(instruction 0 (all_to_all) moves 4092 bytes of buffer "out", but not in blocks )"
          "of 16"});
  CHECK(faults([](Program& p) { p.instrs[1].writes[0].bytes = 2048; }) ==
        Faults{R"(instruction 1 (shift) moves 4096 bytes of buffer "in" to 2048 of buffer "out")"});
  for (const int by : {0, 4, -1})
    CHECK(faults([&](Program& p) { p.instrs[1].communication().shift = by; }) ==
          Faults{cat("instruction 1 (shift) shifts by ", by, " among 4 ranks")});
  CHECK(faults([](Program& p) { p.instrs[1].writes[0] = p.instrs[1].reads[0]; }) ==
        Faults{R"(instruction 1 (shift) moves buffer "in" to where it lies)"});
  CHECK(faults([](Program& p) { p.instrs[0].communication().dtype = DType::kI64; }) ==
        Faults{R"(instruction 0 (all_to_all) uses buffer "in" as I64, but its dtype is F32)",
               R"(instruction 0 (all_to_all) uses buffer "out" as I64, but its dtype is F32)"});
  CHECK(faults([](Program& p) { p.instrs[0].lane = Lane::kCompute; }).at(0) ==
        "instruction 0 (all_to_all) on the compute lane reads 1 range and writes 1, a form that "
        "its kind does not allow");
  // With counted rows, the receiving buffer may have room for fewer or more rows than are sent.
  CHECK(faults([](Program& p) { p.instrs[2].writes[0].bytes = 2048; }) == Faults{});
  CHECK(faults([](Program& p) { p.instrs[2].communication().row_elements = 3; }).at(0) ==
        R"(instruction 2 (counted_all_to_all) moves 4096 bytes of buffer "in", but not in blocks )"
        "of 12");
  CHECK(faults([](Program& p) { p.instrs[2].reads[1].bytes = 12; }) ==
        Faults{
            R"(instruction 2 (counted_all_to_all) moves 12 bytes of buffer "counts", but counts )"
            "are 16"});
  CHECK(faults([](Program& p) {
          p.instrs[2].reads.pop_back();
          p.instrs[2].writes.pop_back();
        }) == Faults{"instruction 2 (counted_all_to_all) moves rows and counts, but has 1 range"});
}

TEST_CASE("a rank whose exchange differs from the others' is named") {
  const auto fault = [](const std::function<void(Program&)>& change) {
    std::vector<Program> programs;
    for (int rank = 0; rank < 4; ++rank) programs.push_back(exchange_program({4, rank}, 1));
    change(programs[2]);
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    const Faults faults = check_programs(all);
    return faults.empty() ? "" : faults.back();
  };
  const auto names = [&](int collective, const std::string& kind,
                         const std::function<void(Program&)>& change) {
    const std::string found = fault(change);
    CHECK_THAT(found,
               Catch::StartsWith(cat("collective ", collective, ": rank 0 enters instruction ",
                                     collective, " (", kind, ")")));
    CHECK_THAT(found, Catch::Contains(cat(", rank 2 enters instruction ", collective, " (")));
  };
  CHECK(fault([](Program&) {}) == "");
  names(0, "all_to_all", [](Program& p) {
    p.instrs[0].kind = InstrKind::kShift;
    p.instrs[0].communication().shift = 1;
  });
  names(1, "shift", [](Program& p) { p.instrs[1].communication().shift = 3; });
  names(2, "counted_all_to_all", [](Program& p) { p.instrs[2].communication().row_elements = 4; });
  names(2, "counted_all_to_all", [](Program& p) { p.instrs[2].writes[0].bytes = 2048; });
  CHECK_THAT(fault([](Program& p) { p.instrs.pop_back(); }),
             Catch::Contains("waits for rank 2, which has no further collective"));
}

TEST_CASE("an accumulation also reads its destination") {
  const size_t sum = positions_of(sharded_program(), InstrKind::kAccumulate).at(0);
  const size_t first = positions_of(sharded_program(), InstrKind::kCopy).at(0);
  const Faults faults = faults_of_sharded([&](Program& p) {
    REQUIRE(p.instrs[first].writes == p.instrs[sum].writes);
    p.instrs[first].writes[0].bytes = p.instrs[first].reads[0].bytes = 64;
  });
  CHECK(std::count(faults.begin(), faults.end(),
                   cat("instruction ", sum,
                       " (accumulate unit 2) reads bytes 0+16384 of "
                       "gradients.host.2 before they are written")) == 1);
}

TEST_CASE("an instruction must have the ranges and the lane that its kind allows") {
  const std::string end = ", a form that its kind does not allow";
  CHECK(check(changed_program([](Program& p) { p.instrs[24].reads.pop_back(); })) ==
        Faults{"instruction 24 (decide) on the compute lane reads 1 range and writes 0" + end});
  CHECK(check(changed_program([](Program& p) { p.instrs[27].if_finite = false; })) ==
        Faults{"instruction 27 (update unit 2) on the compute lane reads 3 ranges and writes 2" +
               end});
  const size_t copy = positions_of(sharded_program(), InstrKind::kCopy).at(0);
  CHECK(faults_of_sharded([&](Program& p) { p.instrs[copy].lane = Lane::kToDevice; }).at(0) ==
        cat("instruction ", copy, " (copy unit 2) on the to device lane reads 1 range and writes 1",
            end));
}

TEST_CASE("a list touches exactly its bound ranges, and writes the gradients that it reads") {
  CHECK(check(changed_program(
            [](Program& p) { p.instrs[2].reads.erase(p.instrs[2].reads.begin()); })) ==
        Faults{"instruction 2 (forward layer 0 mb 0) is bound to bytes 0+16 of tokens.0, which it "
               "does not touch"});
  CHECK(
      check(changed_program([](Program& p) {
        p.instrs[2].reads.push_back({0, 16384, 64});
      })) ==
      Faults{"instruction 2 (forward layer 0 mb 0) touches bytes 16384+64 of parameters, which it "
             "is not bound to"});
  // Gradients that a list adds to are both read and written.
  CHECK(
      check(changed_program([](Program& p) {
        p.instrs[16].writes.erase(p.instrs[16].writes.begin());
      })).at(0) ==
      "instruction 16 (backward layer 2 mb 1) reads bytes 0+64 of gradients.2 and does not add to "
      "them");
}

TEST_CASE("an arena that is too small for one of its buffers is noticed") {
  Program program = good_program();
  const auto end = [](const Buffer& b) { return b.persistent_kind ? 0 : b.arena_offset + b.bytes; };
  const auto last =
      std::max_element(program.buffers.begin(), program.buffers.end(),
                       [&](const Buffer& a, const Buffer& b) { return end(a) < end(b); });
  program.arena_bytes[static_cast<size_t>(arena_of(*last))] = end(*last) - 1;
  const Faults faults = check(program);
  CHECK(std::count(faults.begin(), faults.end(),
                   "buffer " + last->name + " lies outside the arena") == 1);
}

TEST_CASE("a buffer without an offset in its arena is noticed") {
  CHECK(check(changed_program([](Program& p) {
          p.buffers[static_cast<size_t>(buffer_named(p, "hidden.1.1"))].arena_offset = -1;
        })).at(0) == "buffer hidden.1.1 lies outside the arena");
}

TEST_CASE("buffers that live at the same time do not share bytes") {
  CHECK(check(changed_program([](Program& p) {
          const auto offset =
              p.buffers[static_cast<size_t>(buffer_named(p, "saved.1.0"))].arena_offset;
          p.buffers[static_cast<size_t>(buffer_named(p, "hidden.1.0"))].arena_offset = offset;
        })).at(0) == "buffers hidden.1.0 and saved.1.0 share arena bytes while both are in use");
}

std::string reduce_of(int unit, const char* dtype = "F32", int64_t bytes = 16384) {
  return cat("instruction ", 21 - 2 * unit, " (all_reduce unit ", unit, ") with ", bytes,
             " bytes of gradients.2 as ", dtype, " over data@0");
}

TEST_CASE("a write over a result is noticed, although no instruction reads the result") {
  const PartitionedModel built =
      build(small_config(2, false), GraphMode::kLogits, UnitGranularity::kLayer, {1, 6});
  Program program = build_generation_step(built.model, built.partition, {}).program;
  const BufferId last = find_result_buffer(program),
                 earlier = program.instrs[1].writes.back().buffer;
  REQUIRE(last >= 0);
  REQUIRE(earlier != last);
  CHECK(check(program).empty());
  program.buffers[static_cast<size_t>(last)].is_result = false;
  program.buffers[static_cast<size_t>(earlier)].is_result = true;
  program.buffers[static_cast<size_t>(last)].arena_offset = program.at(earlier).arena_offset;
  const std::vector<std::string> faults = check(program);
  const std::string expected = cat("writes over the result ", program.at(earlier).name);
  CHECK(std::any_of(faults.begin(), faults.end(),
                    [&](const std::string& fault) { return fault.ends_with(expected); }));
}

TEST_CASE("ranks that enter a collective with another size or dtype are named") {
  const Program smaller = changed_program(
      [](Program& p) { p.instrs[19].writes[0].bytes = p.instrs[19].reads[0].bytes = 64; });
  CHECK(faults_with_rank1(smaller) == Faults{"collective 2: rank 0 enters " + reduce_of(1) +
                                             ", rank 1 enters " + reduce_of(1, "F32", 64)});
  const Program half =
      changed_program([](Program& p) { p.instrs[21].communication().dtype = DType::kBF16; });
  CHECK(faults_with_rank1(half) == Faults{"rank 1: instruction 21 (all_reduce unit 0) uses "
                                          "buffer \"gradients.2\" as BF16, but its dtype is F32",
                                          "collective 3: rank 0 enters " + reduce_of(0) +
                                              ", rank 1 enters " + reduce_of(0, "BF16")});
}

TEST_CASE("a rank that reduces the loss where others reduce gradients is named") {
  const Program other = changed_program([](Program& p) { std::swap(p.instrs[15], p.instrs[17]); });
  CHECK(faults_with_rank1(other).back() ==
        "collective 0: rank 0 enters instruction 15 (all_reduce) with 72 bytes of loss as "
        "F64 over data@0, rank 1 enters instruction 15 (all_reduce unit 2) with 16384 bytes of "
        "gradients.2 as F32 over data@0");
}

TEST_CASE("a rank that reduces as many bytes of another buffer is named") {
  const Program other = changed_program([](Program& p) {
    const BufferId parameters = buffer_named(p, buffer_names::kParameters);
    p.instrs[17].reads[0].buffer = p.instrs[17].writes[0].buffer = parameters;
  });
  CHECK(faults_with_rank1(other).back() ==
        "collective 1: rank 0 enters " + reduce_of(2) +
            ", rank 1 enters instruction 17 (all_reduce unit 2) with "
            "16384 bytes of parameters as F32 over data@0");
}

TEST_CASE("ranks that meet for two different units of one size are named") {
  const Program other = changed_program([](Program& p) {
    std::swap(p.instrs[17].reads, p.instrs[19].reads);
    std::swap(p.instrs[17].writes, p.instrs[19].writes);
    std::swap(p.instrs[17].unit, p.instrs[19].unit);
  });
  CHECK(faults_with_rank1(other).back() ==
        "collective 1: rank 0 enters " + reduce_of(2) +
            ", rank 1 enters instruction 17 (all_reduce unit 1) with "
            "16384 bytes of gradients.2 as F32 over data@0");
}

TEST_CASE("ranks that enter a different number of collectives are counted") {
  const Program fewer = changed_program([](Program& p) { p.instrs[23].detail = {}; });
  CHECK(faults_with_rank1(fewer).back() ==
        "rank 0 enters instruction 23 (all_reduce) with 96 bytes of norm as F64 over data@0 and "
        "waits for rank 1, which has no further collective");
}

TEST_CASE("the faulty rank is named by its number") {
  const Program a = good_program();
  const Program b = changed_program([](Program& p) { p.instrs[23].detail = {}; });
  const Program* ranks[] = {&a, &a, &b, &a};
  CHECK(
      check_programs(ranks).back().ends_with("waits for rank 2, which has no further collective"));
}

TEST_CASE("faults of a program that several ranks share are reported once") {
  const Program program = changed_program([](Program& p) { p.instrs[17].waits.clear(); });
  const std::vector<const Program*> ranks(kRanks, &program);
  CHECK(check_programs(ranks).size() == 1);
}

// Groups along several axes, and lists that are cut at collectives.

/// Returns the programs of ranks 0 to 3: 0 and 1 are tensor ranks of shard 0, 2 and 3 of shard 1.
std::vector<StepProgram> steps_of_two_axes(const std::function<void(StepOptions&)>& change =
                                               [](StepOptions&) {}) {
  const ModelConfig config = small_config(2, false);
  StepCase step_case{
      build(config, GraphMode::kTrain, UnitGranularity::kLayer, {1, 4}, {2, 0, true}),
      {.bucket_elements = 1},
      {.shards = 2, .tensor = 2},
      config};
  change(step_case.options);
  return step_case.steps();
}

Faults faults_of_all(const std::vector<StepProgram>& steps) {
  std::vector<const Program*> programs;
  for (const StepProgram& step : steps) programs.push_back(&step.program);
  return check_programs(programs);
}

/// Returns the faults of a run where the program of rank 1 was changed.
Faults faults_with_changed_rank1(const std::function<void(Program&)>& change) {
  std::vector<StepProgram> steps = steps_of_two_axes();
  REQUIRE(faults_of_all(steps).empty());
  change(steps[1].program);
  return faults_of_all(steps);
}

size_t loss_reduce(const Program& program) {
  for (const size_t i : positions_of(program, InstrKind::kAllReduce))
    if (program.at(program.instrs[i].writes[0].buffer).name == buffer_names::kLoss) return i;
  throw std::logic_error("no sum of the loss");
}

/// Returns the first instruction from `at` on that is a collective of a layer's list.
size_t next_of_list(const Program& program, size_t at) {
  while (!program.instrs[at].is_collective() || program.instrs[at].layer < 0) ++at;
  return at;
}

/// Returns the position of the n-th instruction of this kind that runs a part of the layer's list.
size_t nth_run(const Program& program, InstrKind kind, int32_t layer, size_t n) {
  for (const size_t i : positions_of(program, kind))
    if (program.instrs[i].layer == layer && n-- == 0) return i;
  throw std::logic_error("no such run");
}

TEST_CASE("ranks that enter collectives of two groups in opposite orders wait for each other") {
  std::vector<StepProgram> steps = steps_of_two_axes();
  Program& program = steps[0].program;
  const size_t loss = loss_reduce(program);
  const size_t share = next_of_list(program, loss);
  program = with_instruction_moved(program, loss, share);
  REQUIRE(check(program).empty());
  CHECK(faults_of_all(steps) ==
        Faults{"rank 0 enters instruction 29 (reduce_scatter layer 3 mb 0) with 128 bytes of "
               "scratch.b3.0 as F32 over tensor@0 and waits for rank 1, which enters instruction "
               "29 (all_reduce) with 72 bytes of loss as F64 over data+tensor@0"});
}

TEST_CASE("an instruction over a group without this rank is reported") {
  const std::vector<StepProgram> steps = steps_of_two_axes();
  const RankProgram ranks[] = {{2, &steps[0].program}};
  CHECK(check_programs(ranks) ==
        Faults{"rank 2 enters instruction 3 (reduce_scatter layer 0 mb 0) with 128 bytes of "
               "hidden.0.0 as F32 over tensor@0, but is not a member of the group"});
}

TEST_CASE("an instruction runs over a group that exists, on that group's lane") {
  const Program program = steps_of_two_axes()[1].program;
  const size_t loss = loss_reduce(program);
  const size_t share = next_of_list(program, 0);
  CHECK(faults_with_changed_rank1([&](Program& p) { p.instrs[loss].communication().group = 7; }) ==
        Faults{"rank 1: instruction 29 (all_reduce) runs over group 7, but there are 3"});
  CHECK(faults_with_changed_rank1([&](Program& p) { p.instrs[share].lane = lane_of(0); }).at(0) ==
        "rank 1: instruction 3 (reduce_scatter layer 0 mb 0) on the communication lane reads 1 "
        "range and writes 1, a form that its kind does not allow");
  CHECK(faults_with_changed_rank1([&](Program& p) {
          p.instrs[share].communication().group = group_along(p, "data");
          p.instrs[share].lane = lane_of(p.instrs[share].group());
        }).back() ==
        "rank 0 enters instruction 3 (reduce_scatter layer 0 mb 0) with 128 bytes of hidden.0.0 as "
        "F32 over tensor@0 and waits for rank 1, which enters instruction 3 (reduce_scatter layer "
        "0 mb 0) with 128 bytes of hidden.0.0 as F32 over data@1");
}

TEST_CASE("operations of a list that run out of order, twice or never are reported") {
  const Program program = steps_of_two_axes()[1].program;
  const size_t run = nth_run(program, InstrKind::kForward, 1, 1);
  const size_t share = next_of_list(program, run);
  REQUIRE(run == 7);
  const auto has = [](const Faults& faults, const std::string& fault) {
    INFO(join(faults, "\n"));
    CHECK(std::count(faults.begin(), faults.end(), fault) == 1);
  };
  const auto out_of_order = [](int at, int found, int next) {
    return cat("instruction ", at, " (forward layer 1 mb 0) on rank 1 begins with operation ",
               found, " of its list, but operation ", next, " comes next");
  };
  has(faults_with_changed_rank1([&](Program& p) { ++p.instrs[run].ops().first_op; }),
      out_of_order(7, 3, 2));
  has(faults_with_changed_rank1([&](Program& p) { ++p.instrs[run].ops().op_count; }),
      out_of_order(9, 7, 8));
  has(faults_with_changed_rank1(
          [&](Program& p) { p.instrs.erase(p.instrs.begin() + static_cast<std::ptrdiff_t>(run)); }),
      out_of_order(8, 7, 3));
  // An instruction runs twice.
  has(faults_with_changed_rank1([&](Program& p) {
        p.instrs.insert(p.instrs.begin() + static_cast<std::ptrdiff_t>(run), p.instrs[run]);
      }),
      out_of_order(8, 2, 6));
  // A collective that belongs to no list, or an additional one.
  has(faults_with_changed_rank1([&](Program& p) { p.instrs[share].layer = -1; }),
      out_of_order(9, 7, 6));
  has(faults_with_changed_rank1([&](Program& p) {
        p.instrs.insert(p.instrs.begin() + static_cast<std::ptrdiff_t>(share), p.instrs[share]);
      }),
      out_of_order(10, 7, 8));
  has(faults_with_changed_rank1([&](Program& p) { p.instrs[run].kind = InstrKind::kBackward; }),
      "instruction 9 (forward layer 1 mb 0) on rank 1 comes after instruction 7 (backward layer 1 "
      "mb 0) on rank 1");
  has(faults_with_changed_rank1([&](Program& p) { p.instrs[run].ops().graph = 0; }),
      "instruction 7 (forward layer 1 mb 0) on rank 1 runs graph 0, but that of the layer is 1");
}

TEST_CASE("lists of one graph that end at different operations on two ranks are reported") {
  const Program program = steps_of_two_axes()[1].program;
  size_t last = 0;
  for (const size_t i : positions_of(program, InstrKind::kBackward))
    if (program.instrs[i].layer == 1) last = i;
  CHECK(faults_with_changed_rank1([&](Program& p) { --p.instrs[last].ops().op_count; }).at(0) ==
        "the list of instruction 67 (backward layer 1 mb 0) on rank 1 ends after 23 operations, "
        "that of instruction 67 (backward layer 1 mb 0) on rank 0 after 24");
}

}  // namespace
}  // namespace ftrun
