#pragma once

namespace ftrun {

/// What helps against ENOMEM, and against EMFILE and ENFILE.
inline constexpr const char* kMoreMemory = "raise the memory limit (ulimit -v), or use a machine with more memory";
inline constexpr const char* kMoreFiles = "raise the limit of open files (ulimit -n)";

}  // namespace ftrun
