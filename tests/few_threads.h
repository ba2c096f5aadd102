#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

#include "base/error.h"
#include "child_process.h"

namespace ftrun::testing {

// FTRUN_CAN_REFUSE_THREADS is 1 if a limit of address space can refuse threads. Sanitizers map more
// addresses than any limit allows.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FTRUN_CAN_REFUSE_THREADS 0
#else
#define FTRUN_CAN_REFUSE_THREADS 1
#endif

/// Runs `body` in a child process in which the system starts some threads, but refuses 32; returns
/// the message of its Error, or "(started)".
inline std::string error_with_few_threads(const std::function<void()>& body) {
  return text_from_child([&]() -> std::string {
    constexpr rlim_t kStack = rlim_t{8} << 20;
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t space = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + 3 * kStack;
    const rlimit wanted{space, space};
    if (::setrlimit(RLIMIT_AS, &wanted) != 0) return "(no limit)";
    try {
      body();
    } catch (const Error& error) {
      return error.message();
    }
    return "(started)";
  });
}

}  // namespace ftrun::testing
