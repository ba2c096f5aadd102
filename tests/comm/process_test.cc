#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>

#include "comm/listen_socket.h"
#include "process_rank.h"
#include "ranks.h"
#include "temporary_folder.h"
#include "waiting.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

/// Milliseconds: a timeout that no test reaches, and the time within which immediate failures must
/// end.
constexpr int kFarOff = 300'000;
constexpr std::chrono::seconds kEnough{150};

int free_port() {
  return listen_on("127.0.0.1", 0).port;
}

/// A soft limit of open files, and the hard limit up to which the process may raise it.
using FileLimit = std::optional<rlimit>;

/// Runs ranks as processes whose output goes to files. They are forked from this process, which has
/// loaded LibTorch, as ftrun's supervisor forks its ranks.
class Ranks {
 public:
  Ranks(int world_size, const std::string& backend, int timeout_ms, const std::string& scenario,
        const FileLimit& limit = {}) {
    const int port = free_port();
    for (int rank = 0; rank < world_size; ++rank)
      pids_.push_back(
          start({rank, world_size, port, backend, std::chrono::milliseconds(timeout_ms), scenario},
                limit));
  }
  ~Ranks() {
    for (const pid_t pid : pids_) {
      if (pid > 0 && ::kill(pid, SIGKILL) == 0) ::waitpid(pid, nullptr, 0);
    }
  }

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  std::string output(int rank) const {
    std::ifstream file(output_path(rank));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  /// Returns the exit code, or 128 + signal.
  int wait(int rank) {
    int status = 0;
    testing::await_that([&] { return ::waitpid(pid(rank), &status, WNOHANG) != 0; },
                        cat("rank ", rank, " has ended"), kEnough);
    pids_[static_cast<size_t>(rank)] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void await_exit(int rank, int expected) {
    const int found = wait(rank);
    testing::require_exit(found, expected, cat("rank ", rank, ": ", output(rank)));
  }
  void await_text(int rank, const std::string& text) const {
    testing::await_that([&] { return output(rank).find(text) != std::string::npos; },
                        cat("rank ", rank, " says ", text), kEnough);
  }

 private:
  pid_t start(const ProcessRank& rank, const FileLimit& limit) const {
    const std::string path = output_path(rank.rank);
    std::cout.flush();
    std::fflush(nullptr);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child > 0) return child;
    const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::close(file);
    // Catch2's signal handlers are for the test process only.
    for (const int signal : {SIGABRT, SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM})
      ::signal(signal, SIG_DFL);
    if (limit && ::setrlimit(RLIMIT_NOFILE, &*limit) != 0) ::_exit(127);
    const int code = run_process_rank(rank);
    std::fflush(nullptr);
    ::_exit(code);
  }
  std::string output_path(int rank) const { return folder_ / std::to_string(rank); }

  const testing::TemporaryFolder folder_;
  std::vector<pid_t> pids_;
};

std::string host() {
  return read_own_identity().host;
}

std::chrono::milliseconds random_moment() {
  static std::mt19937 random(20240607);
  return std::chrono::milliseconds(random() % 200);
}

}  // namespace

TEST_CASE("processes connect, sum their numbers and disconnect") {
  for (const char* backend : {"gloo", "shm"}) {
    Ranks ranks(3, backend, 20'000, "once");
    for (int rank = 0; rank < 3; ++rank) {
      ranks.await_exit(rank, 0);
      REQUIRE(ranks.output(rank) == cat("met\nlooping\n", backend, " 6\n"));
    }
  }
}

TEST_CASE(
    "rank 0 serves its store under the hard limit of open files, and says so if that is too "
    "low") {
  {
    rlimit soft{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &soft) == 0);
    soft.rlim_cur = 80;
    Ranks ranks(2, "shm", 20'000, "meet", soft);
    for (int rank = 0; rank < 2; ++rank) {
      CAPTURE(ranks.output(rank));
      ranks.await_exit(rank, 0);
    }
  }
  Ranks ranks(2, "shm", 20'000, "meet", rlimit{80, 80});
  ranks.await_exit(0, 5);
  REQUIRE(ranks.output(0) ==
          "failed: rank 0 serves the job's store to 2 ranks, which takes up to 134 open files (3 "
          "connections per rank, "
          "128 for other files), and the limit of its process is 80\n");
}

TEST_CASE(
    "the death of a first rank that has given its text is reported at once, even if another rank "
    "is absent") {
  Ranks ranks(4, "shm", kFarOff, "group");
  ranks.await_text(2, "waiting");
  ranks.await_text(1, "waiting");
  std::this_thread::sleep_for(100ms);
  ::kill(ranks.pid(1), SIGKILL);
  ranks.wait(1);
  ranks.await_exit(2, 6);
  REQUIRE_THAT(ranks.output(2), Catch::Contains("for \"group\": rank 1 is gone"));
}

TEST_CASE("a rank killed at a random moment is named as gone by the others") {
  for (const char* backend : {"gloo", "shm"}) {
    for (const int victim : {0, 1, 2}) {
      Ranks ranks(3, backend, kFarOff, "loop");
      for (int rank = 0; rank < 3; ++rank) ranks.await_text(rank, "looping");
      std::this_thread::sleep_for(random_moment());
      const std::string gone =
          cat("rank ", victim, " (process ", ranks.pid(victim), " on ", host(), ") is gone");
      ::kill(ranks.pid(victim), SIGKILL);
      ranks.wait(victim);
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == victim) continue;
        CAPTURE(backend, victim, rank);
        ranks.await_exit(rank, 6);
        REQUIRE_THAT(ranks.output(rank), Catch::Contains(gone));
        REQUIRE_THAT(ranks.output(rank),
                     Catch::Contains("(gradient bucket 7, 1000 x F32) of group world"));
      }
    }
  }
}

namespace {

/// Returns what the other of two ranks prints while `victim` is stopped.
std::string output_of_stopped(const char* backend, int victim, int limit_ms, std::string& stopped) {
  Ranks ranks(2, backend, limit_ms, "loop");
  for (int rank = 0; rank < 2; ++rank) ranks.await_text(rank, "looping");
  std::this_thread::sleep_for(random_moment());
  ::kill(ranks.pid(victim), SIGSTOP);
  stopped = cat("rank ", victim, " (process ", ranks.pid(victim), " on ", host(), ") is stopped");
  ranks.await_exit(1 - victim, 6);
  return ranks.output(1 - victim);
}

}  // namespace

TEST_CASE("a rank stopped at a random moment is named as stopped when the wait ends") {
  for (const char* backend : {"gloo", "shm"}) {
    for (const int victim : {0, 1}) {
      std::string output, stopped;
      // A rank that was late by more than the limit before it was stopped is reported as late; then
      // the test tries again with a longer limit.
      for (const int limit_ms : {1'000, 5'000, 20'000}) {
        output = output_of_stopped(backend, victim, limit_ms, stopped);
        if (output.find(stopped) != std::string::npos) break;
      }
      CAPTURE(backend, victim);
      REQUIRE_THAT(output, Catch::Contains(cat("failed: rank ", 1 - victim, " waited ")) &&
                               Catch::Contains(stopped));
    }
  }
}

TEST_CASE("a rank that dies while ranks exchange texts ends the exchange at once") {
  Ranks ranks(2, "shm", kFarOff, "loop");
  ranks.await_text(1, "met");
  ::kill(ranks.pid(1), SIGKILL);
  ranks.await_exit(1, 137);
  ranks.await_exit(0, 6);
}

TEST_CASE("a rank that gives up in another thread leaves its collective, and the others theirs") {
  for (const char* backend : {"gloo", "shm"}) {
    Ranks ranks(3, backend, kFarOff, "abort");
    for (int rank = 0; rank < 3; ++rank) ranks.await_text(rank, "looping");
    CAPTURE(backend, ranks.output(0), ranks.output(1));
    ranks.await_exit(1, 6);
    ranks.await_exit(0, 6);
    // Nobody waited for the timeout.
    REQUIRE_THAT(ranks.output(0), Catch::Contains("failed: rank 0 lost a "));
  }
}

TEST_CASE(
    "a pause of the rank that serves the store is survived, also beyond its control timeout") {
  Ranks ranks(2, "shm", 60'000, "texts");
  for (int rank = 0; rank < 2; ++rank) ranks.await_text(rank, "round 3.");
  for (int pause = 0; pause < 2; ++pause) {
    ::kill(ranks.pid(0), SIGSTOP);
    std::this_thread::sleep_for(5s);
    ::kill(ranks.pid(0), SIGCONT);
    // The output is read once, because it grows.
    const std::string output = ranks.output(1);
    const int last_round = std::stoi(output.substr(output.rfind("round ") + 6));
    ranks.await_text(1, cat("round ", last_round + 50, "."));
  }
}

TEST_CASE(
    "work of one rank alone is waited for beyond the timeout; a rank that stops in it is lost "
    "after that, one that dies at once") {
  // The cases run at the same time, because each waits for seconds.
  Ranks patient(3, "shm", 5'000, "patient"), stopped(2, "shm", 5'000, "patient"),
      killed(2, "shm", 5'000, "patient");
  for (const auto& [ranks, signal] : {std::pair(&stopped, SIGSTOP), std::pair(&killed, SIGKILL)}) {
    ranks->await_text(1, "waiting");
    ::kill(ranks->pid(1), signal);
  }
  for (const auto& [ranks, signal] : {std::pair(&stopped, SIGSTOP), std::pair(&killed, SIGKILL)}) {
    CAPTURE(signal);
    ranks->await_exit(0, 6);
    REQUIRE_THAT(ranks->output(0),
                 Catch::Contains("for \"patient\": rank 1 ") &&
                     Catch::Contains(signal == SIGKILL ? "is gone" : "did not arrive in time"));
    if (signal == SIGKILL) ranks->wait(1);
  }
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank, patient.output(rank));
    patient.await_exit(rank, 0);
    REQUIRE_THAT(patient.output(rank), Catch::Contains("all came"));
  }
}

TEST_CASE(
    "sizes at which Gloo terminates the process end with a message and code 6, not with a core "
    "dump") {
  Ranks ranks(2, "gloo", 20'000, "sizes");
  const int first = ranks.wait(0), second = ranks.wait(1);
  CAPTURE(ranks.output(0), ranks.output(1));
  // If a peer has published its arguments before it ended, the message says that the two disagree.
  const std::string differ =
      "failed: the ranks of group world disagree: rank 0 is in all_reduce #1 (gradient bucket 7, "
      "1000 x F32), rank 1 is in all_reduce #1 (gradient bucket 7, 500 x F32)";
  for (const auto& [rank, code] : {std::pair(0, first), std::pair(1, second)}) {
    const bool tells = ranks.output(rank).find(differ) != std::string::npos;
    REQUIRE(code == (tells ? 1 : 6));
  }
  REQUIRE_THAT(
      ranks.output(0) + ranks.output(1),
      Catch::Contains("error: the process must end: an error in a thread of the transport\n"
                      "  rank ") &&
          Catch::Contains(" is in all_reduce #1 (gradient bucket 7, "));
}
