#pragma once

#include <cstdint>
#include <vector>

#include "program/gradient_reduction.h"
#include "program/insertions.h"
#include "program/parameter_uses.h"
#include "program/program.h"
#include "program/unit_placement.h"

namespace ftrun {

// The step builder writes a plain program: what is computed, and which instructions use the
// parameters, gradients and activations that are stored elsewhere between uses. Passes of the first
// kind make the instructions that move these; weave() inserts them. Passes of the second kind
// transform the whole program: order_communication, plan_memory, overlap_disk_requests. No pass
// changes what is computed.

/// GatherLimits bounds how far ahead parameters are gathered and how long they are kept, in
/// elements.
struct GatherLimits {
  /// stage3_max_reuse_distance: parameters stay from one use to the next if at most this many
  /// elements are gathered between the two; 0 keeps nothing.
  int64_t reuse_distance = 0;
  /// stage3_prefetch_bucket_size: at most this many elements are gathered ahead of their readers,
  /// and at least one unit unless it is 0.
  int64_t prefetch_elements = 0;
  /// stage3_max_live_parameters: the most elements of gathered parameters, kept or prefetched, at
  /// once.
  int64_t max_live_elements = 0;
  /// Keeps secondary shards (ZeRO++): where parameters are gathered more than once, this rank keeps
  /// its share of the first gather's result, an equal part for each rank of StateGroups::secondary,
  /// in a persistent buffer; later gathers of the step read it there, over that group only. The
  /// first gather still runs over all shards, because the update has changed them.
  bool secondary_shards = false;
};

/// Gathers parameters before their first reader in a use (Rajbhandari et al. 2020, section 5).
std::vector<Insertion> gather_parameters(Program& program, const UnitPlacement& placement,
                                         const std::vector<ParameterUse>& uses,
                                         const GatherLimits& limits);

/// Reduces each unit's gradient after the last list that writes it, for each micro-batch where
/// these have gradients of their own, joined in buckets of `bucket_elements` elements (DeepSpeed's
/// reduce_bucket_size).
std::vector<Insertion> reduce_gradients(const Program& program, GradientReduction& gradients,
                                        int64_t bucket_elements);

/// Moves outputs of layers to the host until backward reads them (cpu_checkpointing); `outputs` is
/// indexed by micro-batch, in the order of layers. With `last_stays` the last output of a
/// micro-batch, which backward reads at once, stays.
std::vector<Insertion> offload_outputs(Program& program,
                                       const std::vector<std::vector<BufferId>>& outputs,
                                       bool last_stays);

/// Adds to every instruction's waits: those that follow from its reads and writes, the decision
/// where it runs only in finite steps, and those that keep compute at most one bucket ahead of the
/// reduction of gradients. With `overlap` these are all; without it, computation and communication
/// also take turns in the order of the list (DeepSpeed's overlap_comm), except communication
/// between stages of a pipeline. Copies between tiers overlap both. Removes waits that others
/// imply.
Program order_communication(Program program, bool overlap);

/// Places every buffer that is not persistent in its arena, by lifetimes; private buffers of the
/// device lie in gaps of the shared arena if that makes the arenas smaller. `existing` are the
/// arenas that the rank already has for another program: an arena does not grow as long as the
/// other one has room.
Program plan_memory(Program program, const ArenaBytes& existing = {});

/// Marks each disk request that may start while the one before it on the lane still runs
/// (DiskRequest): the two share no bytes, not even in an arena. This keeps the disk busy.
Program overlap_disk_requests(Program program);

}  // namespace ftrun
