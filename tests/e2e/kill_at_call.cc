// Runs a command and counts the calls with which it opens or changes files whose path contains
// TEXT. At call NUMBER it ends the command with kill -9, before the call is executed:
//   kill_at_call TEXT NUMBER LIST COMMAND ARGUMENT...
// NUMBER counts from 1; 0 ends nothing. LIST gets a line for each call: number, name, path. ptrace
// counts the calls of all threads, whichever library or raw instruction makes them. It does not see
// the kernel's own threads that execute an io_uring (io_uring_enter counts after the first counted
// call), nor stores to mapped files. Exits with the command's code, with 128 + the signal that
// ended it, or with 2 if processes may not be traced.
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace {

/// Call holds the indices of a call's arguments that name its file; -1: it has none.
struct Call {
  long number;
  const char* name;
  int fd = -1;
  int path = -1;
  int folder = -1;  // where a relative path begins
  int second_path = -1;
};

constexpr Call kCalls[] = {
#ifdef SYS_open
    {SYS_open, "open", -1, 0},
    {SYS_creat, "creat", -1, 0},
    {SYS_mkdir, "mkdir", -1, 0},
    {SYS_rmdir, "rmdir", -1, 0},
    {SYS_unlink, "unlink", -1, 0},
    {SYS_rename, "rename", -1, 0, -1, 1},
    {SYS_link, "link", -1, 0, -1, 1},
    {SYS_symlink, "symlink", -1, 1},
    {SYS_chmod, "chmod", -1, 0},
#endif
    {SYS_openat, "openat", -1, 1, 0},
    {SYS_mkdirat, "mkdirat", -1, 1, 0},
    {SYS_unlinkat, "unlinkat", -1, 1, 0},
    {SYS_renameat2, "renameat2", -1, 1, 0, 3},
#ifdef SYS_renameat
    {SYS_renameat, "renameat", -1, 1, 0, 3},
#endif
    {SYS_linkat, "linkat", -1, 1, 0, 3},
    {SYS_symlinkat, "symlinkat", -1, 2, 1},
    {SYS_fchmodat, "fchmodat", -1, 1, 0},
    {SYS_truncate, "truncate", -1, 0},
    {SYS_write, "write", 0},
    {SYS_writev, "writev", 0},
    {SYS_pwrite64, "pwrite64", 0},
    {SYS_pwritev, "pwritev", 0},
    {SYS_pwritev2, "pwritev2", 0},
    {SYS_sendfile, "sendfile", 0},
    {SYS_copy_file_range, "copy_file_range", 2},
    {SYS_fallocate, "fallocate", 0},
    {SYS_ftruncate, "ftruncate", 0},
    {SYS_fchmod, "fchmod", 0},
    {SYS_fsync, "fsync", 0},
    {SYS_fdatasync, "fdatasync", 0},
    {SYS_sync_file_range, "sync_file_range", 0},
    {SYS_close, "close", 0},
};

std::string text_at(pid_t pid, uint64_t address) {
  std::string text;
  constexpr uint64_t kPiece = 64;  // a read never crosses the end of a page
  while (text.size() < 4096) {
    char piece[kPiece];
    const uint64_t size = kPiece - address % kPiece;
    const iovec here{piece, size}, there{reinterpret_cast<void*>(address), size};
    if (::process_vm_readv(pid, &here, 1, &there, 1, 0) != static_cast<ssize_t>(size)) return text;
    const auto length = ::strnlen(piece, size);
    text.append(piece, length);
    if (length < size) return text;
    address += size;
  }
  return text;
}

std::string path_of_fd(pid_t pid, uint64_t fd) {
  char target[4096];
  const std::string link =
      "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(static_cast<int>(fd));
  const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
  return size < 0 ? "" : std::string(target, static_cast<size_t>(size));
}

using SyscallInfo = __ptrace_syscall_info;

std::string path_of(pid_t pid, const Call& call, const SyscallInfo& info) {
  const auto& arguments = info.entry.args;
  if (call.fd >= 0) return path_of_fd(pid, arguments[call.fd]);
  std::string path = text_at(pid, arguments[call.path]);
  if (call.folder >= 0 && !path.starts_with('/') &&
      static_cast<int>(arguments[call.folder]) != AT_FDCWD)
    path = path_of_fd(pid, arguments[call.folder]) + "/" + path;
  if (call.second_path >= 0) {
    std::string second = text_at(pid, arguments[call.second_path]);
    if (call.folder >= 0 && !second.starts_with('/') &&
        static_cast<int>(arguments[call.second_path - 1]) != AT_FDCWD)
      second = path_of_fd(pid, arguments[call.second_path - 1]) + "/" + second;
    path += " " + second;
  }
  return path;
}

struct TargetCall {
  std::string text;
  int64_t number = 0;
};

class Counter {
 public:
  Counter(TargetCall target, const char* list) : target_(std::move(target)), list_(list) {}

  /// Returns whether the call that is about to be executed is number NUMBER.
  bool is_target_call(pid_t pid, const SyscallInfo& info) {
    const auto number = static_cast<long>(info.entry.nr);
    if (number == SYS_io_uring_enter && count_ > 0) return counts("io_uring_enter", "");
    const auto* const call = std::find_if(std::begin(kCalls), std::end(kCalls),
                                          [&](const Call& one) { return one.number == number; });
    if (call == std::end(kCalls)) return false;
    const std::string path = path_of(pid, *call, info);
    return path.find(target_.text) != std::string::npos && counts(call->name, path);
  }

 private:
  bool counts(const char* name, const std::string& path) {
    list_ << ++count_ << " " << name << " " << path << std::endl;
    return count_ == target_.number;
  }

  const TargetCall target_;
  std::ofstream list_;
  int64_t count_ = 0;
};

[[noreturn]] void refuse(const char* what) {
  std::fprintf(stderr, "kill_at_call: %s: %s\n", what, std::strerror(errno));
  std::exit(2);
}

pid_t start(char** command) {
  const pid_t pid = ::fork();
  if (pid < 0) refuse("fork");
  if (pid > 0) return pid;
  if (::ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) ::_exit(2);
  ::raise(SIGSTOP);
  ::execvp(command[0], command);
  ::_exit(127);
}

bool is_at_entry(pid_t pid, SyscallInfo& info) {
  return ::ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0 &&
         info.op == PTRACE_SYSCALL_INFO_ENTRY;
}

/// Traces the process `first`, with all its threads and child processes, until it has ended.
/// Returns its exit code.
int trace(pid_t first, Counter& counter) {
  std::set<pid_t> known{first};
  bool ends = false;
  for (;;) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, __WALL);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) refuse("waitpid");
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (pid == first) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      continue;
    }
    int signal = 0;
    SyscallInfo info{};
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      if (!ends && is_at_entry(pid, info) && counter.is_target_call(pid, info)) {
        ends = true;
        ::kill(first, SIGKILL);
        continue;  // it stays stopped
      }
    } else if (status >> 16 == 0 && !known.insert(pid).second) {
      signal = WSTOPSIG(status);
    }
    // A new thread stops once; if a signal has ended it in the meantime, that is reported next.
    ::ptrace(PTRACE_SYSCALL, pid, 0, signal);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "kill_at_call TEXT NUMBER LIST COMMAND ARGUMENT...\n");
    return 2;
  }
  const pid_t pid = start(argv + 4);
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
    refuse("the command may not be traced");
  constexpr long kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                            PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
  if (::ptrace(PTRACE_SETOPTIONS, pid, 0, kOptions) != 0) refuse("PTRACE_SETOPTIONS");
  if (::ptrace(PTRACE_SYSCALL, pid, 0, 0) != 0) refuse("PTRACE_SYSCALL");
  Counter counter({argv[1], std::atoll(argv[2])}, argv[3]);
  return trace(pid, counter);
}
