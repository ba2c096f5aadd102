#pragma once

#include <cstdint>
#include <vector>

#include "config/resolve.h"
#include "config/written_config.h"
#include "machine/machine.h"
#include "model/model_config.h"
#include "sim/what_if.h"

namespace ftrun {

/// SearchTask is the run for which a layout is searched.
struct SearchTask {
  /// The config into which layouts are written (layout_overrides()).
  WrittenConfig written;
  /// The context in which the config is resolved, except the number of ranks.
  ResolveContext context;
  ModelConfig model;
  Machine machine;
  int64_t nodes = 1;
  /// The number of sequences of an optimizer step.
  int64_t batch = 1;
  /// Ranks that are slower than the others. They are allowed only with GPUs, where all layouts have
  /// equally many ranks.
  std::vector<SlowRank> slow = {};
  /// The bytes that a rank may use of a device, including those of libraries, and of main memory
  /// besides a GPU; 0: as many as the machine has. Ranks on CPUs have only one memory, the
  /// device's.
  int64_t device_memory = 0;
  int64_t host_memory = 0;
  /// Layouts may keep state in main memory besides a GPU, or on disk.
  bool offloads = true;
};

/// MemoryNeed holds the bytes that one rank needs at its peak, divided as in SearchTask.
struct MemoryNeed {
  int64_t device = 0;
  int64_t host = 0;
};

/// Returns the bytes of a device that one of `ranks` ranks of a node may use; 0: no limit.
int64_t device_budget(const SearchTask& task, int64_t ranks);

/// Returns the bytes of main memory besides GPUs that one of `ranks` ranks of a node may use; 0: no
/// limit.
int64_t host_budget(const SearchTask& task, int64_t ranks);

/// Returns the bytes that a rank, one of `ranks` of a node, needs beyond those that it may use.
int64_t lacking(const SearchTask& task, const MemoryNeed& memory, int64_t ranks);

/// Returns whether a rank, one of `ranks` of a node, has the memory that it needs.
bool fits_memory(const SearchTask& task, const MemoryNeed& memory, int64_t ranks);

}  // namespace ftrun
