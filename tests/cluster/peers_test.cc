#include "cluster/peers.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child_process.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE(
    "a process is gone if it has ended, reaped or not, or if another process has its number") {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
  CHECK(is_gone(child));
  ::waitpid(child, nullptr, 0);
  CHECK(is_gone(child));
  CHECK_FALSE(is_gone(::getpid()));
  PeerIdentity other = read_own_identity();
  CHECK(read_process_state(other, read_own_identity()) == ProcessState::kRunning);
  ++other.start_ticks;
  CHECK(read_process_state(other, read_own_identity()) == ProcessState::kGone);
}

TEST_CASE("a process without free file descriptors does not report another process as gone") {
  const PeerIdentity parent = read_own_identity();
  CHECK(testing::exit_code_in_child([&] {
          const PeerIdentity self = read_own_identity();
          const rlimit none{0, 0};
          ::setrlimit(RLIMIT_NOFILE, &none);
          return read_process_state(parent, self) == ProcessState::kUnknown &&
                         !is_gone(parent.pid) && !is_stopped(parent.pid)
                     ? 0
                     : 1;
        }) == 0);
}

}  // namespace
}  // namespace ftrun
