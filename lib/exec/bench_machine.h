#pragma once

#include <string>

#include "machine/machine.h"

namespace ftrun {

/// BenchRequest is what `ftrun bench machine` asks for.
struct BenchRequest {
  /// Machine::name.
  std::string name;
  /// Fewer sizes, fewer rounds: some 15 s instead of a minute on two processors.
  bool quick = false;
  /// Machine::processor and measured.
  std::string processor, measured;
};

/// Measures the processors of this machine by running the operations of layer graphs, updates of an
/// optimizer, copies and collectives, in processes of its own: all processors on one rank, and one
/// rank on each processor. Each figure is a median. Error(kEnvironment) where a process cannot be
/// started or fails.
Machine bench_machine(const BenchRequest& request);

}  // namespace ftrun
