#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "cluster/collective_record.h"

namespace ftrun {

/// Computes out[i] = inputs[0][i] op inputs[1][i] op ... in that order, whatever `count` is and
/// however callers divide the data; 16-bit floats are combined in F32 and rounded once. `out` may
/// be one of the inputs. The types are those of is_reducible(); `ranks` is at least 1.
void reduce_in_order(DType dtype, ReduceOp op, const void* const* inputs, int ranks, void* out,
                     int64_t count);

}  // namespace ftrun
