#pragma once

#include <map>
#include <vector>

#include "model/description.h"
#include "optimizers/block_map.h"
#include "partition/flat_layout.h"
#include "partition/sharding.h"
#include "program/state_options.h"

namespace ftrun {

/// Lists, for each group of tensor-parallel ranks, the parts of a unit's gradient that the group
/// has to sum: its ranks use the same part of a tensor, so each of them computes a partial
/// gradient of it.
std::map<GroupId, std::vector<UnitRange>> tensor_partial_gradients(const Unit& unit,
                                                                   const ModelDescription& model,
                                                                   const StateOptions& options,
                                                                   const GroupCollection& groups);

/// GradientNormRange is a part of a unit that the gradient norm sums separately. `copies` is the
/// number of neighboring tensor-parallel ranks that hold it, because only one copy is counted.
struct GradientNormRange {
  UnitRange elements;
  int copies = 1;
};

/// Lists the norm ranges of a unit, in the order of its slices. Neighboring slices that have the
/// same number of copies form one range; without tensor parallelism the whole unit is one. The
/// ranges together cover the unit. A frozen unit has none.
std::vector<GradientNormRange> gradient_norm_ranges(const Unit& unit,
                                                    const ModelDescription& model);

/// Maps the elements of a slice of a unit to those of its tensor, for tensor-parallel rank `rank`.
BlockMap block_map(const TensorInfo& tensor, const TensorSlice& slice, int rank);

}  // namespace ftrun
