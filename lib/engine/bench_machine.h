#pragma once

#include <functional>
#include <string>

#include "machine/machine.h"

namespace ftrun {

/// BenchRequest holds the options of `ftrun bench machine`.
struct BenchRequest {
  /// The name of the machine (Machine::name).
  std::string name;
  /// The benchmark measures fewer sizes and rounds, and no fp16.
  bool quick = false;
  /// The processor and the date of the measurement (Machine::processor and measured).
  std::string processor, measured;
  /// Called with a line of progress before each part.
  std::function<void(const std::string&)> say;
};

/// Measures the processors of this machine by running layer operations, optimizer updates, copies
/// and collectives in processes of its own, for each number of ranks that divides the number of
/// processors. A figure is a lower quartile, as other programs can only add time; that of a
/// collective between pieces of work is a mean without outliers (middle_mean()). All is measured
/// in two passes, of which the faster one is kept; where they differ much, a line says so.
/// Error(kEnvironment) where a process cannot be started or fails.
Machine bench_machine(const BenchRequest& request);

}  // namespace ftrun
