#include "engine/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "rank_fixture.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

Buffer persistent_buffer(PersistentKind which, const std::string& name, int64_t bytes,
                         Category category) {
  Buffer buffer;
  buffer.name = name;
  buffer.bytes = bytes;
  buffer.category = category;
  buffer.persistent_kind = which;
  return buffer;
}

Buffer buffer_on(Tier tier, Buffer buffer) {
  buffer.tier = tier;
  return buffer;
}

Buffer temporary_buffer(int64_t bytes, int64_t arena_offset) {
  Buffer buffer;
  buffer.bytes = bytes;
  buffer.arena_offset = arena_offset;
  return buffer;
}

/// Returns a program with these buffers; `arenas` holds the sizes of the device's, the shared and
/// the host's arena, in bytes.
Program program_with_buffers(std::vector<Buffer> buffers, std::array<int64_t, kArenaCount> arenas) {
  Program program;
  program.buffers = std::move(buffers);
  program.arena_bytes = arenas;
  return program;
}

TEST_CASE(
    "programs share persistent buffers by content, not by name, and one arena of the largest "
    "program's size") {
  testing::SingleRank single_rank;
  RankMemory memory(*single_rank.group);
  const Program small = program_with_buffers(
      {persistent_buffer(PersistentKind::kParameters, "weights", 4096, Category::kParameters),
       temporary_buffer(256, 512)},
      {1024, 0, 0});
  const Program large = program_with_buffers(
      {persistent_buffer(PersistentKind::kLoss, "other", 64, Category::kSums),
       persistent_buffer(PersistentKind::kParameters, "matrices", 4096, Category::kParameters)},
      {8192, 0, 0});
  memory.allocate(small);
  memory.allocate(large);
  REQUIRE(memory.at(small, {0, 100, 8}) == memory.at(small, {0, 0, 8}) + 100);
  REQUIRE(memory.at(small, {0, 100, 8}) == memory.at(large, {1, 100, 8}));
  const std::byte* arena = memory.at(small, {1, 0, 8}) - 512;
  REQUIRE(memory.at(small, {1, 16, 8}) == arena + 528);
  const RankMemory::TierBytes device = memory.allocated_bytes(Tier::kDevice);
  REQUIRE(device.persistent[static_cast<size_t>(Category::kParameters)] == 4096);
  REQUIRE(device.persistent[static_cast<size_t>(Category::kSums)] == 4096);  // one page
  REQUIRE(device.arenas == 8192);
  REQUIRE(device.total == 8192 + 4096 + 4096);
  REQUIRE(memory.allocated_bytes(Tier::kHost).total == 0);
  REQUIRE(memory.allocated_bytes(Tier::kDisk).total == 0);
  REQUIRE(memory.swap() == nullptr);
}

TEST_CASE("private memory, memory that peers read and host memory have an arena each") {
  testing::SingleRank single_rank;
  RankMemory memory(*single_rank.group);
  Buffer shared = temporary_buffer(4096, 1024);
  shared.peer_visible = true;
  const Program program = program_with_buffers(
      {temporary_buffer(100, 64), shared, buffer_on(Tier::kHost, temporary_buffer(300, 128)),
       buffer_on(Tier::kHost, persistent_buffer(PersistentKind::kOptimizerStates, "moments", 512,
                                                Category::kOptimizer))},
      {1000, 8192, 3000});
  memory.allocate(program);
  const RankMemory::TierBytes device = memory.allocated_bytes(Tier::kDevice);
  REQUIRE(device.arenas == 4096 + 8192);
  REQUIRE(device.total == 4096 + 8192);
  const RankMemory::TierBytes host = memory.allocated_bytes(Tier::kHost);
  REQUIRE(host.arenas == 4096);
  REQUIRE(host.persistent[static_cast<size_t>(Category::kOptimizer)] == 4096);
  REQUIRE(host.total == 8192);
  // All ranges exist at the same time: a write into one of them must not change another.
  for (BufferId id = 0; id < 4; ++id)
    std::memset(memory.at(program, {id, 0, 0}), id + 1, static_cast<size_t>(program.at(id).bytes));
  for (BufferId id = 0; id < 4; ++id)
    for (int64_t i = 0; i < program.at(id).bytes; ++i)
      REQUIRE(memory.at(program, {id, i, 1})[0] == static_cast<std::byte>(id + 1));
}

TEST_CASE("each buffer on disk keeps what is written to it") {
  testing::SingleRank single_rank;
  const testing::TemporaryFolder scratch;
  RankMemory memory(*single_rank.group, {.folder = scratch / "made", .name = "rank0"});
  const Program train = program_with_buffers(
      {buffer_on(Tier::kDisk, persistent_buffer(PersistentKind::kOptimizerStates, "first", 3 * 4096,
                                                Category::kOptimizer)),
       persistent_buffer(PersistentKind::kParameters, "weights", 4096, Category::kParameters),
       buffer_on(Tier::kDisk, persistent_buffer(PersistentKind::kParameters, "second", 2 * 4096,
                                                Category::kParameters))},
      {0, 0, 0});
  const Program evaluate = program_with_buffers(
      {buffer_on(Tier::kDisk, persistent_buffer(PersistentKind::kParameters, "second", 2 * 4096,
                                                Category::kParameters))},
      {0, 0, 0});
  memory.allocate(train);
  memory.allocate(evaluate);
  REQUIRE(memory.swap() != nullptr);
  REQUIRE(memory.swap()->bytes() == 5 * 4096);
  const RankMemory::TierBytes disk = memory.allocated_bytes(Tier::kDisk);
  // The file system's metadata of the file may take an additional block or two.
  REQUIRE(disk.total >= 5 * 4096);
  REQUIRE(disk.total <= 8 * 4096);
  REQUIRE(disk.persistent[static_cast<size_t>(Category::kOptimizer)] == 3 * 4096);
  REQUIRE(disk.persistent[static_cast<size_t>(Category::kParameters)] == 2 * 4096);
  REQUIRE(memory.allocated_bytes(Tier::kDevice).total == 4096);

  const HostBlock block(4 * 4096, "the test");
  const auto fill = [&](int value) { std::memset(block.data(), value, 4 * 4096); };
  const auto holds = [&](int value, int64_t bytes) {
    return std::all_of(block.data(), block.data() + bytes,
                       [&](std::byte b) { return b == static_cast<std::byte>(value); });
  };
  REQUIRE(memory.is_on_disk(train, {0, 4096, 4096}));
  REQUIRE_FALSE(memory.is_on_disk(train, {1, 0, 4096}));
  fill(9);
  memory.read_disk(train, {2, 0, 2 * 4096}, block.data());
  REQUIRE(holds(0, 2 * 4096));  // never written
  fill(1);
  memory.write_disk(train, {0, 0, 3 * 4096}, block.data());
  fill(2);
  memory.write_disk(train, {2, 0, 2 * 4096}, block.data());
  fill(3);
  memory.write_disk(train, {0, 4096, 4096}, block.data());
  memory.read_disk(train, {0, 4096, 2 * 4096}, block.data());
  REQUIRE(holds(3, 4096));
  REQUIRE(block.data()[4096] == std::byte{1});
  memory.read_disk(train, {0, 0, 4096}, block.data());
  REQUIRE(holds(1, 4096));
  // Both programs refer to the same bytes on disk.
  memory.read_disk(evaluate, {0, 0, 2 * 4096}, block.data());
  REQUIRE(holds(2, 2 * 4096));
  REQUIRE_THROWS_WITH(memory.at(train, {0, 0, 4096}), Catch::Contains("buffer first lies on disk"));
  REQUIRE_THROWS_WITH(memory.allocate(program_with_buffers(
                          {buffer_on(Tier::kDisk, persistent_buffer(PersistentKind::kMaster, "late",
                                                                    4096, Category::kOptimizer))},
                          {0, 0, 0})),
                      Catch::Contains("the first program has all that lies on disk"));
}

/// Returns the size of this process's address space in bytes.
int64_t mapped_by_the_process() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

TEST_CASE("the bytes counted as allocated are those by which the process's address space grew") {
  testing::SingleRank single_rank;
  RankMemory memory(*single_rank.group);
  const Program small = program_with_buffers({temporary_buffer(10'000, 0)}, {3 << 20, 0, 0});
  Program large = program_with_buffers(
      {persistent_buffer(PersistentKind::kParameters, "weights", 5'000'000, Category::kParameters),
       buffer_on(Tier::kHost, persistent_buffer(PersistentKind::kOptimizerStates, "moments",
                                                7'000'001, Category::kOptimizer))},
      {20 << 20, 0, 11'000'000});
  const int64_t before = mapped_by_the_process();
  const auto counted = [&] {
    return memory.allocated_bytes(Tier::kDevice).total + memory.allocated_bytes(Tier::kHost).total;
  };
  const auto grown = [&] { return mapped_by_the_process() - before; };
  memory.allocate(small);
  // The process may have grown a little for other reasons.
  REQUIRE(counted() == 3 << 20);
  REQUIRE(std::abs(grown() - counted()) <= 256 << 10);
  memory.allocate(large);  // replaces the arena, which was too small
  REQUIRE(counted() > 41 << 20);
  REQUIRE(std::abs(grown() - counted()) <= 256 << 10);
}

TEST_CASE("pages count as touched when they were written, and stay counted") {
  testing::SingleRank single_rank;
  RankMemory memory(*single_rank.group);
  Buffer shared =
      persistent_buffer(PersistentKind::kMaster, "master", 64 * 4096, Category::kOptimizer);
  shared.peer_visible = true;
  const Program program =
      program_with_buffers({shared,
                            persistent_buffer(PersistentKind::kParameters, "weights",
                                              3000 * 4096 + 1, Category::kParameters),
                            buffer_on(Tier::kHost, temporary_buffer(4096, 0))},
                           {0, 0, 100 * 4096});
  memory.allocate(program);
  // Huge pages would touch neighboring pages as well.
  ::madvise(memory.at(program, {1, 0, 1}), 3001 * 4096, MADV_NOHUGEPAGE);
  ::madvise(memory.at(program, {2, 0, 1}), 100 * 4096, MADV_NOHUGEPAGE);
  REQUIRE(memory.touched_bytes(Tier::kDevice).total == 0);
  memory.at(program, {1, 0, 1})[0] = std::byte{1};
  memory.at(program, {1, 0, 1})[2000 * 4096] = std::byte{1};
  memory.at(program, {1, 0, 1})[3000 * 4096] = std::byte{1};
  std::memset(memory.at(program, {0, 0, 1}), 1, 5 * 4096);
  memory.at(program, {2, 0, 1})[99 * 4096] = std::byte{1};
  const auto category = [&](Category which) {
    return memory.touched_bytes(Tier::kDevice).persistent[static_cast<size_t>(which)];
  };
  REQUIRE(category(Category::kParameters) == 3 * 4096);
  REQUIRE(category(Category::kOptimizer) == 5 * 4096);
  REQUIRE(memory.touched_bytes(Tier::kHost).arenas == 4096);
  ::madvise(memory.at(program, {1, 0, 1}), 3001 * 4096, MADV_DONTNEED);
  REQUIRE(category(Category::kParameters) == 3 * 4096);
  REQUIRE(memory.allocated_bytes(Tier::kDevice).total == 3065 * 4096);
}

TEST_CASE("allocated memory is zero at first, whether peers may map it or not") {
  testing::SingleRank single_rank;
  RankMemory memory(*single_rank.group);
  Buffer shared =
      persistent_buffer(PersistentKind::kMaster, "master", 10'000, Category::kOptimizer);
  shared.peer_visible = true;
  const Program program = program_with_buffers(
      {shared,
       persistent_buffer(PersistentKind::kParameters, "weights", 10'000, Category::kParameters),
       buffer_on(Tier::kHost, persistent_buffer(PersistentKind::kOptimizerStates, "moments", 10'000,
                                                Category::kOptimizer))},
      {100, 0, 0});
  memory.allocate(program);
  for (const BufferId id : {0, 1, 2})
    for (int64_t i = 0; i < 10'000; ++i) REQUIRE(memory.at(program, {id, i, 1})[0] == std::byte{0});
}

TEST_CASE(
    "a buffer with different sizes in two programs, or without memory, is reported as a defect") {
  testing::SingleRank single_rank;
  RankMemory memory(*single_rank.group);
  memory.allocate(program_with_buffers(
      {persistent_buffer(PersistentKind::kParameters, "weights", 4096, Category::kParameters)},
      {}));
  REQUIRE_THROWS_WITH(
      memory.allocate(program_with_buffers(
          {persistent_buffer(PersistentKind::kParameters, "weights", 8192, Category::kParameters)},
          {})),
      Catch::Contains("buffer weights has 4096 bytes in one program and 8192 in another"));
  const Program unknown = program_with_buffers(
      {persistent_buffer(PersistentKind::kMaster, "master", 64, Category::kOptimizer)}, {});
  REQUIRE_THROWS_WITH(memory.at(unknown, {0, 0, 64}), Catch::Contains("no buffer master"));
}

TEST_CASE("an allocation of more memory than the machine has is refused with the amount") {
  testing::SingleRank single_rank;
  RankMemory memory(*single_rank.group);
  const Program huge =
      program_with_buffers({persistent_buffer(PersistentKind::kParameters, "weights",
                                              int64_t{1} << 60, Category::kParameters)},
                           {});
  try {
    memory.allocate(huge);
    FAIL("it was granted");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kEnvironment);
    REQUIRE_THAT(
        error.message(),
        Catch::StartsWith("out of memory: parameters (buffer weights) needs 1024.00 PiB in "
                          "the device tier, ") &&
            Catch::EndsWith("no main memory for weights of 1024.00 PiB: Cannot allocate memory"));
  }
}

}  // namespace
}  // namespace ftrun
