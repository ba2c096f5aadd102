#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ftrun {

/// MachineInfo describes the host, as run.json and `ftrun check` show it. Facts that could not be
/// read are "" or 0.
struct MachineInfo {
  std::string hostname;
  /// The kernel's name and release: "Linux 6.1.0".
  std::string kernel;
  std::string cpu_model;
  /// The number of cores that this process may use according to its CPU affinity and the quotas of
  /// its control groups.
  int cores = 0;
  int64_t memory_bytes = 0;
  /// The bytes that the kernel estimates it can provide without swapping.
  int64_t memory_available_bytes = 0;
};

/// ProcessMemory holds the memory of this process in bytes, from /proc/self/status. Resident memory
/// is the sum of anonymous, shared-memory and file-backed pages; only the last can be dropped at no
/// cost.
struct ProcessMemory {
  int64_t peak_resident_bytes = 0;  // VmHWM
  int64_t anonymous_bytes = 0;      // RssAnon
  int64_t shared_memory_bytes = 0;  // RssShmem
  int64_t file_backed_bytes = 0;    // RssFile

  /// Returns the bytes that become free only when the process releases them or ends.
  int64_t held_bytes() const { return anonymous_bytes + shared_memory_bytes; }
};

/// ProcessTimes holds the CPU time of this process, and the time when it began.
struct ProcessTimes {
  double user_seconds = 0;
  double system_seconds = 0;
  /// Seconds from the start of the machine to the start of the process (resolution 0.01 s).
  double started_seconds = 0;
  /// Seconds since the process was made: by exec, or by fork for a rank (not since its main()
  /// began).
  double age_seconds = 0;
};

/// MachineCpuTimes holds times of a machine's cores since it started, in seconds summed over cores:
/// busy, stolen, and in all (with idle time).
struct MachineCpuTimes {
  double busy_seconds = 0;
  /// Seconds that a hypervisor gave to other virtual machines although this one had work.
  double stolen_seconds = 0;
  double total_seconds = 0;
};

MachineInfo read_machine_info();
ProcessMemory read_process_memory();
/// Reads the times of all cores; they are all 0 if /proc/stat cannot be read.
MachineCpuTimes read_machine_times();
ProcessTimes read_process_times();

/// Parses the text of /proc/cpuinfo. The functions below parse /proc/meminfo, /proc/self/status,
/// /proc/self/stat and /proc/stat. Absent fields keep their defaults.
std::string parse_cpu_model(std::string_view cpuinfo);
void parse_meminfo(std::string_view meminfo, MachineInfo& machine);
ProcessMemory parse_process_status(std::string_view status);
/// Parses /proc/self/stat, whose times are in units of 1 / `ticks_per_second`; age_seconds is left
/// 0.
ProcessTimes parse_process_stat(std::string_view stat, int64_t ticks_per_second);
MachineCpuTimes parse_machine_stat(std::string_view stat, int64_t ticks_per_second);

}  // namespace ftrun
