#pragma once

#include <functional>
#include <string>

#include "machine/machine.h"

namespace ftrun {

/// BenchRequest is what `ftrun bench machine` asks for.
struct BenchRequest {
  /// Machine::name.
  std::string name;
  /// Fewer sizes and rounds, and no fp16.
  bool quick = false;
  /// Machine::processor and measured.
  std::string processor, measured;
  /// Gets a line before each part.
  std::function<void(const std::string&)> say;
};

/// Measures the processors of this machine by running the operations of layer graphs, updates of an
/// optimizer, copies and collectives, in processes of its own, for each number of
/// ranks that divides the processors. Each figure is a lower quartile. Error(kEnvironment) where a
/// process cannot be started or fails.
Machine bench_machine(const BenchRequest& request);

}  // namespace ftrun
