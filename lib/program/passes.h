#pragma once

#include <cstdint>
#include <vector>

#include "program/insertions.h"
#include "program/program.h"
#include "program/unit_store.h"

namespace ftrun {

// A step is built plain: it says what is computed, and which instructions use the parameters,
// gradients and activations that lie somewhere else before or after. Passes of the first
// kind insert from these uses what moves them; weave() puts it in. Passes of the second kind
// take the whole program: order_communication, plan_memory, overlap_disk_requests. No pass
// changes what is computed.

/// GatherLimits bounds how far ahead parameters are gathered and how long they are kept, in
/// elements.
struct GatherLimits {
  /// stage3_max_reuse_distance: parameters stay from one use to the next where at most so many are
  /// gathered between; 0 keeps nothing.
  int64_t reuse_distance = 0;
  /// stage3_prefetch_bucket_size: so many may come ahead of their readers, at least one unit unless
  /// it is 0.
  int64_t prefetch_elements = 0;
  /// stage3_max_live_parameters: the most gathered parameters, kept and brought ahead, at once.
  int64_t max_live_elements = 0;
  /// Keeps secondary shards (ZeRO++): of parameters that are gathered more than once, this rank
  /// keeps its share of what the first gather brought, one of equal parts for each rank of
  /// StateGroups::node, in a buffer from step to step; later gathers of the step bring them from
  /// there, over the node alone. The first one still runs over all shards, because the update has
  /// changed them.
  bool secondary_shards = false;
};

/// Brings parameters before their first reader in a use (Rajbhandari et al. 2020, section 5).
std::vector<Insertion> gather_parameters(Program& program, UnitStore& store,
                                         const GatherLimits& limits);

/// Reduces each unit's gradient after the last list that writes it, by micro-batch where they are
/// made apart, joined in buckets of `bucket_elements` elements (DeepSpeed's reduce_bucket_size).
std::vector<Insertion> reduce_gradients(const Program& program, UnitStore& store,
                                        int64_t bucket_elements);

/// Outputs of layers that wait for backward on the host (cpu_checkpointing), by micro-batch
/// and in the order of layers. With `last_stays` the last of a micro-batch, which backward
/// reads at once, does not go.
std::vector<Insertion> offload_outputs(Program& program,
                                       const std::vector<std::vector<BufferId>>& outputs,
                                       bool last_stays);

/// Adds to every instruction's waits: what it needs by what it reads and writes, the decision where
/// it runs only in finite steps, and so much that compute is at most one bucket ahead of what takes
/// gradients away. With `overlap` that is all; without, computation and communication also take
/// turns in the order of the list (DeepSpeed's overlap_comm), but for what several stages of a
/// pipeline do together. Copies between tiers go on beside both. Keeps no wait that others imply.
Program order_communication(Program program, bool overlap);

/// Gives every buffer that is not persistent its place in its arena, from lifetimes; private ones
/// of the device lie in gaps of what peers can read where that makes the arenas smaller. `there`
/// are arenas that the rank has anyway, for another program: this one needs no more of one as long
/// as there is room in the other.
Program plan_memory(Program program, const ArenaBytes& there = {});

/// Marks each disk request that may start while the one before it on the lane still runs
/// (DiskRequest): the two share no bytes, also not in an arena. The disk then always has
/// something to do.
Program overlap_disk_requests(Program program);

}  // namespace ftrun
