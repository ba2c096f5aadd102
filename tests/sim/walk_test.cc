#include "sim/walk.h"

#include <algorithm>

#include "program/models.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

const RankGroup kLow{"low", {0, 1}};
const RankGroup kHigh{"high", {1, 2}};

/// An all-reduce of `bytes` bytes over a group; sum_program() makes a program of several, one after
/// another.
struct Sum {
  RankGroup group;
  int64_t bytes = 8;
};
Program sum_program(int rank, const std::vector<Sum>& list) {
  Program program;
  program.buffers.push_back(
      {.name = "values", .bytes = 64, .persistent_kind = PersistentKind::kParameters});
  for (const RankGroup& group : {kLow, kHigh})
    if (group.index_of(rank) >= 0)
      program.groups.push_back({group, {group.size(), group.index_of(rank)}});
  for (const Sum& sum : list) {
    Instr instr{.kind = InstrKind::kAllReduce};
    const auto at = std::find_if(
        program.groups.begin(), program.groups.end(),
        [&](const ProgramGroup& group) { return group.members.ranks == sum.group.ranks; });
    instr.detail = Communication{.group = static_cast<GroupId>(at - program.groups.begin())};
    instr.lane = lane_of(instr.group());
    instr.reads = instr.writes = {{0, 0, sum.bytes}};
    program.instrs.push_back(std::move(instr));
  }
  return program;
}

std::string walk_sums(const std::vector<std::vector<Sum>>& lists) {
  std::vector<Program> programs;
  for (const std::vector<Sum>& list : lists)
    programs.push_back(sum_program(static_cast<int>(programs.size()), list));
  std::vector<RankProgram> ranks;
  for (const Program& program : programs)
    ranks.push_back({static_cast<int>(ranks.size()), &program});
  return walk_collectives(world_of(ranks));
}

const Sum kInLow{kLow};
const Sum kInHigh{kHigh};

TEST_CASE("ranks reach the end if each collective finds its members, however groups alternate") {
  CHECK(walk_sums({{kInLow}, {kInLow, kInHigh}, {kInHigh}}) == "");
  // Rank 0 has two in a row, rank 1 does not.
  CHECK(walk_sums({{kInLow, kInLow}, {kInLow, kInHigh, kInLow}, {kInHigh}}) == "");
  CHECK(walk_sums({{kInLow, kInLow}, {kInHigh, kInLow, kInLow, kInHigh}, {kInHigh, kInHigh}}) ==
        "");
}

TEST_CASE("a collective whose member never arrives is named, with the rank that it waits for") {
  CHECK(walk_sums({{kInLow, kInLow}, {kInLow, kInHigh}, {kInHigh}}) ==
        "rank 0 enters instruction 1 (all_reduce) with 8 bytes of values as F32 over low@0 and "
        "waits for rank 1, which has no further collective");
  CHECK(walk_sums({{kInLow}, {kInHigh, kInLow}, {}}) ==
        "rank 1 enters instruction 0 (all_reduce) with 8 bytes of values as F32 over high@1 and "
        "waits for rank 2, which has no further collective");
}

TEST_CASE("members that enter a collective with different sizes are named, the lower rank first") {
  CHECK(walk_sums({{kInLow, {kLow, 16}}, {kInLow, kInLow}, {}}) ==
        "collective 1: rank 0 enters instruction 1 (all_reduce) with 16 bytes of values as F32 "
        "over low@0, rank 1 enters instruction 1 (all_reduce) with 8 bytes of values as F32 over "
        "low@0");
}

/// Returns a program that sums a part of the state over the replicas of a mesh, at a given offset.
Program sums_part(const RankMesh& mesh, int rank, int64_t offset) {
  Program program;
  program.buffers.push_back(
      {.name = "wire", .bytes = 64, .persistent_kind = PersistentKind::kParameters});
  for (const RankGroup& group :
       {mesh.group_of(rank, {MeshAxis::kDataReplicate}), mesh.group_of(rank, kStateAxes)})
    if (group.size() > 1) program.groups.push_back({group, {group.size(), group.index_of(rank)}});
  program.instrs.push_back(
      make_collective(InstrKind::kAllReduce, {.group = 0}, {0, offset, 8}, {0, offset, 8}));
  return program;
}

/// Walks the programs of all ranks of the mesh, where replica r has its part at offset r * `moved`.
/// Returns the fault, or "".
std::string walk_replicas(const PerAxis& sizes, int64_t moved) {
  const RankMesh mesh(sizes);
  std::vector<Program> programs;
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    programs.push_back(sums_part(mesh, rank, mesh.coordinates_of(rank).data_replicate * moved));
  std::vector<RankProgram> ranks;
  for (const Program& program : programs)
    ranks.push_back({static_cast<int>(ranks.size()), &program});
  return walk_collectives(world_of(ranks));
}

TEST_CASE(
    "replicas must sum at equal offsets, except for parts of a state that ranks share, along "
    "whatever axes") {
  CHECK(walk_replicas({.pipeline = 1, .data_replicate = 2, .data = 1, .context = 1, .tensor = 1},
                      0) == "");
  CHECK(walk_replicas({.pipeline = 1, .data_replicate = 2, .data = 1, .context = 1, .tensor = 1},
                      8) != "");
  for (const auto& [shards, context] : {std::pair(2, 1), std::pair(2, 2), std::pair(1, 2)})
    CHECK(walk_replicas(
              {.pipeline = 1, .data_replicate = 2, .data = shards, .context = context, .tensor = 1},
              8) == "");
}

TEST_CASE("a program may have any number of groups, each with a lane") {
  constexpr int kPeers = 70;
  std::vector<Program> programs(1 + kPeers);
  for (Program& program : programs)
    program.buffers.push_back(
        {.name = "values", .bytes = 8 * kPeers, .persistent_kind = PersistentKind::kParameters});
  const auto add = [&](int rank, int peer) {
    Program& program = programs[static_cast<size_t>(rank)];
    const auto id = static_cast<GroupId>(program.groups.size());
    program.groups.push_back({{"pair", {0, peer}}, {2, rank == 0 ? 0 : 1}});
    program.instrs.push_back(make_collective(InstrKind::kAllReduce, {.group = id},
                                             {0, 8 * (peer - 1), 8}, {0, 8 * (peer - 1), 8}));
  };
  for (int peer = 1; peer <= kPeers; ++peer) {
    add(0, peer);
    add(peer, peer);
  }
  const auto faults = [&] {
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    return check_programs(all);
  };
  for (Program& program : programs) program.initialized_ranges = {program.full_range(0)};
  CHECK(faults() == std::vector<std::string>{});
  CHECK(lane_count(programs[0]) == 4 + kPeers);
  programs[kPeers].instrs.clear();
  REQUIRE(faults().size() == 1);
  CHECK(faults()[0].find("waits for rank 70, which has no further collective") !=
        std::string::npos);
}

TEST_CASE("an instruction is ready when what it waits for is done, whatever else is not") {
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0},
                                              {.lane = Lane::kToHost, .buffer = 1, .waits = {0}},
                                              {.lane = Lane::kDisk, .buffer = 2, .waits = {0, 1}},
                                              {.lane = Lane::kCompute, .buffer = 3}});
  const std::vector<LaneSchedule> schedules{make_lane_schedule(program)};
  const RankProgram ranks[] = {{0, &program}};
  const World world = world_of(ranks);
  Walk walk(world, schedules);
  walk.begin();
  const auto ready = [&] {
    std::vector<InstrId> found;
    for (const Walk::LaneHead lane_head : walk.ready())
      found.push_back(static_cast<InstrId>(&walk.instr(lane_head) - program.instrs.data()));
    std::sort(found.begin(), found.end());
    return found;
  };
  const auto finish = [&](InstrId id) {
    for (size_t i = 0; i < walk.ready().size(); ++i)
      if (&walk.instr(walk.ready()[i]) == &program.instr(id)) return walk.finish(i);
    FAIL("instruction " << id << " is not ready");
  };
  CHECK(ready() == std::vector<InstrId>{0});
  finish(0);
  CHECK(ready() == std::vector<InstrId>{1, 3});
  finish(3);
  CHECK(ready() == std::vector<InstrId>{1});
  finish(1);
  CHECK(ready() == std::vector<InstrId>{2});
  finish(2);
  CHECK(ready().empty());
  CHECK(walk.fault_text() == "");
}

TEST_CASE("the last ready instruction takes the place of a done one, and new ones come after it") {
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0},
                                              {.lane = Lane::kToHost, .buffer = 1},
                                              {.lane = Lane::kDisk, .buffer = 2},
                                              {.lane = Lane::kCompute, .buffer = 3, .waits = {0}}});
  const std::vector<LaneSchedule> schedules{make_lane_schedule(program)};
  const RankProgram ranks[] = {{0, &program}};
  const World world = world_of(ranks);
  Walk walk(world, schedules);
  walk.begin();
  const auto ready = [&] {
    std::vector<const Instr*> found;
    for (const Walk::LaneHead lane_head : walk.ready()) found.push_back(&walk.instr(lane_head));
    return found;
  };
  std::vector<const Instr*> expected = ready();
  REQUIRE(expected.size() == 3);
  const auto which = static_cast<size_t>(
      std::find(expected.begin(), expected.end(), &program.instrs[0]) - expected.begin());
  expected[which] = expected.back();
  expected.back() = &program.instrs[3];
  walk.finish(which);
  CHECK(ready() == expected);
}

TEST_CASE("the members of a lane head can still be read after another instruction has ended") {
  const Program program = program_of_touches({{.lane = Lane::kCompute, .buffer = 0}});
  const std::vector<LaneSchedule> schedules{make_lane_schedule(program)};
  const RankProgram ranks[] = {{0, &program}, {1, &program}};
  const World world = world_of(ranks);
  Walk walk(world, schedules);
  walk.begin();
  REQUIRE(walk.ready().size() == 2);
  const int32_t first = walk.ready()[0].rank;
  const std::span<const int32_t> members = walk.joint_members(walk.ready()[0]);
  walk.finish(0);
  REQUIRE(members.size() == 1);
  CHECK(members.front() == first);
}

TEST_CASE(
    "an instruction that depends on the decision runs after it, not if the step is not finite") {
  Program program = program_of_touches(
      {{.lane = Lane::kCompute, .buffer = 0}, {.lane = Lane::kToHost, .buffer = 1, .waits = {0}}});
  program.instrs[1].if_finite = true;
  const RankProgram ranks[] = {{0, &program}};
  const World world = world_of(ranks);
  const auto walk_to = [&](bool finite, size_t steps) {
    const std::vector<LaneSchedule> schedules{make_lane_schedule(program)};
    Walk walk(world, schedules);
    walk.begin(finite);
    for (size_t i = 0; i < steps; ++i) walk.finish(0);
    return walk.ready().empty()
               ? walk.fault_text()
               : cat(walk.runs_in_step(walk.ready()[0]) ? "takes part" : "is left out");
  };
  CHECK(walk_to(true, 1) == "rank 0: instruction 1 (begin) starts before the decision");
  program.instrs[0].kind = InstrKind::kDecide;
  CHECK(walk_to(true, 1) == "takes part");
  CHECK(walk_to(false, 1) == "is left out");
  CHECK(walk_to(false, 2) == "");
}

}  // namespace
}  // namespace ftrun
