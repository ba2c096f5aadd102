#pragma once

#include <map>
#include <vector>

#include "model/description.h"
#include "optimizers/block_map.h"
#include "partition/layout.h"
#include "partition/sharding.h"
#include "program/state_options.h"

namespace ftrun {

/// Lists the parts of a unit's gradient of which tensor-parallel ranks make a share each, because
/// they use the same part of a tensor, by the group that adds these up.
std::map<GroupId, std::vector<ShardRange>> tensor_shares(const Unit& unit,
                                                         const ModelDescription& model,
                                                         const StateOptions& options,
                                                         const StateGroups& groups);

/// NormRange is a part of a unit that the gradient norm sums by itself, and how many neighbouring
/// tensor-parallel ranks have copies of it, of which one is counted.
struct NormRange {
  ShardRange part;
  int copies = 1;
};

/// Lists the norm ranges of a unit, in the order of its slices: those that follow each other and of
/// which equally many ranks have copies; without tensor parallelism the unit. Together they cover
/// it. A frozen unit has none.
std::vector<NormRange> norm_ranges(const Unit& unit, const ModelDescription& model);

/// Maps the elements of a slice of a unit to those of its tensor, for tensor-parallel rank `rank`.
BlockMap block_map(const TensorInfo& tensor, const Slice& slice, int rank);

}  // namespace ftrun
