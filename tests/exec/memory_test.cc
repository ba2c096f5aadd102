#include "exec/memory.h"

#include "rig.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

Buffer persistent(const std::string& name, int64_t bytes, Category category) {
  Buffer buffer;
  buffer.name = name;
  buffer.bytes = bytes;
  buffer.category = category;
  buffer.persistent = true;
  return buffer;
}

Program with_buffers(std::vector<Buffer> buffers, int64_t arena_bytes) {
  Program program;
  program.buffers = std::move(buffers);
  program.arena_bytes = arena_bytes;
  return program;
}

TEST_CASE("programs share persistent buffers by name and one arena of the largest's size") {
  fixtures::Alone alone;
  RankMemory memory(*alone.group);
  Buffer temporary;
  temporary.bytes = 256;
  temporary.arena_offset = 512;
  const Program small =
      with_buffers({persistent("weights", 4096, Category::kParameters), temporary}, 1024);
  const Program large = with_buffers({persistent("other", 64, Category::kBuffers),
                                      persistent("weights", 4096, Category::kParameters)},
                                     8192);
  memory.allocate(small);
  memory.allocate(large);
  REQUIRE(memory.arena_bytes() == 8192);
  REQUIRE(memory.at(small, {0, 100, 8}) == memory.persistent("weights") + 100);
  REQUIRE(memory.at(small, {0, 100, 8}) == memory.at(large, {1, 100, 8}));
  const std::byte* arena = memory.at(small, {1, 0, 8}) - 512;
  REQUIRE(memory.at(small, {1, 16, 8}) == arena + 528);
  REQUIRE(memory.allocated() == std::map<std::string, int64_t>{
                                    {"activations", 8192}, {"buffers", 64}, {"parameters", 4096}});
}

TEST_CASE("memory is zero at first, whether peers may see it or not") {
  fixtures::Alone alone;
  RankMemory memory(*alone.group);
  Buffer shared = persistent("gradients", 10'000, Category::kGradients);
  shared.peer_visible = true;
  memory.allocate(
      with_buffers({shared, persistent("weights", 10'000, Category::kParameters)}, 100));
  for (const char* name : {"gradients", "weights"})
    for (int64_t i = 0; i < 10'000; ++i) REQUIRE(memory.persistent(name)[i] == std::byte{0});
}

TEST_CASE("a buffer of two sizes is a defect, and so is one that nobody made") {
  fixtures::Alone alone;
  RankMemory memory(*alone.group);
  memory.allocate(with_buffers({persistent("weights", 4096, Category::kParameters)}, 0));
  REQUIRE_THROWS_WITH(
      memory.allocate(with_buffers({persistent("weights", 8192, Category::kParameters)}, 0)),
      Catch::Contains("buffer weights has 4096 bytes in one program and 8192 in another"));
  REQUIRE_THROWS_WITH(memory.persistent("gradients"), Catch::Contains("no buffer gradients"));
}

TEST_CASE("memory that the machine does not have is refused with the amount") {
  fixtures::Alone alone;
  RankMemory memory(*alone.group);
  const Program huge =
      with_buffers({persistent("weights", int64_t{1} << 60, Category::kParameters)}, 0);
  try {
    memory.allocate(huge);
    FAIL("it was granted");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kEnvironment);
    REQUIRE(error.message() ==
            "out of host memory for weights: 1024.00 PiB wanted: Cannot allocate memory");
    REQUIRE(error.remedy() ==
            "use a smaller micro-batch or sequence, or a machine with more memory");
  }
}

}  // namespace
}  // namespace ftrun
