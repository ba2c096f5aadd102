#pragma once

#include <cstdint>
#include <vector>

#include "program/gradient_reducer.h"
#include "program/insertions.h"
#include "program/parameter_uses.h"
#include "program/program.h"
#include "program/unit_placement.h"

namespace ftrun {

// The step builder writes a plain program, which holds the computation and says which instructions
// use the parameters, gradients and activations that are stored elsewhere between uses. Passes of
// the first kind make the instructions that move this data, either because the computation requires
// it (gather_parameters, reduce_gradients) or to save memory (offload_outputs); merge_insertions()
// inserts them. Passes of the second kind transform the whole program: add_waits,
// assign_arena_offsets, overlap_disk_requests. They never change what is computed.

/// GatherOptions specifies how far ahead parameters are gathered, and how long they are kept.
struct GatherOptions {
  /// The maximum number of elements that may be gathered between two uses of parameters if these
  /// stay from one use to the next (stage3_max_reuse_distance); 0 keeps nothing.
  int64_t reuse_distance = 0;
  /// The maximum number of elements that are gathered ahead of their readers
  /// (stage3_prefetch_bucket_size); at least one unit is gathered ahead unless this is 0.
  int64_t prefetch_elements = 0;
  /// The maximum number of elements of gathered parameters, kept or prefetched, at one time
  /// (stage3_max_live_parameters).
  int64_t max_live_elements = 0;
  /// Says whether secondary shards (ZeRO++) are kept: where parameters are gathered more than once,
  /// this rank keeps its share of the first gather's result, an equal part for each rank of
  /// GroupCollection::secondary, in a persistent buffer; later gathers of the step read it there,
  /// over that group only. The first gather still runs over all shards, because the update has
  /// changed them.
  bool keeps_secondary_shards = false;
};

/// Gathers parameters before the first reader of each use (Rajbhandari et al. 2020, section 5).
std::vector<Insertion> gather_parameters(Program& program, const UnitPlacement& placement,
                                         const std::vector<ParameterUse>& uses,
                                         const GatherOptions& options);

/// Reduces each unit's gradient after the last operation list that writes it; separately for each
/// micro-batch if each micro-batch has its own gradient. Reductions are joined in buckets of
/// `bucket_elements` elements (DeepSpeed's reduce_bucket_size).
std::vector<Insertion> reduce_gradients(const Program& program, GradientReducer& reducer,
                                        int64_t bucket_elements);

/// Moves outputs of layers to the host until backward reads them (cpu_checkpointing); `outputs` is
/// indexed by micro-batch, in the order of layers. With `last_stays` the last output of a
/// micro-batch, which backward reads at once, stays.
std::vector<Insertion> offload_outputs(Program& program,
                                       const std::vector<std::vector<BufferId>>& outputs,
                                       bool last_stays);

/// Adds waits to every instruction: for the instructions on which its reads and writes depend, for
/// the decision (kDecide) if it runs only in finite steps, and for reductions, so that compute runs
/// at most one bucket ahead of them. With `overlap` it adds no other waits; without it, computation
/// and communication also alternate in the order of the list (DeepSpeed's overlap_comm), except
/// communication between stages of a pipeline. Copies between tiers overlap both. Removes waits
/// that others imply.
Program add_waits(Program program, bool overlap);

/// Gives every buffer that is not persistent an offset in its arena, so that buffers with separate
/// lifetimes share memory. Private buffers of the device go into gaps of the shared arena if that
/// makes the arenas smaller. `existing` holds the sizes of the arenas that the rank already has for
/// another program: an arena does not grow as long as the other one has room.
Program assign_arena_offsets(Program program, const ArenaBytes& existing = {});

/// Marks each disk request that may start while the previous request of the lane still runs
/// (DiskRequest), because the two share no bytes, not even in an arena. Overlapping requests keep
/// the disk busy.
Program overlap_disk_requests(Program program);

}  // namespace ftrun
