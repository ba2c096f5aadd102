#include "cluster/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace ftrun {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

/// Our environment with the command's variables in place of ours of the same name.
std::vector<std::string> merged_environment(const std::vector<std::string>& changes) {
  std::vector<std::string> all = changes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& change : changes) replaced |= change.compare(0, name.size(), name) == 0;
    if (!replaced) all.push_back(text);
  }
  return all;
}

/// Everything the child needs, allocated before the fork: after it only async-signal-safe calls.
struct ChildPlan {
  const char* program;
  char** arguments;
  char** environment;
  const std::vector<int>* inherited;
  const sigset_t* blocked;
  pid_t parent;
  int out, err, failure;
};

[[noreturn]] void child_fails(const ChildPlan& plan) {
  const int reason = errno;
  [[maybe_unused]] const ssize_t sent = ::write(plan.failure, &reason, sizeof reason);
  ::_exit(127);
}

[[noreturn]] void become_rank(const ChildPlan& plan) {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) child_fails(plan);
  // The parent may have died before the call above took effect.
  if (::getppid() != plan.parent) ::_exit(127);
  const int input = ::open("/dev/null", O_RDONLY);
  if (input < 0 || ::dup2(input, 0) < 0 || ::dup2(plan.out, 1) < 0 || ::dup2(plan.err, 2) < 0)
    child_fails(plan);
  for (const int fd : *plan.inherited) {
    if (::fcntl(fd, F_SETFD, 0) != 0) child_fails(plan);
  }
  ::sigprocmask(SIG_SETMASK, plan.blocked, nullptr);
  ::execve(plan.program, plan.arguments, plan.environment);
  child_fails(plan);
}

/// Blocks until the child has called exec; throws when it could not.
void await_exec(pid_t pid, Pipe failure, const std::string& program) {
  failure.writer.reset();
  int reason = 0;
  ssize_t got = 0;
  do {
    got = ::read(failure.reader.get(), &reason, sizeof reason);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return;
  ::waitpid(pid, nullptr, 0);
  throw Error(ExitCode::kEnvironment, cat("cannot start ", program, ": ", errno_text(reason)));
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ExitCode::kEnvironment, cat("cannot make a pipe: ", errno_text(errno)),
                "raise the limit of open files (ulimit -n)");
  }
  return {OwnedFd(ends[0]), OwnedFd(ends[1])};
}

RankProcess start_rank_process(const RankCommand& command) {
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = merged_environment(command.environment);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  Pipe out = make_pipe(), err = make_pipe(), failure = make_pipe();
  require(out.reader.get() > STDERR_FILENO, "descriptors 0 to 2 are open where ranks are started");
  const ChildPlan plan = {command.program.c_str(),
                          const_cast<char**>(argv.data()),
                          const_cast<char**>(envp.data()),
                          &command.inherited,
                          &command.blocked,
                          ::getpid(),
                          out.writer.get(),
                          err.writer.get(),
                          failure.writer.get()};
  const pid_t pid = ::fork();
  if (pid < 0)
    throw Error(ExitCode::kEnvironment, cat("cannot start a process: ", errno_text(errno)));
  if (pid == 0) become_rank(plan);
  await_exec(pid, std::move(failure), command.program);
  return {pid, std::move(out.reader), std::move(err.reader)};
}

}  // namespace ftrun
