#pragma once

#include <string>

#include "base/rank_error.h"

namespace ftrun {

/// Throws an error of a library of a rank's device as the rank's own failure: "copying: CUDA says
/// cudaErrorLaunchFailure, ...". `out_of_memory`: the config asks for too much, which is not the
/// machine's fault. Inline: modules throw it too.
[[noreturn]] inline void throw_library_error(const char* what, const char* library,
                                             const std::string& words, bool out_of_memory = false) {
  throw RankError({ExitCode::kEnvironment, cat(what, ": ", library, " says ", words)},
                  RankError::kThisRank, !out_of_memory);
}

}  // namespace ftrun
