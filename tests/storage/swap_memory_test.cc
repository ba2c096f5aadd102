#include "storage/swap_memory.h"

#include <algorithm>
#include <utility>

#include "fault_storage.h"
#include "storage/aio_options.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("swap memory is zeros in whole sectors and begins on a huge page") {
  for (const int64_t bytes :
       {int64_t{1}, int64_t{4096}, int64_t{3} << 20, (int64_t{5} << 20) + 7}) {
    SwapMemory memory(bytes);
    REQUIRE(memory.size() == swap_align(bytes));
    REQUIRE(reinterpret_cast<uintptr_t>(memory.data()) % (2 << 20) == 0);
    const auto all = memory.bytes();
    REQUIRE(std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{0}; }));
    all.back() = std::byte{1};
  }
}

TEST_CASE("swap memory can be moved to another owner") {
  SwapMemory first(4096);
  first.data()[5] = std::byte{7};
  const std::byte* place = first.data();
  SwapMemory second = std::move(first);
  REQUIRE(second.data() == place);
  REQUIRE(first.size() == 0);
  first = std::move(second);
  REQUIRE(first.data()[5] == std::byte{7});
  REQUIRE(SwapMemory(0).data() == nullptr);
}

TEST_CASE("swap memory above the machine's is refused, with its bytes") {
  REQUIRE(
      testing::error_line_of([] { SwapMemory memory(int64_t{1} << 60); }) ==
      "5: swap buffers of 1024.00 PiB cannot be allocated: Cannot allocate memory | free memory "
      "on this machine, or lower offload_param's buffer_count × buffer_size");
}

}  // namespace
}  // namespace ftrun
