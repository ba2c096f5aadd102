#include "report/cpu_load_watch.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace ftrun {

CpuTimes read_cpu_times() {
  const ProcessTimes own = read_process_times();
  return {read_machine_times(), own.user_seconds + own.system_seconds};
}

CpuTimes read_cpu_times_with_children() {
  CpuTimes times = read_cpu_times();
  rusage children{};
  ::getrusage(RUSAGE_CHILDREN, &children);
  for (const timeval& time : {children.ru_utime, children.ru_stime})
    times.own_seconds +=
        static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  return times;
}

CpuLoadWatch::CpuLoadWatch(int64_t ranks, Reader read)
    : ranks_(ranks), read_(std::move(read)), begin_(read_()) {}

CpuLoadShares CpuLoadWatch::shares() const {
  const CpuTimes now = read_();
  const MachineCpuTimes& begin = begin_.machine;
  const double total_seconds = now.machine.total_seconds - begin.total_seconds;
  if (total_seconds <= 0) return {};
  const double run_seconds = static_cast<double>(ranks_) * (now.own_seconds - begin_.own_seconds);
  return {
      .other_programs = std::max(0.0, now.machine.busy_seconds - begin.busy_seconds - run_seconds) /
                        total_seconds,
      .stolen = std::max(0.0, now.machine.stolen_seconds - begin.stolen_seconds) / total_seconds};
}

}  // namespace ftrun
