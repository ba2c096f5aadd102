#pragma once

#include <cstdio>
#include <string>

#include "base/error.h"

namespace ftrun::testing {

/// Returns why a program that needs a GPU does not run, and returns its exit code: 77, which CTest
/// counts as skipped, where the machine has none; 1 where the module of the kernels does not fit
/// this program, which is not the machine's fault.
inline int exit_code_without_gpu(const Error& error) {
  const bool unfit = error.message().find("undefined symbol") != std::string::npos;
  std::printf("%s%s\n", unfit ? "failed: " : "skipped: no GPU: ", error.message().c_str());
  return unfit ? 1 : 77;
}

}  // namespace ftrun::testing
