#include "base/limit_remedies.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/control_groups.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Returns the soft limit of a resource; nothing if it is unlimited.
std::optional<int64_t> limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

/// ThreadLimit is a limit on the number of processes and threads.
struct ThreadLimit {
  int64_t maximum = 0;
  std::string text;
};

/// Lists the limits on threads that apply to this process, the tightest first.
std::vector<ThreadLimit> thread_limits(const std::string& root, bool is_superuser) {
  std::vector<ThreadLimit> limits;
  const auto add = [&](const std::string& of, int64_t maximum) {
    limits.push_back({maximum, cat(of, ", which is ", maximum)});
  };
  if (const auto processes = limit_of(RLIMIT_NPROC); processes && !is_superuser)
    add("the limit of this user's processes and threads (ulimit -u)", *processes);
  for (const ControlGroup& group : list_control_groups("pids", root))
    if (const int64_t maximum = read_group_number(group.folder + "/pids.max", INT64_MAX);
        maximum < INT64_MAX)
      add(cat("pids.max of the control group ", group.name), maximum);
  std::ranges::stable_sort(limits, {}, &ThreadLimit::maximum);
  return limits;
}

}  // namespace

const char* more_memory_remedy() noexcept {
  const bool of_data = limit_of(RLIMIT_DATA) && !limit_of(RLIMIT_AS);
  return of_data ? "raise the memory limit (ulimit -d), or use a machine with more memory"
                 : "raise the memory limit (ulimit -v), or use a machine with more memory";
}

const char* less_memory_remedy() noexcept {
  if (limit_of(RLIMIT_AS))
    return "raise the memory limit (ulimit -v), use a smaller micro-batch or sequence, or a "
           "machine with more memory";
  if (limit_of(RLIMIT_DATA))
    return "raise the memory limit (ulimit -d), use a smaller micro-batch or sequence, or a "
           "machine with more memory";
  return "use a smaller micro-batch or sequence, or a machine with more memory";
}

int64_t file_size_limit() {
  return limit_of(RLIMIT_FSIZE).value_or(INT64_MAX);
}

std::string larger_files_remedy() {
  const auto limit = limit_of(RLIMIT_FSIZE);
  if (limit)
    return cat("raise the limit of file sizes (ulimit -f), which is ", human_bytes(*limit));
  return "use a file system that takes files of this size";
}

std::string shared_memory_remedy(int error_number) {
  if (error_number == EMFILE || error_number == ENFILE) return kMoreFiles;
  if (error_number == EFBIG) return cat(larger_files_remedy(), ": shared memory counts as a file");
  return "";
}

std::string writing_remedy(int error_number, const std::string& elsewhere) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return cat("free space on that file system, or ", elsewhere);
    case EFBIG:
      return larger_files_remedy();
    case EROFS:
      return cat(elsewhere, ": that file system is mounted read-only");
    case EMFILE:
    case ENFILE:
      return kMoreFiles;
    case EXDEV:
      // The folder is part of a container's image: it can be written to but not renamed.
      return "write to another folder, or remove that one first: its file system cannot rename "
             "files of a lower layer";
    default:
      return "check that the folder exists and that this user may write to it";
  }
}

std::string more_threads_remedy() {
  return more_threads_remedy("", ::geteuid() == 0);
}

std::string more_threads_remedy(const std::string& root, bool is_superuser) {
  constexpr size_t kMaxListed = 2;
  std::vector<std::string> limits;
  for (const ThreadLimit& limit : thread_limits(root, is_superuser))
    if (limits.size() < kMaxListed) limits.push_back(limit.text);
  // The stack of each thread is mapped memory, so this limit counts as well.
  if (const auto space = limit_of(RLIMIT_AS))
    limits.push_back(cat("the limit of address space (ulimit -v), which is ", human_bytes(*space)));
  if (limits.empty())
    return "end other programs, or raise kernel.threads-max and vm.max_map_count (sysctl)";
  return cat("raise ", join(limits, ", or "), "; or end other programs of this user");
}

void check_thread_limit(int count, const std::string& purpose) {
  std::mutex mutex;
  std::condition_variable changed;
  bool may_end = false;
  const auto wait = [&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return may_end; });
  };
  std::vector<std::thread> threads;
  std::string start_error;
  try {
    for (int thread = 1; thread < count; ++thread) threads.emplace_back(wait);
  } catch (const std::system_error& error) {
    start_error = error.code().message();
  }
  {
    const std::lock_guard lock(mutex);
    may_end = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
  if (!start_error.empty())
    throw Error(ExitCode::kEnvironment,
                cat("cannot start ", count, " threads for ", purpose, ", only ", threads.size() + 1,
                    ": ", start_error),
                cat(more_threads_remedy(), "; or set threads: ", threads.size() + 1));
}

int64_t cpu_seconds_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return 0;
  return static_cast<int64_t>(limit.rlim_max);
}

}  // namespace ftrun
