#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ftrun {

/// How much main memory the processes of this job may have, in bytes.
struct MemoryLimit {
  /// The most that there can ever be, and what is free now (without swapping).
  int64_t total = 0;
  int64_t available = 0;
  /// Who sets `total`: "this machine", "the cgroup /kubepods/pod1".
  std::string by;
};

/// The tightest of the machine's memory and the limits of this process's control groups (v1 and v2;
/// what their page cache holds counts as free). `root` is where proc and sys are: "" but in tests.
/// What cannot be read does not limit; total is 0 when nothing can.
MemoryLimit read_memory_limit(const std::string& root = "");

/// Bytes of address space that this process may still ask for (ulimit -v); INT64_MAX for no limit.
int64_t address_space_left();

}  // namespace ftrun
