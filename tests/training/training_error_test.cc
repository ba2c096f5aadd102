#include "training/training_error.h"

#include <new>
#include <string>

#include <c10/util/Exception.h>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

std::string converted_error(const std::exception& exception) {
  const Error error = training_error(exception);
  return cat(static_cast<int>(error.code()), " ", error.what());
}

TEST_CASE("a lack of memory in a step is an environment error with a remedy, whoever throws it") {
  const std::string expected =
      "5 out of memory\n  remedy: use a smaller micro-batch or sequence, or a machine with more "
      "memory";
  CHECK(converted_error(std::bad_alloc()) == expected);
  try {
    TORCH_CHECK(
        false,
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes. Error code 12 "
        "(Cannot allocate memory)");
  } catch (const std::exception& exception) {
    CHECK(converted_error(exception) == expected);
  }
  try {
    TORCH_CHECK(false, "sizes differ");
  } catch (const std::exception& exception) {
    CHECK(converted_error(exception) == "1 internal error: sizes differ");
  }
  CHECK(converted_error(Error(ExitCode::kPeerLost, "rank 1 is gone", "look at its log")) ==
        "6 rank 1 is gone\n  remedy: look at its log");
}

}  // namespace
}  // namespace ftrun
