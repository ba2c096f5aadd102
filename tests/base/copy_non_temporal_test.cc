#include "base/copy_non_temporal.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

using namespace ftrun;

TEST_CASE(
    "bytes are copied past the caches whatever their number and wherever both ranges begin and "
    "end") {
  // The source ends at the end of mapped memory, so that reading beyond it would crash.
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE)), room = 8 * page;
  auto* memory = static_cast<uint8_t*>(
      ::mmap(nullptr, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(memory != MAP_FAILED);
  REQUIRE(::mprotect(memory + room, page, PROT_NONE) == 0);
  for (size_t i = 0; i < room; ++i) memory[i] = static_cast<uint8_t>(i * 131 + i / 251);
  for (const size_t bytes :
       std::vector<size_t>{0, 1, 63, 4095, 4096, 4097, 4160, 6143, 6144, 6145, 20'000}) {
    for (const size_t at : std::vector<size_t>{0, 1, 63}) {
      const uint8_t* source = memory + room - bytes;
      std::vector<uint8_t> target(bytes + 128, 0xA5), expected = target;
      copy_non_temporal(target.data() + at, source, bytes);
      std::memcpy(expected.data() + at, source, bytes);
      CAPTURE(bytes, at);
      REQUIRE(target == expected);
    }
  }
  ::munmap(memory, room + page);
}
