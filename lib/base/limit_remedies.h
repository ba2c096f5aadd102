#pragma once

#include <cstdint>
#include <string>

namespace ftrun {

/// Tells what helps against ENOMEM, with the limit of this process that holds (ulimit -v, ulimit
/// -d). Allocates nothing.
const char* more_memory_remedy() noexcept;
/// Tells what helps against a lack of memory of training, of which another config needs less.
const char* less_memory_remedy() noexcept;

/// The remedy against EMFILE and ENFILE.
inline constexpr const char* kMoreFiles = "raise the limit of open files (ulimit -n)";

/// Bytes that a file of this process may have (ulimit -f); INT64_MAX for no limit.
int64_t file_size_limit();

/// Tells what helps against EFBIG: "raise the limit of file sizes (ulimit -f), which is 100.00
/// KiB". Where there is no such limit, the file system has one.
std::string larger_files_remedy();

/// Tells what helps if a file cannot be made, written or renamed for this reason. `elsewhere` says
/// how to choose another folder.
std::string writing_remedy(int error_number,
                           const std::string& elsewhere = "write to another one (output_dir)");

/// Tells what helps if the system starts no further process or thread (EAGAIN): the limits that
/// hold for this process, with their values.
std::string more_threads_remedy();
/// Tells it where `root` is the folder that holds proc and sys. The kernel does not count the
/// superuser's processes.
std::string more_threads_remedy(const std::string& root, bool is_superuser);

/// Starts so many threads at once and ends them: Error(kEnvironment) where the system does not
/// start them. Before a library does, which would end the process. `use` says what they are for:
/// "computing".
void require_threads(int count, const std::string& use);

/// Seconds of processor time after which the kernel kills this process (the hard limit of ulimit
/// -t); 0 for no limit.
int64_t processor_seconds_limit();

}  // namespace ftrun
