#include "base/limit_remedies.h"

#include <sys/resource.h>

#include <cerrno>

#include "base/as_error.h"
#include "base/error.h"
#include "child_process.h"
#include "pseudo_root.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::PseudoRoot;
using testing::text_from_child;

void set_limit(__rlimit_resource_t resource, rlim_t value) {
  const rlimit wanted{value, value};
  ::setrlimit(resource, &wanted);
}

TEST_CASE("the remedy for a file that may not grow names the limit, or the file system") {
  CHECK(text_from_child([] {
          set_limit(RLIMIT_FSIZE, 100 << 10);
          return writing_remedy(EFBIG);
        }) == "raise the limit of file sizes (ulimit -f), which is 100.00 KiB");
  CHECK(text_from_child([] {
          set_limit(RLIMIT_FSIZE, RLIM_INFINITY);
          return writing_remedy(EFBIG);
        }) == "use a file system that takes files of this size");
}

TEST_CASE("each reason why a file cannot be written has its remedy") {
  CHECK(writing_remedy(ENOSPC) ==
        "free space on that file system, or write to another one (output_dir)");
  CHECK(writing_remedy(EDQUOT, "choose another folder") ==
        "free space on that file system, or choose another folder");
  CHECK(writing_remedy(EROFS) ==
        "write to another one (output_dir): that file system is mounted read-only");
  CHECK(writing_remedy(EMFILE) == kMoreFiles);
  CHECK(writing_remedy(EACCES) ==
        "check that the folder exists and that this user may write to it");
}

TEST_CASE(
    "if no thread can be started the limits in force are named with their values, the tightest "
    "first") {
  PseudoRoot root;
  root.write("/proc/self/cgroup", "8:pids:/job/rank\n");
  root.write("/sys/fs/cgroup/pids/job/rank/pids.max", "max\n");
  const auto remedy = [&](bool is_superuser, rlim_t space) {
    return text_from_child([&] {
      set_limit(RLIMIT_NPROC, 40);
      set_limit(RLIMIT_AS, space);
      return more_threads_remedy(root.path(), is_superuser);
    });
  };
  CHECK(remedy(true, RLIM_INFINITY) ==
        "end other programs, or raise kernel.threads-max and vm.max_map_count (sysctl)");
  CHECK(remedy(false, RLIM_INFINITY) ==
        "raise the limit of this user's processes and threads (ulimit -u), which is 40; or end "
        "other programs of this user");
  root.write("/sys/fs/cgroup/pids/job/rank/pids.max", "64\n");
  root.write("/sys/fs/cgroup/pids/job/pids.max", "16\n");
  CHECK(remedy(false, RLIM_INFINITY) ==
        "raise pids.max of the control group /job, which is 16, or the limit of this user's "
        "processes and threads (ulimit -u), which is 40; or end other programs of this user");
  CHECK(remedy(true, rlim_t{1} << 50) ==
        "raise pids.max of the control group /job, which is 16, or pids.max of the control group "
        "/job/rank, which is 64, or the limit of address space "
        "(ulimit -v), which is 1.00 PiB; or end other programs of this user");
}

TEST_CASE("the remedy for refused memory names the limit in force") {
  const auto remedies = [](rlim_t space, rlim_t data) {
    return text_from_child([&] {
      set_limit(RLIMIT_AS, space);
      set_limit(RLIMIT_DATA, data);
      return cat(more_memory_remedy(), " | ", less_memory_remedy());
    });
  };
  constexpr rlim_t kMuch = rlim_t{1} << 50, kNone = RLIM_INFINITY;
  const std::string more = ", or use a machine with more memory",
                    less = "use a smaller micro-batch or sequence, or a machine with more memory";
  CHECK(remedies(kNone, kNone) == "raise the memory limit (ulimit -v)" + more + " | " + less);
  CHECK(remedies(kMuch, kMuch) == "raise the memory limit (ulimit -v)" + more +
                                      " | raise the memory limit (ulimit -v), " + less);
  CHECK(remedies(kNone, kMuch) == "raise the memory limit (ulimit -d)" + more +
                                      " | raise the memory limit (ulimit -d), " + less);
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // sanitizers map more addresses than any limit allows
TEST_CASE("threads that the system would not start are refused before a library tries") {
  const std::string refused = text_from_child([] {
    set_limit(RLIMIT_AS, rlim_t{100} << 20);  // the stacks of a dozen threads
    try {
      check_thread_limit(64, "computing");
    } catch (const Error& error) {
      return error.message() + " | " + error.remedy();
    }
    return std::string("(started)");
  });
  CHECK_THAT(
      refused,
      Catch::Matches(R"(cannot start 64 threads for computing, only \d+: Resource temporarily )"
                     R"(unavailable \| )"
                     R"(raise .*the limit of address space \(ulimit -v\), which is 100.00 MiB; )"
                     R"(or end other programs of this user; )"
                     R"(or set threads: \d+)"));
}
#endif

TEST_CASE("the probe for how many threads can start ends all threads that it started") {
  CHECK_NOTHROW(check_thread_limit(4, "computing"));
}

TEST_CASE("a thread that cannot start anywhere in the program is reported with the limits") {
  const Error error =
      as_error(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  CHECK(error.code() == ExitCode::kEnvironment);
  CHECK(error.message() ==
        "the system cannot start another thread: Resource temporarily unavailable");
  CHECK_FALSE(error.remedy().empty());
}

TEST_CASE("the limit of CPU time is read in seconds") {
  CHECK(text_from_child([] {
          set_limit(RLIMIT_CPU, 1000);
          return std::to_string(cpu_seconds_limit());
        }) == "1000");
}

}  // namespace
}  // namespace ftrun
