#include "program/program.h"
#include "program/memory_plan.h"
#include "program/traffic.h"

#include <functional>
#include <map>
#include <set>

#include "base/shm_sizes.h"
#include "model/size.h"
#include "models.h"
#include "partition/flat_layout.h"
#include "program/buffer_names.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns the shape of SmolLM2-135M: 30 layers, hidden size 576, nine query and three key/value
/// heads of size 64.
ModelConfig smollm2() {
  ModelConfig c = small_config(30, true);
  c.vocab_rows = 49152;
  c.hidden = 576;
  c.feed_forward = 1536;
  c.query_heads = 9;
  c.kv_heads = 3;
  c.head_size = 64;
  return c;
}

TEST_CASE("ranges overlap when they share a byte of one buffer") {
  CHECK(overlaps({0, 0, 8}, {0, 7, 1}));
  CHECK(overlaps({0, 4, 1}, {0, 0, 8}));
  CHECK_FALSE(overlaps({0, 0, 8}, {0, 8, 8}));
  CHECK_FALSE(overlaps({0, 0, 8}, {1, 0, 8}));
  CHECK_FALSE(overlaps({0, 4, 0}, {0, 4, 0}));
}

TEST_CASE("the name of an instruction has its kind, layer and micro-batch") {
  CHECK(instr_label({.kind = InstrKind::kBackward, .layer = 3, .micro_batch = 0}) ==
        "backward layer 3 mb 0");
  CHECK(instr_label({.kind = InstrKind::kLoadBatch, .micro_batch = 2}) == "load_batch mb 2");
  CHECK(instr_label({.kind = InstrKind::kAllReduce}) == "all_reduce");
  std::set<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(InstrKind::kUpdate); ++kind)
    names.insert(instr_name(static_cast<InstrKind>(kind)));
  CHECK(names.size() == kInstrKinds);
  CHECK(instr_name(InstrKind::kAllToAll) == "all_to_all");
  CHECK(instr_name(InstrKind::kShift) == "shift");
  CHECK(instr_name(InstrKind::kUpdate) == "update");
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kShift, CollectiveKind::kReceive}) {
    CHECK(collective_kind(instr_kind(kind)) == kind);
    CHECK(instr_name(instr_kind(kind)) == collective_name(kind));
  }
  CHECK(lane_name(Lane::kCompute) == "compute");
  CHECK(lane_name(lane_of(0)) == "communication");
  CHECK(category_name(Category::kParameters) == "parameters");
  CHECK(category_name(Category::kSums) == "sums");
  CHECK(category_key(Category::kSums) == "buffers");
  CHECK(category_key(Category::kParameters) == "parameters");
}

TEST_CASE("the text of an exchange names its axis, and that of a shift also the distance") {
  const std::string text = program_text(exchange_program({4, 1}, 3));
  CHECK(text.find("| all_to_all over context  reads in  writes out\n") != std::string::npos);
  CHECK(text.find("| shift over context by 3  reads in  writes out\n") != std::string::npos);
  CHECK(text.find("| counted_all_to_all over context  reads in counts  writes out come\n") !=
        std::string::npos);
  CHECK(program_hash(exchange_program({4, 1}, 3)) == program_hash(exchange_program({4, 1}, 3)));
  CHECK(program_hash(exchange_program({4, 1}, 3)) != program_hash(exchange_program({4, 1}, 1)));
  CHECK(program_hash(exchange_program({4, 1}, 3)) != program_hash(exchange_program({4, 1}, 3, 4)));
}

TEST_CASE("exchanges count bytes that leave a rank, counted ones as if all blocks were equal") {
  CHECK(planned_traffic_text(program_traffic(exchange_program({4, 1}, 1))) ==
        "bytes that a rank sends each time the program runs\n"
        "  all_to_all over 4 ranks along context, 1 call                             3072 B\n"
        "  counted_all_to_all over 4 ranks along context, 2 calls                    3084 B\n"
        "  shift over 4 ranks along context, 1 call                                  4096 B\n"
        "  sum, 10.01 KiB                                                           10252 B\n");
}

TEST_CASE(
    "in an exchange a rank maps one peer's memory at a time, and small blocks go through staging "
    "areas") {
  const auto mapped = [](size_t which, int64_t bytes) {
    Program program = exchange_program({4, 1}, 1);
    for (BufferId id : {0, 1}) {
      program.buffers[static_cast<size_t>(id)].bytes = bytes;
      program.buffers[static_cast<size_t>(id)].peer_visible = true;
    }
    Instr instr = program.instrs[which];
    instr.reads[0].bytes = instr.writes[0].bytes = bytes;
    program.instrs = {instr};
    return mapped_peer_bytes({&program}, [](const ProgramGroup&) { return true; });
  };
  constexpr int64_t kMiB = 1 << 20;
  CHECK(mapped(0, kMiB / 2) == kMiB / 8 + kShmReadAround);
  CHECK(mapped(1, kMiB / 2) == kMiB / 2 + kShmReadAround);
  CHECK(mapped(2, kMiB / 2) == kMiB / 2 + kShmReadAround);
  for (const size_t which : {0, 1, 2}) {
    CHECK(mapped(which, 1 << 16) == 0);
    CHECK(mapped(which, 2 * kMiB) == 2 * kMiB);  // one huge page at a time
    CHECK(mapped(which, 64 * kMiB) == 2 * kMiB);
  }
}

TEST_CASE("equal inputs give equal programs and equal hashes") {
  std::mt19937_64 random(91);
  for (int round = 0; round < 10; ++round) {
    const ModelConfig config = random_config(random);
    const StepOptions options{.micro_batches = 1 + round % 3,
                              .bucket_elements = int64_t{1} << (random() % 16)};
    const Program a = build(config).step(options);
    const Program b = build(config).step(options);
    REQUIRE(program_text(a) == program_text(b));
    REQUIRE(program_hash(a) == program_hash(b));
  }
}

TEST_CASE("settings on which ranks must agree change the hash") {
  std::set<uint64_t> hashes;
  size_t programs = 0;
  const auto add = [&](const Program& program) {
    hashes.insert(program_hash(program));
    ++programs;
  };
  const PartitionedModel built = build(small_config(2, false));
  StepOptions sharded;
  add(built.step({}));
  add(built.step({}, 1));
  add(built.step({}, 3));
  for (sharded.state.zero_stage = 1; sharded.state.zero_stage < 4; ++sharded.state.zero_stage)
    add(built.step(sharded));
  add(built.step({.micro_batches = 2}));
  add(built.step({.bucket_elements = 1}));
  add(build(small_config(2, true)).step({}));
  add(build(small_config(3, false)).step({}));
  add(build(small_config(2, false), GraphMode::kTrain, UnitGranularity::kModel).step({}));
  CHECK(hashes.size() == programs);
}

TEST_CASE("the ranks of a run have one hash, although their programs differ") {
  std::mt19937_64 random(94);
  for (int round = 0; round < 16; ++round) {
    const PartitionedModel built =
        build(random_config(random), GraphMode::kTrain, kGranularities[round % 3]);
    StepOptions options{.micro_batches = 1 + round % 3};
    options.state.zero_stage = round % 4;
    const int ranks = 2 + round % 3;
    for (int rank = 1; rank < ranks; ++rank)
      REQUIRE(program_hash(built.step(options, ranks, rank)) ==
              program_hash(built.step(options, ranks, 0)));
    if (options.state.zero_stage > 0)
      REQUIRE(program_text(built.step(options, ranks, 1)) !=
              program_text(built.step(options, ranks, 0)));
  }
}

TEST_CASE("every field that the ranks must agree on changes the hash") {
  // Instruction 15 is the reduction of the loss (see untied_step.golden).
  const Program good = build(small_config(1, true)).step({.micro_batches = 2});
  const uint64_t hash = program_hash(good);
  const std::pair<const char*, std::function<void(Program&)>> changes[] = {
      {"name", [](Program& p) { p.name = "evaluate"; }},
      {"kind", [](Program& p) { p.instrs[15].kind = InstrKind::kAllGather; }},
      {"bytes read", [](Program& p) { p.instrs[15].reads[0].bytes -= 8; }},
      {"bytes written", [](Program& p) { p.instrs[15].writes[0].bytes -= 8; }},
      {"ranges", [](Program& p) { p.instrs[15].writes.push_back(p.instrs[15].writes[0]); }},
      {"buffer", [](Program& p) { p.instrs[15].writes[0].buffer = 0; }},
      {"predicate", [](Program& p) { p.instrs[15].if_finite = true; }},
      {"layer", [](Program& p) { p.instrs[2].layer = 7; }},
      {"micro-batch", [](Program& p) { p.instrs[2].micro_batch = 7; }},
      {"accumulate", [](Program& p) { p.instrs[2].ops().accumulate = true; }},
      {"group",
       [](Program& p) {
         p.groups.push_back({{"tensor@0", {0, 1}}, {2, 0}});
         p.instrs[15].communication().group = 1;
       }},
      {"no group", [](Program& p) { p.instrs[15].detail = {}; }},
      {"dtype", [](Program& p) { p.instrs[15].communication().dtype = DType::kBF16; }},
      {"order", [](Program& p) { std::swap(p.instrs[2], p.instrs[3]); }},
  };
  for (const auto& [what, change] : changes) {
    Program changed = good;
    change(changed);
    INFO(what);
    CHECK(program_hash(changed) != hash);
  }
}

TEST_CASE("the memory account of the device is its persistent buffers and its arenas") {
  std::mt19937_64 random(92);
  for (int round = 0; round < 20; ++round) {
    const PartitionedModel built =
        build(random_config(random), GraphMode::kTrain, kGranularities[round % 3]);
    const Program program =
        built.step({.micro_batches = 1 + round % 3, .state = states(round % 3)});
    const TierPlan account = plan_memory({&program}).at(Tier::kDevice);
    const int64_t flat = make_flat_layout(built.partition, FlatOrder::kForward).total_elements * 4;
    const int64_t numbers =
        kLossSlots * 8 + 2 * 8 * static_cast<int64_t>(built.partition.units.size());
    REQUIRE(account.bytes_of(Category::kParameters) == flat);
    REQUIRE(account.bytes_of(Category::kGradients) == flat);
    REQUIRE(account.bytes_of(Category::kOptimizer) == flat * (round % 3));
    REQUIRE(account.bytes_of(Category::kBuckets) == 0);
    REQUIRE(account.bytes_of(Category::kStaging) == 0);
    REQUIRE(account.bytes_of(Category::kSums) == numbers);
    // Everything in the arena is an activation or a gradient here, but their peaks may be at
    // different times.
    REQUIRE(std::max(account.bytes_of(Category::kActivations), flat) <= arena_total(program));
    REQUIRE(account.total == flat * (1 + round % 3) + numbers + arena_total(program));
    REQUIRE(plan_memory({&program}).at(Tier::kHost).total == 0);
    REQUIRE(plan_memory({&program}).at(Tier::kDisk).total == 0);
  }
}

TEST_CASE("a program of SmolLM2's shape has its parameters and less than 0.1 % of padding") {
  const PartitionedModel built =
      build(smollm2(), GraphMode::kTrain, UnitGranularity::kLayer, {1, 64});
  const int64_t psi = 134515008;
  CHECK(count_parameters(built.model).total == psi);
  const Program program = built.step({.bucket_elements = 5'000'000});
  const int64_t bytes = program.at(buffer_named(program, buffer_names::kParameters)).bytes;
  CHECK(bytes >= psi * 4);
  CHECK(static_cast<double>(bytes) < static_cast<double>(psi * 4) * 1.001);
  CHECK(check(program).empty());
}

TEST_CASE(
    "SmolLM2's gradients are reduced in buckets of one layer, the embedding's last and alone") {
  const PartitionedModel built =
      build(smollm2(), GraphMode::kTrain, UnitGranularity::kLayer, {1, 64});
  std::vector<BufferRange> ranges;
  for (const std::vector<BufferRange>& bucket :
       gradient_reduces(built.step({.bucket_elements = 5'000'000}))) {
    REQUIRE(bucket.size() == 1);
    ranges.push_back(bucket[0]);
  }
  // The first bucket has the head's norm and a block (3.5 M elements), each further bucket a block:
  // the next one does not fit.
  REQUIRE(ranges.size() == 31);
  CHECK(ranges.front().bytes == (4096 + 3543040) * 4);
  for (size_t i = 1; i < 30; ++i) CHECK(ranges[i].bytes == 3543040 * 4);
  CHECK(ranges.back().bytes == 49152 * 576 * 4);
}

}  // namespace
}  // namespace ftrun
