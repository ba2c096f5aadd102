#include <algorithm>

#include "base/shm_sizes.h"
#include "graph/scratch.h"
#include "graph/storage.h"
#include "models.h"
#include "program/lifetime.h"
#include "program/memory_plan.h"
#include "program/passes.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

/// Returns the instructions that touch each buffer.
std::vector<std::vector<size_t>> instrs_by_buffer(const Program& program) {
  std::vector<std::vector<size_t>> out(program.buffers.size());
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    for (const auto* ranges : {&program.instrs[i].reads, &program.instrs[i].writes})
      for (const BufferRange& range : *ranges) out[static_cast<size_t>(range.buffer)].push_back(i);
  }
  return out;
}

/// Checks the result of assign_arena_offsets by order alone, without positions in the list: two
/// buffers may share bytes only if all users of one are done before any user of the other starts.
/// Returns the names of a pair that violates this, or "".
std::string shared_too_early(const Program& program) {
  const auto before = happens_before(program);
  const auto used = instrs_by_buffer(program);
  const auto all_before = [&](size_t a, size_t b) {
    for (const size_t i : used[a])
      for (const size_t j : used[b])
        if (i >= j || !before[j][i]) return false;
    return true;
  };
  for (size_t a = 0; a < used.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const Buffer& x = program.buffers[a];
      const Buffer& y = program.buffers[b];
      if (x.persistent_kind || y.persistent_kind || used[a].empty() || used[b].empty()) continue;
      if (arena_of(x) != arena_of(y)) continue;
      if (x.arena_offset >= y.arena_offset + y.bytes || y.arena_offset >= x.arena_offset + x.bytes)
        continue;
      if (!all_before(a, b) && !all_before(b, a)) return y.name + " and " + x.name;
    }
  }
  return "";
}

TEST_CASE(
    "buffers share bytes of the arena only if the last use of one precedes the first use of the "
    "other") {
  std::mt19937_64 random(81);
  for (int round = 0; round < 30; ++round) {
    const PartitionedModel built =
        build(random_config(random), GraphMode::kTrain, kGranularities[round % 3]);
    const Program program = built.step({.micro_batches = 1 + round % 4,
                                        .bucket_elements = int64_t{1} << (random() % 16),
                                        .overlap = round % 2 == 0});
    REQUIRE(shared_too_early(program).empty());
  }
}

TEST_CASE("every buffer that is not persistent has an aligned offset inside the arena") {
  const Program program = build(small_config(3, true)).step({.micro_batches = 3});
  for (const Buffer& buffer : program.buffers) {
    INFO(buffer.name);
    if (buffer.persistent_kind) {
      CHECK(buffer.arena_offset == -1);
      continue;
    }
    CHECK(buffer.arena_offset >= 0);
    CHECK(buffer.arena_offset % kStorageAlignment == 0);
    CHECK(buffer.arena_offset + buffer.bytes <= program.bytes_of_arena(arena_of(buffer)));
  }
}

TEST_CASE(
    "the arena does not grow with micro-batches after the second, and grows with layers by what "
    "their saved values and gradients need") {
  const auto arena = [](int64_t layers, int32_t micro_batches) {
    return arena_total(build(small_config(layers, false)).step({.micro_batches = micro_batches}));
  };
  CHECK(arena(2, 2) == arena(2, 3));
  CHECK(arena(2, 2) == arena(2, 5));
  const PartitionedModel built = build(small_config(2, false));
  const int64_t kept = plan_saved(built.model.graph_of(built.model.layers[1])).bytes +
                       4 * 16 * 4  // plus the input of the layer
                       + built.partition.units[1].padded_numel * 4;
  CHECK(arena(5, 2) - arena(4, 2) == kept);
  CHECK(arena(6, 2) - arena(5, 2) == kept);
}

/// Returns a model whose activations take more bytes than its gradients.
PartitionedModel model_of_large_activations(int64_t layers, bool tied, int64_t tokens) {
  ModelConfig config = small_config(layers, tied);
  config.hidden = 64;
  config.feed_forward = 128;
  config.head_size = 16;
  return build(config, GraphMode::kTrain, UnitGranularity::kLayer, {1, tokens});
}

TEST_CASE("gradients of a step of one micro-batch reuse the memory of activations") {
  const PartitionedModel built = model_of_large_activations(8, false, 64);
  for (const int ranks : {1, 2})
    for (const int stage : {0, 2, 3}) {
      const auto step = [&](int32_t micro_batches) {
        StepOptions options{
            .micro_batches = micro_batches, .state = states(2), .bucket_elements = 1};
        options.state.zero_stage = ranks > 1 ? stage : 0;
        return built.step(options, ranks);
      };
      const Program one = step(1), two = step(2);
      const int64_t gradients = gradient_bytes(one);
      CAPTURE(ranks, stage, gradients, arena_total(one), arena_total(two));
      REQUIRE(gradient_bytes(two) == gradients);
      // There are more bytes of activations than of gradients, so all but the last layers'
      // gradients fit among them.
      CHECK(arena_total(one) <= arena_total(two) - gradients * 3 / 4);
      CHECK(shared_too_early(one).empty());
    }
}

/// Returns a program where compute works on temp0 twice, then communication on temp1, then compute
/// on temp2.
Program two_lanes(std::vector<InstrId> communication_waits, std::vector<InstrId> compute_waits) {
  return program_of_touches({{Lane::kCompute, 0},
                             {Lane::kCompute, 0},
                             {lane_of(0), 1, false, true, std::move(communication_waits)},
                             {Lane::kCompute, 2, false, true, std::move(compute_waits)}});
}

TEST_CASE(
    "a buffer of the communication lane is in use from when that lane may run until compute waits "
    "for it") {
  const auto lifetime = [](const Program& program) {
    const StorageRequest r = compute_buffer_lifetimes(program)[1];
    return std::pair{r.first, r.last};
  };
  CHECK(lifetime(two_lanes({}, {})) == std::pair<int64_t, int64_t>{0, 4});
  CHECK(lifetime(two_lanes({0}, {})) == std::pair<int64_t, int64_t>{1, 4});
  CHECK(lifetime(two_lanes({1}, {})) == std::pair<int64_t, int64_t>{2, 4});
  CHECK(lifetime(two_lanes({}, {2})) == std::pair<int64_t, int64_t>{0, 3});
  CHECK(lifetime(two_lanes({1}, {2})) == std::pair<int64_t, int64_t>{2, 3});
}

TEST_CASE("buffers of two lanes share bytes only when waits set them apart") {
  const auto shares = [](std::vector<InstrId> communication_waits,
                         std::vector<InstrId> compute_waits, size_t other) {
    const Program program =
        assign_arena_offsets(two_lanes(std::move(communication_waits), std::move(compute_waits)));
    CHECK(shared_too_early(program).empty());
    CHECK(program.bytes_of_arena(Arena::kDevice) >= 128);
    return program.buffers[1].arena_offset == program.buffers[other].arena_offset;
  };
  CHECK_FALSE(shares({}, {}, 0));
  CHECK_FALSE(shares({}, {}, 2));
  CHECK_FALSE(shares({0}, {}, 0));
  CHECK(shares({1}, {}, 0));
  CHECK_FALSE(shares({1}, {}, 2));
}

TEST_CASE("no buffer overlaps a result, which is read after the program has ended") {
  for (const bool is_result : {false, true}) {
    INFO(is_result);
    Program program =
        program_of_touches({{Lane::kCompute, 0}, {Lane::kCompute, 1}, {Lane::kCompute, 2}});
    program.buffers[0].is_result = is_result;
    CHECK(compute_buffer_lifetimes(program)[0].last == (is_result ? 3 : 0));
    program = assign_arena_offsets(std::move(program));
    CHECK((program.buffers[0].arena_offset == program.buffers[1].arena_offset) == !is_result);
    CHECK((program.buffers[0].arena_offset == program.buffers[2].arena_offset) == !is_result);
    CHECK(find_result_buffer(program) == (is_result ? 0 : -1));
  }
}

TEST_CASE("lifetimes are computed even with waits that the checker would refuse") {
  CHECK(compute_buffer_lifetimes(two_lanes({-1, 99, 2}, {3, -7})).size() == 3);
}

TEST_CASE("planning again gives the same offsets") {
  const Program program = build(small_config(2, true)).step({.micro_batches = 2});
  CHECK(program_text(assign_arena_offsets(program)) == program_text(program));
}

/// Returns a step at stage 3 on two ranks, where the buckets of gradients are in use when few
/// activations are.
Program sharded_step() {
  ModelConfig config = small_config(8, true);
  config.vocab_rows = 2048;
  StepOptions options{.state = states(2), .bucket_elements = 4096};
  options.state.zero_stage = 3;
  return build(config, GraphMode::kTrain, UnitGranularity::kLayer, {1, 64}).step(options);
}

/// Returns the size of a separate arena for only the buffers that `takes` selects.
template <typename Takes>
int64_t separate_arena_bytes(const Program& program, Takes takes) {
  std::vector<StorageRequest> lifetimes = compute_buffer_lifetimes(program);
  for (size_t i = 0; i < lifetimes.size(); ++i)
    if (program.buffers[i].persistent_kind || !takes(program.buffers[i])) lifetimes[i] = {};
  return pack_storage(lifetimes, kStorageAlignment).bytes;
}

TEST_CASE("private buffers use gaps between those that peers read if that makes arenas smaller") {
  const Program program = sharded_step();
  const int64_t visible =
      separate_arena_bytes(program, [](const Buffer& b) { return b.peer_visible; });
  const int64_t hidden =
      separate_arena_bytes(program, [](const Buffer& b) { return !b.peer_visible; });
  const int64_t one = separate_arena_bytes(program, [](const Buffer&) { return true; });
  CAPTURE(visible, hidden, one);
  CHECK(program.bytes_of_arena(Arena::kShared) == visible);
  CHECK(program.bytes_of_arena(Arena::kDevice) < hidden);
  // Two arenas are nearly as small as one would be.
  CHECK(arena_total(program) <= one + (visible + hidden - one) / 4);
  CHECK(std::any_of(program.buffers.begin(), program.buffers.end(),
                    [](const Buffer& b) { return b.in_gap; }));
  CHECK(shared_too_early(program).empty());
  CHECK(program_text(assign_arena_offsets(program)) == program_text(program));
}

TEST_CASE("however deep the model, two arenas are nearly as small as one") {
  const PartitionedModel built = model_of_large_activations(200, true, 128);
  for (const int stage : {0, 2}) {
    StepOptions options{.state = states(2), .bucket_elements = 1};
    options.state.zero_stage = stage;
    const Program two = built.step(options, 2);
    const int64_t one = separate_arena_bytes(two, [](const Buffer&) { return true; });
    CAPTURE(stage, one, two.bytes_of_arena(Arena::kDevice), two.bytes_of_arena(Arena::kShared));
    CHECK(arena_total(two) <= one + one / 8);
  }
}

TEST_CASE("a program uses the present size of one arena before it enlarges the other") {
  const Program program = sharded_step();
  const auto gaps = [](const Program& p) {
    return std::count_if(p.buffers.begin(), p.buffers.end(),
                         [](const Buffer& b) { return b.in_gap; });
  };
  const Program enough = assign_arena_offsets(program, {int64_t{1} << 40, 0, 0});
  CHECK(gaps(enough) == 0);
  CHECK(enough.bytes_of_arena(Arena::kShared) == program.bytes_of_arena(Arena::kShared));
  const Program room =
      assign_arena_offsets(program, {0, 2 * program.bytes_of_arena(Arena::kShared), 0});
  CHECK(room.bytes_of_arena(Arena::kDevice) < program.bytes_of_arena(Arena::kDevice));
  CHECK(room.bytes_of_arena(Arena::kShared) <= 2 * program.bytes_of_arena(Arena::kShared));
  CHECK(shared_too_early(room).empty());
}

/// The programs of tensor ranks, for a model whose dimensions can be divided.
struct SplitProgram {
  PartitionedModel built;
  Program program;
};
SplitProgram split_program(int ranks) {
  ModelConfig config = small_config(2, false);
  config.hidden = 128;
  config.feed_forward = 256;
  config.vocab_rows = 256;
  config.kv_heads = 4;
  config.head_size = 32;
  SplitProgram split{
      build(config, GraphMode::kTrain, UnitGranularity::kLayer, {1, 64}, {ranks, 0, true}), {}};
  split.built.partition = build_units(split.built.model, UnitGranularity::kLayer, {128, INT64_MAX});
  StepOptions options{.state = states(2)};
  options.state.tensor = {ranks, 0};
  split.program = split.built.step(options, 1);
  return split;
}

constexpr int64_t kMiB = 1 << 20;

/// The unit of sizes in reduction_program(). Seven units are less than half a huge page.
constexpr int64_t kUnit = 128 << 10;

/// Returns a program with one all-reduce of two ranks for each (group, weight), of `weight` units.
Program reduction_program(const std::vector<std::pair<GroupId, int64_t>>& groups_and_weights) {
  Program program;
  program.groups = {
      {.members = {.label = "data", .ranks = {0, 1}}, .place = {.count = 2}},
      {.members = {.label = "tensor", .ranks = {0, 2}, .factors = {{{MeshAxis::kTensor}, 2, 1}}},
       .place = {.count = 2}}};
  for (const auto& [group, weight] : groups_and_weights) {
    const auto buffer = static_cast<BufferId>(program.buffers.size());
    program.buffers.push_back(
        {.name = cat("b", buffer), .bytes = weight * kUnit, .peer_visible = true});
    const BufferRange whole{buffer, 0, weight * kUnit};
    program.instrs.push_back({.kind = InstrKind::kAllReduce,
                              .lane = lane_of(group),
                              .reads = {whole},
                              .writes = {whole},
                              .detail = Communication{.group = group}});
  }
  return program;
}

int64_t mapped_bytes(const Program& program) {
  return mapped_peer_bytes({&program}, [](const ProgramGroup&) { return true; });
}

TEST_CASE("a rank maps what one collective of each concurrent group reads from its peers") {
  // Each of two ranks reads half of the summed bytes from the other. The kernel also maps the pages
  // around them.
  CHECK(mapped_bytes(reduction_program({{0, 2}, {0, 6}})) == 3 * kUnit + kShmReadAround);
  // A part that may be in huge pages maps one of them at a time, and so does a larger part.
  CHECK(mapped_bytes(reduction_program({{0, 2}, {0, 8}})) == 2 * kMiB);
  CHECK(mapped_bytes(reduction_program({{0, 2}, {0, 512}})) == 2 * kMiB);
  Program beside = reduction_program({{0, 2}, {1, 6}, {0, 4}});
  CHECK(mapped_bytes(beside) == (3 + 2) * kUnit + 2 * kShmReadAround);
  // The last collective waits for that of the other group.
  beside.instrs[2].waits = {1};
  CHECK(mapped_bytes(beside) == (3 + 1) * kUnit + 2 * kShmReadAround);
  beside.instrs[1].waits = {0};
  CHECK(mapped_bytes(beside) == 3 * kUnit + kShmReadAround);
}

TEST_CASE("a collective that peers cannot read in place fills staging areas with its bytes") {
  const auto staged = [](Program program, bool shared) {
    for (Buffer& buffer : program.buffers) buffer.peer_visible = shared;
    return staged_peer_bytes({&program}, [](const ProgramGroup&) { return true; });
  };
  CHECK(staged(reduction_program({{0, 2}}), true) == 0);
  // Each of two ranks has two halves. Small collectives fill kShmStagedBytes of each half.
  CHECK(staged(reduction_program({{0, 2}, {0, 1}}), false) ==
        2 * 2 * (2 * kUnit - kShmStagedBytes));
  CHECK(staged(reduction_program({{0, 64}}), false) == 2 * 2 * (kShmHalfBytes - kShmStagedBytes));
  CHECK(staged(reduction_program({{0, 64}, {1, 64}}), false) ==
        2 * 2 * 2 * (kShmHalfBytes - kShmStagedBytes));
}

TEST_CASE("a reduction maps parts of all peers at once, an all-gather one peer after another") {
  Program program = reduction_program({{0, 2}});
  program.groups[0].place.count = 4;
  CHECK(mapped_bytes(program) == 3 * (kUnit / 2 + kShmReadAround));
  program.instrs[0].kind = InstrKind::kAllGather;
  CHECK(mapped_bytes(program) == 2 * kUnit + kShmReadAround);
}

TEST_CASE("a rank maps a bounded part of a message at a time") {
  for (const auto& [bytes, mapped] : {std::pair(kMiB / 2, kMiB / 2 + kShmReadAround),
                                      std::pair(kMiB, 2 * kMiB), std::pair(64 * kMiB, 2 * kMiB)}) {
    Program program = reduction_program({{0, 1}});
    program.buffers[0].bytes = bytes;
    program.instrs[0].kind = InstrKind::kReceive;
    program.instrs[0].writes[0].bytes = bytes;
    CHECK(mapped_bytes(program) == mapped);
  }
}

TEST_CASE("a group that does not use shared memory maps nothing of its peers") {
  const Program program = reduction_program({{0, 2}, {1, 6}});
  CHECK(mapped_peer_bytes({&program}, [](const ProgramGroup& group) {
          return !group.members.runs_within({MeshAxis::kTensor});
        }) == kUnit + kShmReadAround);
}

TEST_CASE("tensor ranks divide parameters, gradients, optimizer state and what backward needs") {
  const SplitProgram whole = split_program(1);
  int64_t norms = 0;  // which every rank has completely
  for (const Unit& unit : whole.built.partition.units)
    norms += unit.holds_small_tensors ? unit.padded_numel : 0;
  for (const int ranks : {2, 4}) {
    const SplitProgram split = split_program(ranks);
    INFO("tensor " << ranks);
    const auto of = [](const Program& program, Category category) {
      return plan_memory({&program}).at(Tier::kDevice).bytes_of(category);
    };
    for (const auto& [category, width] :
         {std::pair(Category::kParameters, 4), std::pair(Category::kGradients, 4),
          std::pair(Category::kOptimizer, 8)})
      CHECK(of(split.program, category) - norms * width ==
            (of(whole.program, category) - norms * width) / ranks);
    // Between the linear layers a rank has a part of the tokens; inside, it has its heads and its
    // part of the MLP.
    const auto saved = [](const ModelDescription& model) {
      return plan_saved(model.graph_of(model.layers[1])).bytes;
    };
    CHECK(saved(split.built.model) * ranks == saved(whole.built.model));
    const auto hidden = [](const Program& program) {
      return program.at(buffer_named(program, "hidden.1.0")).bytes;
    };
    CHECK(hidden(split.program) * ranks == hidden(whole.program));
    // Temporarily a rank has all tokens: of a linear layer's input, of a result that is summed, and
    // of the gradient that the head computes.
    const int64_t all_tokens = hidden(whole.program);
    const int64_t shared = of(whole.program, Category::kActivations) / ranks;
    CHECK(of(split.program, Category::kActivations) >= shared);
    CHECK(of(split.program, Category::kActivations) <= shared + 3 * all_tokens);
  }
}

}  // namespace
}  // namespace ftrun
