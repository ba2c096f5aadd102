#include "cluster/supervisor.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "child_process.h"
#include "cluster/rank_process.h"
#include "helper/exec_program.h"
#include "source_paths.h"
#include "temporary_folder.h"
#include "waiting.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;
using testing::await_that;
using testing::exit_code_in_child;
using testing::exit_code_of;
using testing::TemporaryFolder;

namespace {

const std::string kRank = testing::binary_dir() + "/bin/rank_helper";
const std::string kSupervise = testing::binary_dir() + "/bin/supervise_helper";

struct Outcome {
  int code = 0;
  std::string text;
  std::vector<std::string> lines() const {
    auto all = split(text, '\n');
    std::sort(all.begin(), all.end());
    return all;
  }
};

Outcome supervise(int ranks, std::vector<std::string> words, SupervisorOptions options = {}) {
  Outcome outcome;
  options.local_ranks = ranks;
  if (!options.rank_main) options.rank_main = testing::exec_program(kRank);
  options.arguments = {kRank};
  options.arguments.insert(options.arguments.end(), words.begin(), words.end());
  options.write = [&outcome](OutputStream, std::string_view text) { outcome.text += text; };
  outcome.code = run_supervisor(options);
  return outcome;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Returns whether the process exists and is not a zombie.
bool is_alive(pid_t pid) {
  const std::string stat = file_text("/proc/" + std::to_string(pid) + "/stat");
  const size_t state = stat.rfind(") ");
  return state != std::string::npos && stat[state + 2] != 'Z' && stat[state + 2] != 'X';
}

/// Starts supervise_helper as a process whose output is written to a file.
pid_t spawn_supervisor(int ranks, std::vector<std::string> words, const std::string& output,
                       const std::vector<int>& ignored = {}) {
  std::vector<std::string> all = {kSupervise, std::to_string(ranks), kRank};
  all.insert(all.end(), words.begin(), words.end());
  return testing::start_program(all, output, ignored);
}

/// Returns whether a child has ended; does not reap it.
bool has_ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == child;
}

/// Waits until a child has ended; does not reap it. If that takes longer than `limit`, kills it and
/// fails the test case by a timeout.
void await_end(pid_t child, std::chrono::milliseconds limit) {
  try {
    await_that([&] { return has_ended(child); }, "a child has ended", limit);
  } catch (const std::exception&) {
    ::kill(child, SIGKILL);
    exit_code_of(child);
    throw;
  }
}

/// Waits until every rank has written its process id, and returns them.
std::vector<pid_t> rank_pids(const std::string& prefix, int ranks) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string path = prefix + std::to_string(rank);
    await_that([&] { return file_text(path).find('\n') != std::string::npos; },
               cat("rank ", rank, " has started"));
    pids.push_back(std::stoi(file_text(path)));
  }
  return pids;
}

}  // namespace

TEST_CASE("every rank gets its rank number and the address of the rendezvous") {
  const Outcome outcome = supervise(2,
                                    {"env", "RANK", "env", "WORLD_SIZE", "env", "LOCAL_RANK", "env",
                                     "LOCAL_WORLD_SIZE", "env", "MASTER_ADDR", "env", "EXTRA"},
                                    {.environment = {"EXTRA=7"}});
  REQUIRE(outcome.code == 0);
  for (const char* rank : {"0", "1"}) {
    for (const char* line : {"RANK=", "LOCAL_RANK="})
      REQUIRE_THAT(outcome.text, Catch::Contains(cat("[rank ", rank, "] ", line, rank, "\n")));
    for (const char* line :
         {"WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "EXTRA=7"})
      REQUIRE_THAT(outcome.text, Catch::Contains(cat("[rank ", rank, "] ", line, "\n")));
  }
}

TEST_CASE("a failure is passed on once, with the rank that was the cause") {
  std::vector<FailureSummary> failures;
  SupervisorOptions options;
  options.on_failure = [&](const FailureSummary& failure) { failures.push_back(failure); };
  REQUIRE(supervise(2, {"env", "RANK"}, options).code == 0);
  REQUIRE(failures.empty());
  const int code = supervise(3, {"only", "1", "fail", "4", "bad file"}, options).code;
  REQUIRE(code == 4);
  REQUIRE(failures.size() == 1);
  REQUIRE(failures[0].exit_code == 4);
  REQUIRE(failures[0].rank == 1);
  REQUIRE(failures[0].reason == "bad file");
}

TEST_CASE("failed ranks are started again, and a run that then succeeds has exit code 0") {
  std::vector<FailureSummary> failures;
  SupervisorOptions options;
  options.restarts = {.max_restarts_without_progress = 3, .first_delay = 1ms};
  options.on_failure = [&](const FailureSummary& failure) { failures.push_back(failure); };
  options.on_restart = [](const FailureSummary&, int) {
    return RestartSettings{.environment = {"EXTRA=again"}, .checkpoint = "step-00000010"};
  };
  options.environment = {"EXTRA=first"};
  const Outcome outcome =
      supervise(2, {"env", "EXTRA", "before", "2", "only", "1", "signal", "9"}, options);
  REQUIRE(outcome.code == 0);
  REQUIRE(failures.size() == 2);
  for (const FailureSummary& failure : failures)
    REQUIRE((failure.rank == 1 && failure.exit_code == 137));
  REQUIRE_THAT(outcome.text, Catch::Contains("[rank 1] EXTRA=first\n"));
  REQUIRE_THAT(outcome.text, Catch::Contains("[rank 1] EXTRA=again\n"));
}

TEST_CASE(
    "a restart may have fewer ranks and additional arguments, and learns how often the rank has "
    "failed") {
  std::vector<int> failure_counts;
  SupervisorOptions options;
  options.restarts = {.max_restarts_without_progress = 1,
                      .first_delay = 1ms,
                      .may_remove_ranks = [](int failures) { return failures >= 2; }};
  options.on_restart = [&](const FailureSummary&, int times) {
    failure_counts.push_back(times);
    if (failure_counts.size() == 1) return RestartSettings{};
    return RestartSettings{.arguments = {"env", "WORLD_SIZE", "env", "LOCAL_WORLD_SIZE"},
                           .local_ranks = 2};
  };
  const Outcome outcome = supervise(3, {"killif", "2"}, options);
  REQUIRE(outcome.code == 0);
  REQUIRE(failure_counts == std::vector<int>{1, 2});
  for (const char* rank : {"0", "1"})
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"})
      REQUIRE_THAT(outcome.text, Catch::Contains(cat("[rank ", rank, "] ", name, "=2\n")));
}

TEST_CASE(
    "a rank that always fails is given up after the maximum of restarts, and its first failure is "
    "the result") {
  int failures = 0;
  SupervisorOptions options;
  options.restarts = {.max_restarts_without_progress = 3, .first_delay = 1ms};
  options.on_failure = [&](const FailureSummary&) { ++failures; };
  // The first start is killed; later ones report an error.
  const Outcome outcome = supervise(2, {"only", "1", "before", "1", "signal", "9"}, options);
  REQUIRE(outcome.code == 0);
  failures = 0;
  REQUIRE(supervise(2, {"only", "1", "fail", "5", "disk full"}, options).code == 5);
  REQUIRE(failures == 4);
}

TEST_CASE("failures of config, data, numerics or ftrun itself cause no restart") {
  for (const int code : {1, 2, 3, 4, 7}) {
    int failures = 0;
    SupervisorOptions options;
    options.restarts = {.max_restarts_without_progress = 3, .first_delay = 1ms};
    options.on_failure = [&](const FailureSummary&) { ++failures; };
    REQUIRE(supervise(2, {"only", "1", "exit", std::to_string(code)}, options).code == code);
    REQUIRE(failures == 1);
  }
}

TEST_CASE("a checkpoint that a restart reached resets the count of restarts") {
  int failures = 0, saved = 0;
  SupervisorOptions options;
  options.restarts = {.max_restarts_without_progress = 1, .first_delay = 1ms};
  options.on_failure = [&](const FailureSummary&) { ++failures; };
  options.newest_checkpoint_id = [&] { return std::to_string(std::min(saved++, 2)); };
  REQUIRE(supervise(2, {"only", "1", "signal", "9"}, options).code == 137);
  REQUIRE(failures == 4);  // after the third start nothing new was saved
}

TEST_CASE(
    "a signal that asks to stop ends the wait for a restart at once, and a restart never follows "
    "one") {
  const TemporaryFolder folder;
  ::setenv("RESTARTS", "3", 1);
  const pid_t waiting = spawn_supervisor(2, {"only", "1", "signal", "9"}, folder / "waiting");
  await_that([&] { return file_text(folder / "waiting").find("restart 1 ") != std::string::npos; },
             "a restart is told");
  ::kill(waiting, SIGTERM);
  REQUIRE(exit_code_of(waiting) == 143);
  REQUIRE_THAT(
      file_text(folder / "waiting"),
      Catch::Contains("stopped by SIGTERM before the restart; continue with --resume auto"));
  const pid_t stopped = spawn_supervisor(
      2, {"catch", "15", "6", "touch", folder / "pid", "sleep", "60000"}, folder / "stopped");
  ::unsetenv("RESTARTS");
  rank_pids(folder / "pid", 2);
  ::kill(stopped, SIGTERM);
  REQUIRE(exit_code_of(stopped) == 6);
  REQUIRE(file_text(folder / "stopped").find("restart 1 ") == std::string::npos);
}

TEST_CASE("rank 0, and only rank 0, inherits a listening socket for the store") {
  const Outcome outcome = supervise(2, {"store"});
  REQUIRE(outcome.lines() ==
          std::vector<std::string>{"", "[rank 0] store listens", "[rank 1] store none"});
}

TEST_CASE("ranks of a second node continue the numbering of the first's") {
  const Outcome outcome =
      supervise(2, {"env", "RANK", "env", "WORLD_SIZE", "env", "FTRUN_STORE_FD"},
                {.nodes = 3, .node = 1, .master_addr = "h", .master_port = 9});
  for (const char* line : {"[rank 2] RANK=2", "[rank 3] RANK=3", "[rank 2] WORLD_SIZE=6",
                           "[rank 2] FTRUN_STORE_FD=(unset)"})
    REQUIRE_THAT(outcome.text, Catch::Contains(line));
}

TEST_CASE("output is forwarded line by line") {
  const Outcome outcome = supervise(2, {"print", "out", "error", "err", "raw", "tail"});
  REQUIRE(outcome.lines() == std::vector<std::string>{"", "[rank 0] err", "[rank 0] out",
                                                      "[rank 0] tail", "[rank 1] err",
                                                      "[rank 1] out", "[rank 1] tail"});
}

TEST_CASE("a rank that fails stops the others and its exit code is the result") {
  const Outcome outcome = supervise(3, {"only", "0", "exit", "4"});
  REQUIRE(outcome.code == 4);
  const Outcome slow = supervise(
      3, {"raw", "x", "catch", "15", "0", "only", "2", "sleep", "50", "fail", "5", "disk full"});
  REQUIRE(slow.code == 5);
}

TEST_CASE(
    "the other ranks do not outlive a failed rank: SIGTERM ends them before their work is done") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const pid_t supervisor = spawn_supervisor(
      2, {"touch", folder / "pid", "sleep", "300", "only", "0", "signal", "9"}, out);
  const auto pids = rank_pids(folder / "pid", 2);
  REQUIRE(exit_code_of(supervisor) == 137);
  REQUIRE_FALSE(is_alive(pids[0]));
  REQUIRE_FALSE(is_alive(pids[1]));
  REQUIRE_THAT(file_text(out), Catch::Contains("rank 0: killed by signal 9 (Killed"));
}

TEST_CASE("a rank that ignores SIGTERM is killed after the grace") {
  const Outcome outcome = supervise(2, {"ignore", "15", "only", "1", "sleep", "100", "exit", "3"},
                                    {.grace_period = 200ms});
  REQUIRE(outcome.code == 3);
  const Outcome stubborn =
      supervise(2, {"ignore", "15", "sleep", "100", "only", "0", "exit", "3", "sleep", "3600000"},
                {.grace_period = 200ms});  // an hour: if it were not killed, CTest would time out
  REQUIRE(stubborn.code == 3);
}

TEST_CASE("a stopped rank is killed after the grace when another fails") {
  const Outcome outcome = supervise(2, {"stopif", "1", "sleep", "50", "only", "0", "exit", "3"},
                                    {.grace_period = 200ms});
  REQUIRE(outcome.code == 3);  // nothing else ends a stopped rank
}

TEST_CASE(
    "a hang ends when a rank names the rank that holds it up, before the naming rank has ended") {
  FailureSummary failure;
  const auto note = [&](const FailureSummary& summary) { failure = summary; };
  // The ranks run for an hour: if the supervisor waited for one of them to end, the test would
  // exceed CTest's time limit.
  const std::vector<std::string> held = {
      "ignore", "15", "blameif", "0", "2", "rank 2 did not arrive in time", "sleep", "3600000"};
  REQUIRE(supervise(3, held, {.on_failure = note}).code == 6);
  REQUIRE(failure.rank == 2);
  REQUIRE(failure.reason == "rank 2 did not arrive in time");
}

TEST_CASE("a rank that others name and that then reports its own failure is the cause") {
  FailureSummary failure;
  const auto note = [&](const FailureSummary& summary) { failure = summary; };
  const std::vector<std::string> late = {
      "blameif", "0", "1",        "rank 1 did not arrive in time", "sleep", "60", "only", "1",
      "fail",    "5", "disk full"};
  REQUIRE(supervise(2, late, {.time_to_report = 20s, .on_failure = note}).code == 5);
  REQUIRE(failure.rank == 1);
  REQUIRE(failure.reason == "disk full");
}

TEST_CASE(
    "a killed rank is the cause, though the others saw that it is gone before it could be waited "
    "for") {
  FailureSummary failure;
  const auto note = [&](const FailureSummary& summary) { failure = summary; };
  // Rank 0 ends within the longer grace period; after the shorter one it is asked to stop while it
  // ends.
  for (const auto moment : {60000ms, 1ms}) {
    const TemporaryFolder folder;
    const std::string pid = folder / "pid";
    const std::vector<std::string> lost = {
        "touch", pid, "fadeif",         "0",    "300", "seegone", "1", pid + "0", "blameif",
        "1",     "0", "rank 0 is gone", "only", "1",   "exit",    "6"};
    failure = {};
    REQUIRE(supervise(2, lost, {.time_to_report = moment, .on_failure = note}).code == 137);
    REQUIRE(failure.rank == 0);
    REQUIRE_THAT(failure.text, Catch::Contains("then rank 1: exit code 6"));
  }
}

TEST_CASE("kill -9 of the supervisor leaves no rank behind") {
  const TemporaryFolder folder;
  const pid_t supervisor = spawn_supervisor(
      3, {"ignore", "15", "ignore", "2", "touch", folder / "pid", "sleep", "60000"},
      folder / "out");
  const auto pids = rank_pids(folder / "pid", 3);
  for (const pid_t pid : pids) REQUIRE(is_alive(pid));
  ::kill(supervisor, SIGKILL);
  exit_code_of(supervisor);
  for (const pid_t pid : pids) await_that([pid] { return !is_alive(pid); }, "a rank is gone");
}

TEST_CASE("signals are passed on to the ranks, whose exit code is returned") {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    const TemporaryFolder folder;
    const pid_t supervisor = spawn_supervisor(
        2, {"catch", std::to_string(signal), "75", "touch", folder / "pid", "sleep", "60000"},
        folder / "out");
    rank_pids(folder / "pid", 2);
    ::kill(supervisor, signal);
    REQUIRE(exit_code_of(supervisor) == 75);
  }
}

TEST_CASE("ranks that a passed-on signal ends give 128 + n and no error message") {
  const TemporaryFolder folder;
  const pid_t supervisor =
      spawn_supervisor(2, {"touch", folder / "pid", "sleep", "60000"}, folder / "out");
  rank_pids(folder / "pid", 2);
  ::kill(supervisor, SIGINT);
  REQUIRE(exit_code_of(supervisor) == 130);
  REQUIRE(file_text(folder / "out").empty());
}

TEST_CASE(
    "the loss of the terminal stops nothing if SIGHUP was ignored when the supervisor started") {
  const TemporaryFolder folder;
  const pid_t supervisor =
      spawn_supervisor(2, {"touch", folder / "pid", "sleep", "60000"}, folder / "out", {SIGHUP});
  const auto pids = rank_pids(folder / "pid", 2);
  ::kill(supervisor, SIGHUP);
  for (const pid_t pid : pids) ::kill(pid, SIGHUP);
  // The following signal is the first one that any process receives.
  ::kill(supervisor, SIGINT);
  REQUIRE(exit_code_of(supervisor) == 130);
  REQUIRE(file_text(folder / "out").empty());
}

/// Sends a signal and waits until it is delivered, because of two pending signals the kernel
/// delivers the one with the lower number first.
void send_and_await_delivery(pid_t pid, int signal) {
  ::kill(pid, signal);
  await_that(
      [&] {
        const std::string status = file_text("/proc/" + std::to_string(pid) + "/status");
        const auto none = [&](const std::string& field) {
          return status.find(field + ":\t0000000000000000\n") != std::string::npos;
        };
        return none("SigPnd") && none("ShdPnd");
      },
      "the signal is delivered");
}

TEST_CASE("a terminal that is lost while the ranks stop does not force an exit") {
  const TemporaryFolder folder;
  const pid_t supervisor = spawn_supervisor(
      2, {"ignore", "2", "ignore", "1", "touch", folder / "pid", "sleep", "60000"}, folder / "out");
  const auto pids = rank_pids(folder / "pid", 2);
  send_and_await_delivery(supervisor, SIGINT);
  send_and_await_delivery(supervisor, SIGHUP);
  ::usleep(200'000);
  REQUIRE(is_alive(pids[0]));
  ::kill(supervisor, SIGTERM);
  REQUIRE(exit_code_of(supervisor) == 130);
  REQUIRE_FALSE(is_alive(pids[0]));
}

TEST_CASE("ranks are waited for also if SIGCHLD was ignored when the supervisor started") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const pid_t supervisor = spawn_supervisor(2, {"only", "1", "exit", "4"}, out, {SIGCHLD});
  await_end(supervisor, 60s);
  REQUIRE(exit_code_of(supervisor) == 4);
}

TEST_CASE("a second signal kills the ranks at once") {
  const TemporaryFolder folder;
  const pid_t supervisor = spawn_supervisor(
      2, {"ignore", "2", "touch", folder / "pid", "sleep", "60000"}, folder / "out");
  const auto pids = rank_pids(folder / "pid", 2);
  ::kill(supervisor, SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(kSameSignalMs) + 500ms);
  REQUIRE(is_alive(pids[0]));
  // The supervisor measures from the moment at which it reads the first signal; a signal before
  // that does not count as a second one.
  int64_t sent = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto sent_and_ended = [&] {
    const bool due = (std::chrono::steady_clock::now() - begin) /
                         (std::chrono::milliseconds(kSameSignalMs) + 500ms) >=
                     sent;
    if (due) {
      ::kill(supervisor, SIGINT);
      ++sent;
    }
    return has_ended(supervisor);
  };
  await_that(sent_and_ended, "the ranks are killed", 30s);
  REQUIRE(exit_code_of(supervisor) == 130);
  REQUIRE_FALSE(is_alive(pids[0]));
  REQUIRE_FALSE(is_alive(pids[1]));
}

namespace {

/// Returns whether the ranks of a supervisor survive two SIGTERMs a tenth of a second apart, and
/// end with a third signal. Returns nothing if, on a busy machine, more than a second passed
/// between the two, because then they may have counted as two requests.
std::optional<bool> outlive_the_same_signal() {
  const TemporaryFolder folder;
  const pid_t supervisor = spawn_supervisor(
      2, {"ignore", "15", "ignore", "2", "touch", folder / "pid", "sleep", "60000"},
      folder / "out");
  const auto pids = rank_pids(folder / "pid", 2);
  const auto begin = std::chrono::steady_clock::now();
  ::kill(supervisor, SIGTERM);
  std::this_thread::sleep_for(100ms);
  ::kill(supervisor, SIGTERM);
  std::this_thread::sleep_for(300ms);
  const bool all_stay = is_alive(pids[0]) && file_text(folder / "out").empty();
  const bool quick =
      std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(kSameSignalMs);
  ::kill(supervisor, SIGINT);
  const bool ended = exit_code_of(supervisor) == 143 && !is_alive(pids[1]);
  return all_stay || quick ? std::optional(all_stay && ended) : std::nullopt;
}

}  // namespace

TEST_CASE(
    "the same signal within a second repeats the first one, another signal counts as a second "
    "one") {
  std::optional<bool> found;
  for (int tries = 0; !found && tries < 20; ++tries) found = outlive_the_same_signal();
  if (!found) testing::fail_by_timeout("20 tries for two signals within a second");
  REQUIRE(*found);
}

TEST_CASE("the earliest report is named as the cause, with the others below it") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const pid_t supervisor = spawn_supervisor(
      2, {"catch", "15", "0", "only", "1", "fail", "4", "model.safetensors is cut short"}, out);
  REQUIRE(exit_code_of(supervisor) == 4);
  REQUIRE_THAT(file_text(out), Catch::Contains("error: rank 1: exit code 4, "));
  REQUIRE_THAT(file_text(out), Catch::Contains(", in step 3: model.safetensors is cut short"));
}

TEST_CASE(
    "a rank is a fork with its own environment and only those descriptors that survive an exec") {
  const int kept = ::open("/dev/null", O_RDONLY),
            closed = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(kept > 2);
  REQUIRE(closed > 2);
  ::setenv("EXTRA", "ours", 1);
  int ours = 7;
  SupervisorOptions options{.environment = {"EXTRA=the rank's", "EXTRA=a later one"}};
  options.rank_main = [&](const std::vector<std::string>& arguments) {
    std::printf("%s; EXTRA=%s; %d; kept %d, closed %d, standard input %s\n",
                arguments.back().c_str(), std::getenv("EXTRA"), ++ours, ::fcntl(kept, F_GETFD) >= 0,
                ::fcntl(closed, F_GETFD) >= 0,
                std::filesystem::read_symlink("/proc/self/fd/0").c_str());
    return 3;
  };
  const Outcome outcome = supervise(1, {"word"}, std::move(options));
  ::close(kept);
  ::close(closed);
  ::unsetenv("EXTRA");
  CHECK(outcome.code == 3);
  CHECK(ours == 7);
  CHECK_THAT(
      outcome.text,
      Catch::Contains("word; EXTRA=the rank's; 8; kept 1, closed 0, standard input /dev/null"));
}

TEST_CASE("output that is not flushed when ranks start is printed once") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  REQUIRE(exit_code_in_child([&] {
            ::dup2(::open(out.c_str(), O_CREAT | O_WRONLY, 0600), 1);
            std::printf("before in C\n");
            std::cout << "before in C++\n";
            return run_supervisor({.rank_main = [](const auto&) { return 0; }});
          }) == 0);
  CHECK(file_text(out) == "before in C\nbefore in C++\n");
}

TEST_CASE("ranks can print, although their supervisor could not") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  REQUIRE(exit_code_in_child([&] {
            ::dup2(::open("/dev/full", O_WRONLY), 1);
            std::printf("what the disk has no room for\n");
            std::cout.setstate(std::ios::badbit);
            std::string text;
            SupervisorOptions options;
            options.write = [&](OutputStream, std::string_view part) { text += part; };
            options.rank_main = [](const auto&) {
              std::cout << "well" << std::endl;
              return std::cout && std::ferror(stdout) == 0 ? 0 : 1;
            };
            const int code = run_supervisor(options);
            std::ofstream(out) << code << " " << text;
            return 0;
          }) == 0);
  CHECK(file_text(out) == "0 [rank 0] well\n");
}

TEST_CASE("a rank that is killed for its CPU time is reported as such") {
  const std::string reason = testing::text_from_child([] {
    const rlimit second{1, 1};
    ::setrlimit(RLIMIT_CPU, &second);
    std::string shown;
    run_supervisor({.rank_main = [](const auto&) -> int {
                      for (std::atomic<int> turns = 0;; ++turns) {
                      }
                    },
                    .on_failure = [&](const FailureSummary& failure) { shown = failure.reason; },
                    .write = [](OutputStream, std::string_view) {}});
    return shown;
  });
  CHECK_THAT(reason, Catch::Matches(
                         R"(killed by signal 9 \(Killed; .*the 1 s of CPU time that a process may )"
                         R"(use.*ulimit -t.*\))"));
}

TEST_CASE("waits for ranks that end slowly after a signal are reported, until a second signal") {
  std::string text;
  SupervisorOptions options;
  options.rank_main = testing::exec_program(kRank);
  options.arguments = {kRank, "ignore", "15", "print", "ready", "sleep", "60000"};
  options.notices = {.first_delay = 20ms, .interval = 10ms};
  options.write = [&](OutputStream, std::string_view part) {
    text += part;
    if (part.ends_with("ready\n")) ::kill(::getpid(), SIGTERM);
    if (part.starts_with("notice: ")) ::kill(::getpid(), SIGINT);
  };
  CHECK(run_supervisor(options) == 143);
  CHECK_THAT(text, Catch::Matches("\\[rank 0\\] ready\n"
                                  "notice: SIGTERM was received 0\\.\\ds ago: waiting for the "
                                  "ranks to finish their step and save \\(rank 0\\); a second "
                                  "signal ends them at once, without saving\n(.|\n)*"));
}

TEST_CASE("a process that cannot be started is reported") {
  CHECK(exit_code_in_child([] {
          // A limit on processes has no effect on root's.
          const rlimit none{1, 1};
          ::setrlimit(RLIMIT_NPROC, &none);
          if (::getuid() == 0 && ::setuid(65534) != 0) return 99;
          try {
            run_supervisor({.rank_main = [](const auto&) { return 0; }});
          } catch (const Error& error) {
            const bool is_told = std::string(error.what())
                                     .starts_with(
                                         "cannot start a rank: Resource temporarily unavailable\n"
                                         "  remedy: raise the limit of this user's processes and "
                                         "threads (ulimit -u), which is 1");
            return is_told && error.code() == ExitCode::kEnvironment ? 0 : 1;
          }
          return 2;
        }) == 0);
}

TEST_CASE("a rank that cannot inherit its descriptors is reported") {
  REQUIRE_THROWS_WITH(start_rank_process({.main = [] { return 0; }, .inherited_fds = {9999}}),
                      "cannot start a rank: Bad file descriptor");
}

TEST_CASE("too few descriptors are reported with a remedy, wherever a start runs out of them") {
  const std::string output = testing::text_from_child([] {
    const int next = ::dup(0);
    ::close(next);
    std::set<std::string> texts;
    rlimit few{};
    ::getrlimit(RLIMIT_NOFILE, &few);
    for (few.rlim_cur = static_cast<rlim_t>(next);; ++few.rlim_cur) {
      ::setrlimit(RLIMIT_NOFILE, &few);
      try {
        ::waitpid(start_rank_process({.main = [] { return 0; }}).pid, nullptr, 0);
        return join({texts.begin(), texts.end()}, "\n");
      } catch (const Error& error) {
        texts.insert(error.what());
      }
    }
  });
  // Descriptors can run out in the supervisor, which makes the rank's pipes, and in the rank, which
  // opens its standard input.
  CHECK(output ==
        "cannot make a pipe: Too many open files\n  remedy: raise the limit of open files (ulimit "
        "-n)\n"
        "cannot start a rank: Too many open files\n  remedy: raise the limit of open files (ulimit "
        "-n)");
}

TEST_CASE("a signal reaches the ranks although nobody reads what they print") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t supervisor = ::fork();
  if (supervisor == 0) {
    ::dup2(ends[1], 1);
    const auto prints = [](const auto&) {
      for (;;) std::cout << std::string(1000, 'x') << std::endl;
      return 0;
    };
    ::_exit(run_supervisor({.local_ranks = 2, .rank_main = prints}));
  }
  int filled = 0;
  await_that([&] { return ::ioctl(ends[0], FIONREAD, &filled) == 0 && filled >= 60'000; },
             "the pipe is full");
  ::kill(supervisor, SIGTERM);
  await_end(supervisor,
            // unread output is dropped piece by piece, which took half a minute before a signal was
            // passed on
            15s);
  CHECK(exit_code_of(supervisor) == 143);
  for (const int end : ends) ::close(end);
}
