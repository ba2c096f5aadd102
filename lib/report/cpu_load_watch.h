#pragma once

#include <cstdint>
#include <functional>

#include "base/machine_info.h"

namespace ftrun {

/// CpuLoadShares holds shares of this machine's CPU time during a run: the share that processes
/// other than the run's ranks used, and the share that a hypervisor gave to other virtual machines.
struct CpuLoadShares {
  double other_programs = 0;
  double stolen = 0;
};

/// CpuTimes holds the CPU time of this machine, and the part that this process used.
struct CpuTimes {
  MachineCpuTimes machine;
  double own_seconds = 0;
};
CpuTimes read_cpu_times();
/// Reads the same times, where child processes that have ended count as this process.
CpuTimes read_cpu_times_with_children();

/// CpuLoadWatch measures the other load on this machine.
class CpuLoadWatch {
 public:
  using Reader = std::function<CpuTimes()>;

  /// Begins the measurement. Assumes that all `ranks` ranks of the run are on this machine and use
  /// as much CPU time as this rank.
  explicit CpuLoadWatch(int64_t ranks, Reader read = read_cpu_times);

  /// Returns the shares since the beginning of the measurement.
  CpuLoadShares shares() const;

 private:
  int64_t ranks_;
  Reader read_;
  CpuTimes begin_;
};

}  // namespace ftrun
