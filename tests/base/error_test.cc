#include "base/error.h"

#include <cerrno>
#include <string>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("an error says what happened and, below it, what to do") {
  const Error error(ExitCode::kBadInput, "model.safetensors: cut short", "download it again");
  CHECK(error.code() == ExitCode::kBadInput);
  CHECK(error.message() == "model.safetensors: cut short");
  CHECK(error.remedy() == "download it again");
  CHECK(std::string(error.what()) == "model.safetensors: cut short\n  remedy: download it again");
}

TEST_CASE("an error without a remedy is only its message") {
  CHECK(std::string(Error(ExitCode::kUsage, "no config given").what()) == "no config given");
}

TEST_CASE("exit codes keep their numbers: supervisors and scripts decide by them") {
  CHECK(static_cast<int>(ExitCode::kOk) == 0);
  CHECK(static_cast<int>(ExitCode::kBug) == 1);
  CHECK(static_cast<int>(ExitCode::kUsage) == 2);
  CHECK(static_cast<int>(ExitCode::kUnsupported) == 3);
  CHECK(static_cast<int>(ExitCode::kBadInput) == 4);
  CHECK(static_cast<int>(ExitCode::kEnvironment) == 5);
  CHECK(static_cast<int>(ExitCode::kPeerLost) == 6);
  CHECK(static_cast<int>(ExitCode::kNumerical) == 7);
  CHECK(static_cast<int>(ExitCode::kRequeue) == 75);
}

TEST_CASE("a failed internal check names its source line and asks for a report") {
  const int line = __LINE__ + 2;
  try {
    bug("3 units, 4 places");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBug);
    CHECK(error.message() == cat("internal error at ", __FILE__, ":", line, ": 3 units, 4 places"));
    CHECK(error.remedy() == "please report this message with the config that caused it");
    return;
  }
  FAIL("bug() returned");
}

TEST_CASE("require throws only when its condition is false, naming the caller's line") {
  REQUIRE_NOTHROW(require(true, "never"));
  const int line = __LINE__ + 2;
  try {
    require(false, "rows hold tokens");
  } catch (const Error& error) {
    CHECK(error.message() ==
          cat("internal error at ", __FILE__, ":", line, ": expected that rows hold tokens"));
    return;
  }
  FAIL("require(false) returned");
}

TEST_CASE("cat joins values of any printable type") {
  CHECK(cat("rank ", 3, " of ", int64_t{4}, ' ', 0.5, std::string("!")) == "rank 3 of 4 0.5!");
}

TEST_CASE("system errors are described in sentences") {
  CHECK(errno_text(ENOSPC) == "No space left on device");
  CHECK(errno_text(ENOENT) == "No such file or directory");
}

}  // namespace
}  // namespace ftrun
