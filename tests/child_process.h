#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "base/exec_arguments.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {

/// Waits for a child; returns its exit code, or the negative number of the signal that ended it.
inline int exit_code_of(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// Runs `body` in a child process that exits with its result; returns the exit code.
inline int exit_code_in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  return exit_code_of(child);
}

/// Starts a program, words[0], whose output is appended to a file. It inherits the signals in
/// `ignored` as ignored.
inline pid_t start_program(const std::vector<std::string>& words, const std::string& output,
                           const std::vector<int>& ignored = {}) {
  const std::vector<char*> arguments = exec_arguments(words);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int signal : ignored) ::signal(signal, SIG_IGN);
    const int file = ::open(output.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  return child;
}

/// Runs `body` in a child process and returns its result.
inline std::string text_from_child(const std::function<std::string()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string text = body();
    ::_exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0
                                                                                            : 1);
  }
  ::close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(n));
  ::close(ends[0]);
  REQUIRE(exit_code_of(child) == 0);
  return text;
}

}  // namespace ftrun::testing
