#include "training/stop_signal.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <initializer_list>

#include "child_process.h"
#include "cluster/failure_summary.h"
#include "waiting.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::exit_code_in_child;

/// Returns the counts of the flags for each of these signals.
RankFlags flags_of(std::initializer_list<int> signals) {
  RankFlags flags;
  for (const int signal : signals) add_stop_flag(signal, flags);
  return flags;
}

TEST_CASE("the sum of all ranks' flags tells the signal, whoever got it") {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    REQUIRE(stop_signal_of(flags_of({signal})) == signal);
    REQUIRE(stop_signal_of(flags_of({0, signal, 0, signal})) == signal);
  }
  REQUIRE(stop_signal_of(flags_of({0, 0, 0})) == 0);
}

TEST_CASE("a request to restart counts more than a termination, and that more than an interrupt") {
  REQUIRE(stop_signal_of(flags_of({SIGINT, SIGINT, SIGTERM})) == SIGTERM);
  REQUIRE(stop_signal_of(flags_of({SIGTERM, SIGUSR1, SIGTERM})) == SIGUSR1);
  REQUIRE(stop_signal_of(flags_of({SIGHUP, SIGINT})) == SIGHUP);
  REQUIRE(stop_signal_of(flags_of({SIGHUP, SIGHUP, SIGTERM})) == SIGTERM);
  REQUIRE(stop_signal_of(flags_of({SIGINT, SIGUSR1})) == SIGUSR1);
}

TEST_CASE("each stop signal has an exit code and a name") {
  REQUIRE(stop_exit_code(SIGINT) == 130);
  REQUIRE(stop_exit_code(SIGTERM) == 143);
  REQUIRE(stop_exit_code(SIGUSR1) == 75);
  REQUIRE(stop_exit_code(SIGHUP) == 129);
  REQUIRE(std::string(signal_name(SIGHUP)) == "SIGHUP");
  REQUIRE(std::string(signal_name(SIGUSR1)) == "SIGUSR1");
}

TEST_CASE("the first signal is remembered, a second one ends the process with its own code") {
  REQUIRE(exit_code_in_child([] {
            catch_stop_signals();
            ::raise(SIGTERM);
            return stop_signal();
          }) == SIGTERM);
  REQUIRE(exit_code_in_child([] {
            catch_stop_signals();
            ::raise(SIGUSR1);
            ::raise(SIGINT);
            return 0;
          }) == 130);
  REQUIRE(exit_code_in_child([] {
            catch_stop_signals();
            ::raise(SIGTERM);
            ::raise(SIGUSR1);
            return 0;
          }) == 75);
}

TEST_CASE(
    "the same signal within a second repeats the first one, and later counts as a second one") {
  const auto twice = [](useconds_t pause) {
    return exit_code_in_child([pause] {
      catch_stop_signals();
      ::raise(SIGTERM);
      ::usleep(pause);
      ::raise(SIGTERM);
      return stop_signal();
    });
  };
  // The two signals must be sent within a second. An attempt that took longer, as on a busy
  // machine, proves nothing and is repeated.
  const auto twice_quickly = [&](useconds_t pause) {
    for (int tries = 0; tries < 50; ++tries) {
      const auto begin = std::chrono::steady_clock::now();
      const int code = twice(pause);
      if (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(kSameSignalMs))
        return code;
    }
    testing::fail_by_timeout("50 tries for two signals within a second");
  };
  REQUIRE(twice_quickly(0) == SIGTERM);
  REQUIRE(twice_quickly(100'000) == SIGTERM);
  REQUIRE(twice(kSameSignalMs * 1000 + 100'000) == 143);
}

TEST_CASE("a lost terminal stops like SIGTERM, never forces an exit, and is ignored under nohup") {
  const auto caught_of = [](std::initializer_list<int> signals) {
    return exit_code_in_child([signals] {
      std::signal(SIGHUP, SIG_DFL);
      catch_stop_signals();
      for (const int signal : signals) ::raise(signal);
      return stop_signal();
    });
  };
  REQUIRE(caught_of({SIGHUP}) == SIGHUP);
  REQUIRE(caught_of({SIGHUP, SIGHUP, SIGTERM}) == SIGHUP);
  REQUIRE(caught_of({SIGINT, SIGHUP}) == SIGINT);
  REQUIRE(caught_of({SIGHUP, SIGINT}) == 130);
  REQUIRE(exit_code_in_child([] {
            std::signal(SIGHUP, SIG_IGN);
            catch_stop_signals();
            ::raise(SIGHUP);
            return stop_signal();
          }) == 0);
}

TEST_CASE("signals that arrive when all work is done are ignored") {
  REQUIRE(exit_code_in_child([] {
            catch_stop_signals();
            ignore_stop_signals();
            for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGTERM}) ::raise(signal);
            return 0;
          }) == 0);
}

}  // namespace
}  // namespace ftrun
