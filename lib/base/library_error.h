#pragma once

#include <string>

#include "base/rank_error.h"

namespace ftrun {

/// Throws a RankError for an error that a library of the rank's device reported: "copying failed:
/// CUDA reported cudaErrorLaunchFailure, ...". With `out_of_memory` the config requests too much
/// memory, so the device is not at fault. This function is inline because modules also throw the
/// error.
[[noreturn]] inline void throw_library_error(const char* what, const char* library,
                                             const std::string& description,
                                             bool out_of_memory = false) {
  throw RankError(
      {ExitCode::kEnvironment, cat(what, " failed: ", library, " reported ", description)},
      RankError::kThisRank, !out_of_memory);
}

}  // namespace ftrun
