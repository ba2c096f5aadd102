#pragma once

#include <cstdint>
#include <vector>

#include "config/resolve.h"
#include "config/written_config.h"
#include "machine/machine.h"
#include "model/config.h"
#include "sim/what_if.h"

namespace ftrun {

/// SearchTask is the run for which a layout is searched.
struct SearchTask {
  /// The config that layouts are written into (layout_overrides()).
  WrittenConfig written;
  /// The context that the config is resolved with, except the number of ranks.
  ResolveContext context;
  ModelConfig model;
  Machine machine;
  int64_t nodes = 1;
  /// Sequences of an optimizer step.
  int64_t batch = 1;
  /// Ranks that are slower than the others; only with GPUs, where all layouts have equally many
  /// ranks.
  std::vector<SlowRank> slow = {};
  /// Bytes that a rank may take of a device, including those of libraries, and of main memory
  /// beside a GPU; 0: as many as the machine has. Ranks of processors have one memory, which is the
  /// device's.
  int64_t device_memory = 0;
  int64_t host_memory = 0;
  /// Layouts may keep state in main memory beside a GPU, or on disk.
  bool offloads = true;
};

/// MemoryNeed holds the bytes that one rank needs at its fullest, as SearchTask counts them.
struct MemoryNeed {
  int64_t device = 0;
  int64_t host = 0;
};

/// Returns the bytes of a device that one of `ranks` ranks of a node may take; 0: not bounded.
int64_t device_budget(const SearchTask& task, int64_t ranks);

/// Returns the bytes of main memory beside GPUs that one of `ranks` ranks of a node may take; 0:
/// not bounded.
int64_t host_budget(const SearchTask& task, int64_t ranks);

/// Counts the bytes that a rank, one of `ranks` of a node, needs beyond those that it may take.
int64_t lacking(const SearchTask& task, const MemoryNeed& memory, int64_t ranks);

/// Says whether a rank, one of `ranks` of a node, has the memory that it needs.
bool fits(const SearchTask& task, const MemoryNeed& memory, int64_t ranks);

}  // namespace ftrun
