#include "waiting.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "source_paths.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

// These hidden test cases fail, each in a different way; the cases below run them in a process of
// this program.

TEST_CASE("waits: a limit that is reached", "[.waits]") {
  testing::await_that([] { return false; }, "a sign of life", 1ms);
}

TEST_CASE("waits: the exit code 6 instead of 0", "[.waits]") {
  testing::require_exit(6, 0, "rank 0 waited 3.0s\nfor rank 1");
}

TEST_CASE("waits: an assertion that shows an error of a wait", "[.waits]") {
  const std::string failure =
      testing::failure_message(Error(ExitCode::kPeerLost, "rank 0 waited 3.0s", "raise the limit"));
  CHECK(failure == "");
}

TEST_CASE("waits: an error that the test did not expect", "[.waits]") {
  throw Error(ExitCode::kPeerLost, "rank 0 lost a peer");
}

TEST_CASE("fault: an assertion", "[.fault]") {
  testing::record_wait("3 s for a sign of life");
  CHECK(1 + 1 == 3);
}

TEST_CASE("fault: another exit code than that of a wait", "[.fault]") {
  testing::require_exit(137, 0, "killed");
}

TEST_CASE("fault: an error that is not a timeout", "[.fault]") {
  throw Error(ExitCode::kBadInput, "the file is damaged");
}

namespace {

/// Returns the last line that this program prints when it runs these test cases, all of which fail.
std::string last_line(const std::string& cases) {
  FILE* output = ::popen(
      cat("'", testing::binary_dir(), "/bin/test_base", "' '", cases, "' 2>&1").c_str(), "r");
  REQUIRE(output != nullptr);
  std::string text, last;
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), output) != nullptr) {
    const std::string line = part.data();
    if (line != "\n") last = line;
  }
  const int status = ::pclose(output);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) > 0);
  return last;
}

}  // namespace

TEST_CASE("a program that fails by waits alone says so in its last line") {
  CHECK(last_line("waits: a limit*") == "timed out: 1 ms for: a sign of life\n");
  CHECK(last_line("waits: the exit code*") == "timed out: exit 6, expected 0\n");
  CHECK(last_line("waits: an assertion*") == "timed out: rank 0 waited 3.0s\n");
  CHECK(last_line("waits: an error*") == "timed out: rank 0 lost a peer\n");
  CHECK_THAT(last_line("waits: *"), Catch::StartsWith("timed out: "));
}

TEST_CASE("a program with any other failure does not say that it timed out") {
  for (const char* cases : {"fault: an assertion", "fault: another*", "fault: an error*",
                            "waits: *,fault: an assertion"})
    CHECK_THAT(last_line(cases), !Catch::StartsWith("timed out: "));
}
