#pragma once

#include <functional>
#include <string>

#include "machine/machine.h"

namespace ftrun {

/// BenchRequest holds the options of `ftrun bench machine`.
struct BenchRequest {
  /// The name of the machine (Machine::name).
  std::string name;
  /// Says whether the benchmark measures fewer sizes, and no fp16.
  bool quick = false;
  /// The number of passes over all measurements, at least 1. With two, a slow period of the host
  /// affects only one.
  int passes = 2;
  /// The number of rounds of a pass, at least 1. A round samples work on flat buffers for 5 ms, and
  /// each operation once; operations on large batches are sampled in every second round.
  /// Collectives are sampled in proportion (32 times for 12 rounds), at least 16 times.
  int rounds = 12;
  /// The CPU and the date of the measurement (Machine::cpu_model and measured_on).
  std::string cpu_model, measured_on;
  /// Called with a line of progress before each part.
  std::function<void(const std::string&)> report_progress;
};

/// Measures the cores of this machine by running layer operations, optimizer updates, copies and
/// collectives in child processes, for each number of ranks that divides the number of cores. A
/// time is a lower quartile, because other programs can only add time; the time of a collective is
/// a mean without outliers (measure_collectives()). Keeps the fastest pass; if the passes differ
/// much, a progress line says so. Throws Error(kEnvironment) if a process cannot be started or
/// fails.
Machine bench_machine(const BenchRequest& request);

}  // namespace ftrun
