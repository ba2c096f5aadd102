#pragma once

#include <cstdint>
#include <vector>

#include "config/resolve.h"
#include "config/written_config.h"
#include "machine/machine.h"
#include "model/model_config.h"
#include "sim/what_if.h"

namespace ftrun {

/// SearchTask describes the run for which a layout is searched.
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
  /// Ranks that are slower than the others. Allowed only with GPUs, where all layouts have the same
  /// number of ranks.
  std::vector<SlowRank> slow_ranks = {};
  /// The bytes of device memory that a rank may use, including the memory of libraries, and the
  /// bytes of main memory that a rank with a GPU may use; 0: as many as the machine has. For ranks
  /// on CPUs only device_memory counts.
  int64_t device_memory = 0;
  int64_t host_memory = 0;
  /// Says whether layouts may offload state from a GPU to main memory, or to disk.
  bool offloads = true;
};

/// MemoryNeed holds the bytes of device memory and of main memory (as defined in SearchTask) that
/// one rank needs at its peak.
struct MemoryNeed {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
};

/// Returns the bytes of a device that one of `ranks` ranks of a node may use: `requested_bytes`
/// bytes or, if that is 0, as many as the machine has. 0: no limit. Ranks on CPUs share the node's
/// memory.
int64_t device_memory_budget(const Machine& machine, int64_t requested_bytes, int64_t ranks);
int64_t device_memory_budget(const SearchTask& task, int64_t ranks);

/// Returns the bytes of main memory that one of `ranks` ranks of a node with GPUs may use, like
/// device_memory_budget().
int64_t host_memory_budget(const Machine& machine, int64_t requested_bytes, int64_t ranks);
int64_t host_memory_budget(const SearchTask& task, int64_t ranks);

/// Returns how many bytes a rank, one of `ranks` ranks on its node, needs beyond its budgets.
int64_t missing_bytes(const SearchTask& task, const MemoryNeed& memory, int64_t ranks);

/// Returns whether a rank, one of `ranks` ranks on its node, has the memory that it needs.
bool fits_memory(const SearchTask& task, const MemoryNeed& memory, int64_t ranks);

}  // namespace ftrun
