#pragma once

#include <cstdint>
#include <string>

namespace ftrun {

/// Returns the remedy for ENOMEM, naming the limit of this process that applies (ulimit -v, ulimit
/// -d). Does not allocate memory.
const char* more_memory_remedy() noexcept;
/// Returns the remedy if training runs out of memory: a config that needs less.
const char* less_memory_remedy() noexcept;

/// The remedy for EMFILE and ENFILE.
inline constexpr const char* kMoreFiles = "raise the limit of open files (ulimit -n)";

/// Returns the maximum size in bytes of a file that this process writes (ulimit -f); INT64_MAX for
/// no limit.
int64_t file_size_limit();

/// Returns the remedy for EFBIG: "raise the limit of file sizes (ulimit -f), which is 100.00 KiB".
/// If the process has no such limit, the remedy is another file system.
std::string larger_files_remedy();

/// Returns the remedy for shared memory that cannot be allocated or mapped because of this errno,
/// if it names a limit of files; "" for other causes.
std::string shared_memory_remedy(int error_number);

/// Returns the remedy for a file that cannot be created, written or renamed because of this errno.
/// `elsewhere` says how to choose another folder.
std::string writing_remedy(int error_number,
                           const std::string& elsewhere = "write to another one (output_dir)");

/// Returns the remedy if the system does not start another process or thread (EAGAIN): the limits
/// that apply to this process, with their values.
std::string more_threads_remedy();
/// Returns the same remedy, with limits read below `root`, the folder that holds proc and sys. The
/// kernel does not limit the superuser's processes.
std::string more_threads_remedy(const std::string& root, bool is_superuser);

/// Starts `count` threads at once and ends them; throws Error(kEnvironment) if the system does not
/// start them. Call it before a library starts its threads: a library that cannot start them would
/// end the process. `purpose` is part of the message: "computing".
void check_thread_limit(int count, const std::string& purpose);

/// Returns the seconds of CPU time after which the kernel kills this process (the hard limit
/// of ulimit -t); 0 for no limit.
int64_t cpu_seconds_limit();

}  // namespace ftrun
