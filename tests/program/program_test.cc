#include "program/program.h"

#include <functional>
#include <map>
#include <set>

#include "model/size.h"
#include "models.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace fixtures;

/// The shape of SmolLM2-135M: 30 layers, hidden 576, nine query and three key/value heads of 64.
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

TEST_CASE("instructions are called by kind, layer and micro-batch") {
  CHECK(instr_label({.kind = InstrKind::kBackward, .layer = 3, .micro_batch = 0}) ==
        "backward layer 3 mb 0");
  CHECK(instr_label({.kind = InstrKind::kLoadBatch, .micro_batch = 2}) == "load_batch mb 2");
  CHECK(instr_label({.kind = InstrKind::kAllReduce}) == "all_reduce");
  std::set<std::string_view> names;
  for (int kind = 0; kind <= static_cast<int>(InstrKind::kUpdate); ++kind)
    names.insert(instr_name(static_cast<InstrKind>(kind)));
  CHECK(names.size() == 8);
  CHECK(instr_name(InstrKind::kUpdate) == "update");
  CHECK(lane_name(Lane::kCompute) == "compute");
  CHECK(lane_name(Lane::kCommunication) == "communication");
  CHECK(category_name(Category::kParameters) == "parameters");
  CHECK(category_name(Category::kBuffers) == "buffers");
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

TEST_CASE("every input of the planner that matters to ranks changes the hash") {
  std::set<uint64_t> hashes;
  size_t programs = 0;
  const auto add = [&](const Program& program) {
    hashes.insert(program_hash(program));
    ++programs;
  };
  const Built built = build(small_config(2, false));
  add(built.step({}));
  add(built.step({.micro_batches = 2}));
  add(built.step({.optimizer_states = 1}));
  add(built.step({.bucket_elements = 1}));
  add(built.step({.overlap = false}));
  add(built.step({.decays = [](const TensorInfo&) { return false; }}));
  add(build(small_config(2, true)).step({}));
  add(build(small_config(3, false)).step({}));
  add(build(small_config(2, false), Mode::kTrain, UnitGranularity::kBlock).step({}));
  add(build(small_config(2, false), Mode::kTrain, UnitGranularity::kModel).step({}));
  add(build(small_config(2, false), Mode::kTrain, UnitGranularity::kLayer, {2, 4}).step({}));
  CHECK(hashes.size() == programs);
}

TEST_CASE("every field that decides what a rank does changes the hash") {
  const Program good = build(small_config(1, true)).step({.micro_batches = 2});
  const uint64_t hash = program_hash(good);
  const std::pair<const char*, std::function<void(Program&)>> changes[] = {
      {"name", [](Program& p) { p.name = "evaluate"; }},
      {"buffer bytes", [](Program& p) { p.buffers[2].bytes += 4; }},
      {"buffer tier", [](Program& p) { p.buffers[2].tier = Tier::kHost; }},
      {"buffer category", [](Program& p) { p.buffers[2].category = Category::kBuffers; }},
      {"buffer persistence", [](Program& p) { p.buffers[2].persistent = false; }},
      {"peer visibility", [](Program& p) { p.buffers[2].peer_visible = true; }},
      {"arena offset", [](Program& p) { p.buffers.back().arena_offset += 64; }},
      {"arena bytes", [](Program& p) { p.arena_bytes += 1; }},
      {"kind", [](Program& p) { p.instrs[0].kind = InstrKind::kDecide; }},
      {"lane", [](Program& p) { p.instrs[0].lane = Lane::kCommunication; }},
      {"waits", [](Program& p) { p.instrs[5].waits = {0}; }},
      {"reads", [](Program& p) { p.instrs[2].reads[0].offset += 4; }},
      {"writes", [](Program& p) { p.instrs[2].writes.pop_back(); }},
      {"predicate", [](Program& p) { p.instrs.back().if_finite = false; }},
      {"layer", [](Program& p) { p.instrs[2].layer = 7; }},
      {"micro-batch", [](Program& p) { p.instrs[2].micro_batch = 7; }},
      {"graph", [](Program& p) { p.instrs[2].graph = 1; }},
      {"binding", [](Program& p) { p.instrs[2].bindings[0].range.offset += 4; }},
      {"bound value",
       [](Program& p) { std::swap(p.instrs[2].bindings[0].value, p.instrs[2].bindings[1].value); }},
      {"accumulate", [](Program& p) { p.instrs[2].accumulate = true; }},
      {"group", [](Program& p) { p.instrs[12].group = CommGroup::kNone; }},
      {"dtype", [](Program& p) { p.instrs[12].dtype = DType::kBF16; }},
      {"decay", [](Program& p) { p.instrs.back().decay = false; }},
      {"order", [](Program& p) { std::swap(p.instrs[2], p.instrs[3]); }},
  };
  for (const auto& [what, change] : changes) {
    Program changed = good;
    change(changed);
    INFO(what);
    CHECK(program_hash(changed) != hash);
  }
}

TEST_CASE("the memory account is the sum of its categories: persistent buffers and the arena") {
  std::mt19937_64 random(92);
  for (int round = 0; round < 20; ++round) {
    const Built built = build(random_config(random), Mode::kTrain, kGranularities[round % 3]);
    const Program program =
        built.step({.micro_batches = 1 + round % 3, .optimizer_states = round % 3});
    const MemoryAccount account = memory_account(program);
    int64_t sum = 0;
    std::map<Category, int64_t> by;
    for (const auto& [category, bytes] : account.by_category) {
      sum += bytes;
      by[category] += bytes;
    }
    const int64_t flat = step_layouts(built.partition).parameters.total * 4;
    REQUIRE(sum == account.total);
    REQUIRE(by.at(Category::kParameters) == flat);
    REQUIRE(by.at(Category::kGradients) == flat);
    REQUIRE(by.at(Category::kOptimizer) == flat * (round % 3));
    REQUIRE(by.at(Category::kActivations) == program.arena_bytes);
    REQUIRE(by.at(Category::kBuffers) == kLossSlots * 8 + 8);
  }
}

TEST_CASE("an all-reduce moves 2 (n-1)/n of the padded gradients and of the loss a rank") {
  std::mt19937_64 random(93);
  for (int round = 0; round < 12; ++round) {
    const Built built = build(random_config(random), Mode::kTrain, kGranularities[round % 3]);
    int64_t padded = 0;
    for (const Unit& unit : built.partition.units) padded += unit.padded;
    for (const int64_t ranks : {1, 2, 4, 8})
      REQUIRE(all_reduce_bytes(built.step({.micro_batches = 1 + round % 3}), ranks) ==
              2 * (padded * 4 + kLossSlots * 8) * (ranks - 1) / ranks);
  }
}

TEST_CASE(
    "a program of SmolLM2's shape has its parameters, padding under one in a thousand, and its "
    "traffic") {
  const Built built = build(smollm2(), Mode::kTrain, UnitGranularity::kLayer, {1, 64});
  const int64_t psi = 134515008;
  CHECK(count_parameters(built.model).total == psi);
  const Program program = built.step({.bucket_elements = 5'000'000});
  const int64_t bytes = program.at(buffer_named(program, buffer_names::kParameters)).bytes;
  CHECK(bytes >= psi * 4);
  CHECK(static_cast<double>(bytes) < static_cast<double>(psi * 4) * 1.001);
  CHECK(static_cast<double>(all_reduce_bytes(program, 4)) ==
        Approx(2.0 * psi * 4 * 3 / 4).epsilon(1e-3));
  CHECK(check(program).empty());
}

TEST_CASE("SmolLM2's gradients leave in buckets of one layer, the embedding's last and alone") {
  const Built built = build(smollm2(), Mode::kTrain, UnitGranularity::kLayer, {1, 64});
  const auto ranges = gradient_reduces(built.step({.bucket_elements = 5'000'000}));
  // Head's norm and a block (3.5 M elements) a bucket; the next block does not fit.
  REQUIRE(ranges.size() == 31);
  CHECK(ranges.front().bytes == (4096 + 3543040) * 4);
  for (size_t i = 1; i < 30; ++i) CHECK(ranges[i].bytes == 3543040 * 4);
  CHECK(ranges.back().bytes == 49152 * 576 * 4);
}

}  // namespace
}  // namespace ftrun
