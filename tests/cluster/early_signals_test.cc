#include "cluster/early_signals.h"

#include <csignal>
#include <initializer_list>

#include "child_process.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Returns the exit code of a process that gets `signals` before training begins.
int exit_after(std::initializer_list<int> signals) {
  return testing::exit_code_in_child([&] {
    for (const int signal : signals)
      std::signal(signal, SIG_DFL);  // the test program has its own handlers
    install_early_signal_handlers();
    for (const int signal : signals) ::raise(signal);
    return 0;
  });
}

TEST_CASE("before the first step a request to restart ends with code 75, other signals kill") {
  CHECK(exit_after({SIGUSR1}) == 75);
  CHECK(exit_after({SIGTERM}) == -SIGTERM);
}

TEST_CASE("signals that stop a run are received although they were inherited blocked") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    CHECK(testing::exit_code_in_child([&] {
            std::signal(signal, SIG_DFL);
            sigset_t all;
            sigfillset(&all);
            ::sigprocmask(SIG_SETMASK, &all, nullptr);
            install_early_signal_handlers();
            ::raise(signal);
            return 0;
          }) == -signal);
}

TEST_CASE("before the first step neither a closed pipe nor a limit on file sizes kills") {
  CHECK(exit_after({SIGPIPE, SIGXFSZ}) == 0);
}

}  // namespace
}  // namespace ftrun
