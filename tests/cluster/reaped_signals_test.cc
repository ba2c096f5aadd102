// These tests check that no signal is sent to a process that has been reaped, because its number
// may belong to another process then. The functions below replace kill() and wait4() in the whole
// test program, and record the calls.

#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>
#include <set>

#include "cluster/supervisor.h"
#include "helper/exec_program.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

namespace {

/// CallRecord is this process's record of calls; ranks in other processes have their own.
struct CallRecord {
  std::mutex mutex;
  std::set<pid_t> reaped;
  int killed = 0, killed_after = 0;
};

CallRecord& call_record() {
  static CallRecord all;
  return all;
}

}  // namespace

extern "C" int kill(pid_t target, int signal) noexcept {
  {
    const std::lock_guard lock(call_record().mutex);
    ++call_record().killed;
    call_record().killed_after +=
        static_cast<int>(call_record().reaped.count(target < 0 ? -target : target));
  }
  return static_cast<int>(::syscall(SYS_kill, target, signal));
}

extern "C" pid_t wait4(pid_t pid, int* status, int options, rusage* used) {
  const auto done = static_cast<pid_t>(::syscall(SYS_wait4, pid, status, options, used));
  const std::lock_guard lock(call_record().mutex);
  if (done > 0) call_record().reaped.insert(done);
  return done;
}

TEST_CASE(
    "a rank that has been waited for gets no signal, and the processes that it started are ended "
    "before") {
  {
    const std::lock_guard lock(call_record().mutex);
    call_record().reaped.clear();
    call_record().killed = call_record().killed_after = 0;
  }
  const std::string rank = ftrun::testing::binary_dir() + "/bin/rank_helper";
  ftrun::SupervisorOptions options;
  options.local_ranks = 3;
  options.rank_main = ftrun::testing::exec_program(rank);
  options.write = [](ftrun::OutputStream, std::string_view) {};
  for (const std::vector<std::string>& words : {std::vector<std::string>{"print", "well"},
                                                {"killif", "1", "sleep", "60000"},
                                                {"only", "2", "exit", "4"}}) {
    options.arguments = {rank};
    options.arguments.insert(options.arguments.end(), words.begin(), words.end());
    ftrun::run_supervisor(options);
  }
  const std::lock_guard lock(call_record().mutex);
  CHECK(call_record().reaped.size() == 9);
  CHECK(call_record().killed >= 9);
  CHECK(call_record().killed_after == 0);
}
