#pragma once

#include <cstdio>
#include <string>

#include "base/error.h"

namespace ftrun::testing {

/// Prints why a program that needs a GPU cannot run, and returns its exit code: 77, which CTest
/// counts as skipped, if the machine has no GPU; 1 if the module of kernels does not match this
/// program, which is a defect of the build.
inline int exit_code_without_gpu(const Error& error) {
  const bool unfit = error.message().find("undefined symbol") != std::string::npos;
  std::printf("%s%s\n", unfit ? "failed: " : "skipped: no GPU: ", error.message().c_str());
  return unfit ? 1 : 77;
}

}  // namespace ftrun::testing
