#include "base/loopback.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "child_process.h"
#include "requirements.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Returns the result of `body` in a separate network namespace, where the loopback interface is
/// down.
std::string run_without_network(const std::function<std::string()>& body) {
  return testing::text_from_child(
      [&] { return ::unshare(CLONE_NEWNET) == 0 ? body() : std::string("no namespace"); });
}

/// Checks whether such a namespace is possible. This runs before the first test, where REQUIRE is
/// not allowed.
const testing::Requirement kNetwork("network", [] {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(CLONE_NEWNET) == 0 ? 0 : 1);
  int status = 1;
  const bool made = child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
  return made ? std::string() : std::string("no network namespace of one's own may be made");
});

std::string refusal() {
  try {
    check_loopback();
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), ": ", error.message(), " | ", error.remedy());
  }
  return "up";
}

TEST_CASE("a loopback interface that is up is not reported") {
  CHECK(refusal() == "up");
}

TEST_CASE("a loopback interface that is down is reported with the command that brings it up",
          "[.needs-network]") {
  CHECK(run_without_network(refusal) ==
        "5: the ranks of this machine cannot reach each other: no route to 127.0.0.1: Network is "
        "unreachable | bring the loopback interface "
        "of this network namespace up: ip link set lo up");
}

}  // namespace
}  // namespace ftrun
