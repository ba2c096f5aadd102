#include "cluster/rank_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio_ext.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/log.h"
#include "base/uninterrupted.h"

namespace ftrun {
namespace {

/// ForkedRank holds the new process's ends of its pipes, and the id of its parent.
struct ForkedRank {
  pid_t parent;
  int out_fd, err_fd, failure_fd;
};

[[noreturn]] void exit_failed_child(const ForkedRank& forked) {
  const int reason = errno;
  [[maybe_unused]] const ssize_t sent = ::write(forked.failure_fd, &reason, sizeof reason);
  ::_exit(127);
}

/// Closes the descriptors that exec would close. Returns false, with errno set, if they cannot be
/// listed.
bool close_as_exec_would() {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return false;
  std::vector<int> closing;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);  // "." and ".." are 0
    if (fd <= STDERR_FILENO || fd == ::dirfd(folder)) continue;
    if ((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0) closing.push_back(fd);
  }
  ::closedir(folder);
  for (const int fd : closing) ::close(fd);
  return true;
}

void set_environment(const std::vector<std::string>& variables) {
  for (auto variable = variables.rbegin(); variable != variables.rend(); ++variable) {
    const size_t end = variable->find('=');
    ::setenv(variable->substr(0, end).c_str(), variable->c_str() + end + 1, 1);
  }
}

[[noreturn]] void become_rank(const RankCommand& command, const ForkedRank& forked) noexcept {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) exit_failed_child(forked);
  // The parent may have died before the call above took effect.
  if (::getppid() != forked.parent) ::_exit(127);
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0 || ::dup2(input, 0) < 0 || ::dup2(forked.out_fd, 1) < 0 ||
      ::dup2(forked.err_fd, 2) < 0)
    exit_failed_child(forked);
  set_environment(command.environment);
  // Output that the parent has buffered, and its error state, belong to the parent only.
  std::cout.clear();
  std::cerr.clear();
  ::__fpurge(stdout);
  std::clearerr(stdout);
  for (const int fd : command.inherited_fds) {
    if (::fcntl(fd, F_SETFD, 0) != 0) exit_failed_child(forked);
  }
  // This also closes forked.failure_fd, from which the parent sees that the start has succeeded.
  if (!close_as_exec_would()) exit_failed_child(forked);
  ::sigprocmask(SIG_SETMASK, &command.blocked_signals, nullptr);
  const int code = command.main();
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  // The process ends without calling the destructors of the objects that the parent had made.
  ::_exit(code);
}

/// Blocks until the child is about to call its main; throws if it could not get that far.
void await_start(pid_t pid, Pipe failure) {
  failure.writer.reset();
  int reason = 0;
  const ssize_t bytes_read =
      uninterrupted([&] { return ::read(failure.reader.get(), &reason, sizeof reason); });
  if (bytes_read == 0) return;
  ::waitpid(pid, nullptr, 0);
  const bool lacks_descriptors = reason == EMFILE || reason == ENFILE;
  throw Error(ExitCode::kEnvironment, cat("cannot start a rank: ", errno_text(reason)),
              lacks_descriptors  ? kMoreFiles
              : reason == ENOENT ? "make sure that /dev/null and /proc/self/fd exist"
                                 : "");
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ExitCode::kEnvironment, cat("cannot make a pipe: ", errno_text(errno)), kMoreFiles);
  }
  return {OwnedFd(ends[0]), OwnedFd(ends[1])};
}

void warn_of_threads() {
  std::error_code unseen;
  const auto threads =
      std::distance(std::filesystem::directory_iterator("/proc/self/task", unseen), {});
  if (threads <= 1) return;
  log_warning(cat("the process that forks the ranks has ", threads - 1, " more ",
                  threads == 2 ? "thread" : "threads",
                  " (started by a profiler or a preloaded library?), so a rank may hang: start the "
                  "ranks with torchrun or srun"));
}

RankProcess start_rank_process(const RankCommand& command) {
  Pipe out = make_pipe(), err = make_pipe(), failure = make_pipe();
  require(out.reader.get() > STDERR_FILENO, "descriptors 0 to 2 are open where ranks are started");
  const ForkedRank forked = {::getpid(), out.writer.get(), err.writer.get(), failure.writer.get()};
  // Buffered output would otherwise be written by both processes.
  std::cout.flush();
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  const int fork_error = errno;
  if (pid < 0)
    throw Error(ExitCode::kEnvironment, cat("cannot start a rank: ", errno_text(fork_error)),
                fork_error == EAGAIN   ? more_threads_remedy()
                : fork_error == ENOMEM ? more_memory_remedy()
                                       : "");
  if (pid == 0) become_rank(command, forked);
  await_start(pid, std::move(failure));
  return {pid, std::move(out.reader), std::move(err.reader)};
}

}  // namespace ftrun
