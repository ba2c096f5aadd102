// A rank for the supervisor's tests. It executes the commands in its arguments, in order:
// * print TEXT, error TEXT, env NAME: writes a line
// * raw TEXT: writes without a line end; a backslash and r or n are escapes
// * sleep MS, exit CODE, signal N
// * only RANK: the other commands are for that rank
// * before N: the other commands are for the starts before the Nth restart
// * fail CODE MESSAGE: reports a failure
// * blameif RANK CULPRIT MESSAGE: that rank reports that its wait for CULPRIT timed out, and
//   continues
// * stopif RANK, killif RANK: that rank stops or kills itself
// * fadeif RANK MS: that rank's first thread ends at once, so that other ranks see it as gone;
//   after MS
//   another thread kills it
// * seegone RANK FILE: that rank waits until the process whose id is in FILE is gone
// * touch FILE: writes the process id
// * catch N CODE: exits with CODE on signal N; ignore N
// * store
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cluster/failure_report.h"
#include "cluster/peers.h"

namespace {

int exit_on_signal = 0;
void leave(int) {
  ::_exit(exit_on_signal);
}

std::string unescape(std::string text) {
  for (size_t at = 0; (at = text.find('\\', at)) != std::string::npos; ++at)
    text.replace(at, 2, text[at + 1] == 'r' ? "\r" : "\n");
  return text;
}

void fail(int rank, int code, const std::string& message) {
  ftrun::report_failure({.rank = rank,
                         .unix_ns = ftrun::unix_time_ns(),
                         .exit_code = code,
                         .activity = "step 3",
                         .message = message});
  std::exit(code);
}

void blame(int rank, int culprit, const std::string& message) {
  ftrun::report_failure({.rank = rank,
                         .unix_ns = ftrun::unix_time_ns(),
                         .exit_code = 6,
                         .activity = "step 3",
                         .message = message,
                         .culprit = culprit});
}

void end_first_thread(int ms) {
  std::thread([ms] {
    ::usleep(static_cast<useconds_t>(ms) * 1000);
    ::kill(::getpid(), SIGKILL);
  }).detach();
  ::syscall(SYS_exit, 0);  // ends only this thread
}

void await_gone(const std::string& file) {
  int pid = 0;
  while (!(std::ifstream(file) >> pid)) ::usleep(1000);
  while (!ftrun::is_gone(pid)) ::usleep(1000);
}

bool store_socket_listens() {
  const char* fd = std::getenv("FTRUN_STORE_FD");
  int listening = 0;
  socklen_t size = sizeof listening;
  return fd != nullptr &&
         ::getsockopt(std::atoi(fd), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 &&
         listening == 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int rank = std::atoi(std::getenv("RANK"));
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& verb = words[i];
    if (verb == "print") std::printf("%s\n", words[++i].c_str());
    if (verb == "error") std::fprintf(stderr, "%s\n", words[++i].c_str());
    if (verb == "raw") std::fprintf(stderr, "%s", unescape(words[++i]).c_str());
    if (verb == "env") {
      const char* value = std::getenv(words[++i].c_str());
      std::printf("%s=%s\n", words[i].c_str(), value == nullptr ? "(unset)" : value);
    }
    if (verb == "sleep")
      std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(words[++i])));
    if (verb == "exit") std::exit(std::stoi(words[++i]));
    if (verb == "signal") ::kill(::getpid(), std::stoi(words[++i]));
    if (verb == "only" && std::stoi(words[++i]) != rank) break;
    if (verb == "before" && std::stoi(words[++i]) <= std::atoi(std::getenv("FTRUN_RESTART"))) break;
    if (verb == "stopif" && std::stoi(words[++i]) == rank) ::kill(::getpid(), SIGSTOP);
    if (verb == "killif" && std::stoi(words[++i]) == rank) ::kill(::getpid(), SIGKILL);
    if (verb == "fadeif" && std::stoi(words[++i]) == rank)
      end_first_thread(std::stoi(words[i + 1]));
    if (verb == "fail") fail(rank, std::stoi(words[i + 1]), words[i + 2]);
    if (verb == "blameif" && std::stoi(words[++i]) == rank)
      blame(rank, std::stoi(words[i + 1]), words[i + 2]);
    if (verb == "seegone" && std::stoi(words[++i]) == rank) await_gone(words[i + 1]);
    if (verb == "touch")
      std::ofstream(words[++i] + std::to_string(rank)) << ::getpid() << std::endl;
    if (verb == "catch") {
      exit_on_signal = std::stoi(words[i + 2]);
      std::signal(std::stoi(words[i + 1]), leave);
    }
    if (verb == "ignore") std::signal(std::stoi(words[++i]), SIG_IGN);
    if (verb == "store") std::printf("store %s\n", store_socket_listens() ? "listens" : "none");
    std::fflush(stdout);
  }
  return 0;
}
