#pragma once

#include "partition/units.h"

namespace ftrun {

/// The partition laid out anew so that each of `owners` shards of a unit holds whole parameters of
/// the layers' graphs: what updates a matrix as a matrix, or keeps sums of its rows and columns,
/// needs all of it. Parameters are spread so that shards are about equally full: the largest first,
/// each to the emptiest. Shards stay equal strides, so the fullest decides how long they are, and
/// the others end in padding; of a unit with fewer parameters than owners some hold nothing. Small
/// units, which hold vectors, stay as they are.
Partition own_whole_parameters(Partition partition, const ModelDescription& model, int owners);

}  // namespace ftrun
