#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace ftrun {

/// ProcessMemoryLimit holds how many bytes one process may still map.
struct ProcessMemoryLimit {
  int64_t available_bytes = std::numeric_limits<int64_t>::max();
  /// The kind of memory that is limited, with the limit's name: "its address space (ulimit -v)",
  /// "its private memory (ulimit -d)"; "" if nothing is limited.
  std::string limit_name;
  /// Says whether the limit also counts memory that ranks share.
  bool counts_shared_memory = false;
};

/// MemoryLimit holds how much main memory the processes of this job may use, in bytes.
struct MemoryLimit {
  /// The maximum number of bytes that the job can ever use, and the bytes that are available now
  /// without swapping.
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
  /// The source of the limit `total_bytes`: "this machine", "the control group /kubepods/pod1".
  std::string limited_by;
  bool limited_by_group = false;
  /// The limits of one process.
  ProcessMemoryLimit process;
};

/// Returns the tightest limit among the machine's memory and this process's control groups (v1 and
/// v2). Page cache counts as available. `root` is the folder that holds proc and sys: "" outside of
/// tests. A file that cannot be read sets no limit; `total_bytes` is 0 when no file can be read.
MemoryLimit read_memory_limit(const std::string& root = "");

/// Returns how many bytes this process may still map under its resource limits (ulimit).
ProcessMemoryLimit read_process_memory_limit();

}  // namespace ftrun
