#include <string>

#include "base/error.h"
#include "kernels/device.h"

#include <catch2/catch.hpp>

namespace ftrun::test {
namespace {

// True of every build and machine: without CUDA, with CUDA but no driver, with GPUs but not that many.
TEST_CASE("asking for a GPU that is not there says so and what to do") {
  try {
    open_cuda_kernels(9999);
    FAIL("no error");
  } catch (const Error& e) {
    const bool without_cuda = e.code() == ExitCode::kUnsupported;
    REQUIRE((without_cuda || e.code() == ExitCode::kEnvironment));
    REQUIRE_THAT(e.message(), Catch::StartsWith("GPU 9999 was asked for, but "));
    if (without_cuda)
      REQUIRE(e.message() == "GPU 9999 was asked for, but this ftrun was built without CUDA");
    REQUIRE_FALSE(e.remedy().empty());
  }
}

}  // namespace
}  // namespace ftrun::test
