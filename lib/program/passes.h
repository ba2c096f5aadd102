#pragma once

#include <cstdint>

#include "program/program.h"

namespace ftrun {

// Each pass takes a program and gives back a better one that computes the same. Order of use:
// bucket_gradients, order_communication, plan_memory, then check_programs.

/// Joins neighbouring gradient all-reduces until a bucket holds `bucket_elements` elements
/// (DeepSpeed's reduce_bucket_size). A single unit larger than that stays whole.
Program bucket_gradients(Program program, int64_t bucket_elements);

/// Writes every instruction's waits on other lanes from what it reads and writes. With `overlap`
/// compute waits only where data needs it; without, the instruction after a collective waits for it
/// (DeepSpeed's overlap_comm).
Program order_communication(Program program, bool overlap);

/// Gives every buffer that is not persistent its place in the arena, from lifetimes.
Program plan_memory(Program program);

}  // namespace ftrun
