#include "comm/out_of_memory.h"

#include <exception>
#include <new>
#include <stdexcept>

#include <c10/core/CPUAllocator.h>

#include "ranks.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

// The alignment avoids a bug: if all thread-local data is one byte, mold 1.10 may let the pages
// that the loader makes read-only begin before the first mapped page, and the program does not
// start.
alignas(16) thread_local bool memory_is_refused = false;

/// Uses LibTorch's own allocator until memory is refused to the calling thread; then it throws what
/// LibTorch's allocator throws.
class RefusingAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(
        !memory_is_refused,
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate ",
        bytes, " bytes. Error code 12 (Cannot allocate memory)");
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

TEST_CASE("LibTorch's and C++'s own out-of-memory errors are distinguished from all other errors") {
  CHECK(is_out_of_memory(std::bad_alloc()));
  CHECK_FALSE(is_out_of_memory(std::runtime_error("DefaultCPUAllocator: can't allocate memory")));
  const auto is_recognized = [](const auto& fails) {
    try {
      fails();
    } catch (const std::exception& exception) {
      return is_out_of_memory(exception);
    }
    FAIL("nothing was thrown");
    return false;
  };
  CHECK(is_recognized([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); }));
  CHECK_FALSE(is_recognized([] { TORCH_CHECK(false, "sizes differ"); }));
}

// [long]: a sanitizer's allocator ends the process on such a size.
TEST_CASE("LibTorch's error for an impossible size counts as a lack of memory", "[long]") {
  try {
    (void)c10::GetDefaultCPUAllocator()->allocate(size_t{1} << 62);
    FAIL("it was given");
  } catch (const std::exception& exception) {
    INFO(exception.what());
    REQUIRE(is_out_of_memory(exception));
  }
}

TEST_CASE("a rank whose message finds no memory blames itself and no connection") {
  static RefusingAllocator refusing;
  c10::SetCPUAllocator(&refusing, 1);
  std::string peer;
  const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kGloo);
    float value = 1;
    if (rendezvous.rank() == 1) return group->receive(&value, 1, DType::kF32, 0, {"value"}).wait();
    memory_is_refused = true;
    CHECK_THROWS_AS(group->send(&value, 1, DType::kF32, 1, {"value"}).wait(), std::bad_alloc);
    memory_is_refused = false;
  });
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), 1);
  CHECK(failures[0] == "");
  CHECK_THAT(failures[1],
             Catch::Contains(" in receive #1 (value, 1 x F32) of group world: rank 0 ") &&
                 Catch::Contains(" gave up in send #1 (value, 1 x F32)"));
}

}  // namespace
}  // namespace ftrun
