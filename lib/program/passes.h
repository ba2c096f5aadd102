#pragma once

#include <cstdint>

#include "partition/sharding.h"
#include "program/program.h"
#include "program/state_options.h"

namespace ftrun {

// Each pass takes a program and gives back a better one that computes the same bits. Order of use:
// reuse_gathered, gather_within_nodes, prefetch_gathers, bucket_gradients, bucket_gathers,
// order_communication, plan_memory, overlap_disk_requests, then check_programs.

/// Keeps gathered parameters from one use to the next instead of gathering them again, where at
/// most `reuse_distance` elements are gathered between (DeepSpeed's stage3_max_reuse_distance; 0
/// keeps nothing) and at most `max_live_elements` are alive together.
Program reuse_gathered(Program program, int64_t reuse_distance, int64_t max_live_elements);

/// Of parameters that are gathered more than once, this rank keeps what the first gather brought of
/// its own of equal parts, one for each rank of `groups.node`, in a buffer from step to step
/// (ZeRO++'s secondary shard); later gathers of the step bring them from there, over the node alone.
/// The first one still runs over all shards, because the update has changed them.
Program gather_within_nodes(Program program, const StateGroups& groups);

/// Moves gathers of parameters up so that they run beside computation: up to `prefetch_elements`
/// ahead of their readers (stage3_prefetch_bucket_size), at least one unit unless that is 0, while at most `max_live_elements` are alive
/// (stage3_max_live_parameters).
Program prefetch_gathers(Program program, int64_t prefetch_elements, int64_t max_live_elements);

/// Joins gradient reductions of one micro-batch until a bucket holds `bucket_elements` elements
/// (DeepSpeed's reduce_bucket_size). A single unit larger than that stays whole. What belongs to a
/// reduction moves with it.
Program bucket_gradients(Program program, int64_t bucket_elements);

/// The same for gathers of updated parameters (allgather_bucket_size).
Program bucket_gathers(Program program, int64_t bucket_elements);

/// Writes every instruction's waits on other lanes: from what it reads and writes, on the decision
/// where it runs only in finite steps, and so that compute is at most one bucket ahead of what
/// takes gradients away. With `overlap` that is all; without, computation and communication also
/// take turns in the order of the list (DeepSpeed's overlap_comm). Copies between tiers go on beside
/// both.
Program order_communication(Program program, bool overlap);

/// Gives every buffer that is not persistent its place in its arena, from lifetimes.
Program plan_memory(Program program);

/// Marks each disk request that may start while the one before it on the lane still runs
/// (Instr::starts_early): the two share no bytes, of an arena either. The disk then always has
/// something to do.
Program overlap_disk_requests(Program program);

}  // namespace ftrun
