#include "axes/data/secondary_shards.h"

#include <algorithm>

#include "axes/mesh.h"

namespace ftrun {

int secondary_shards(const Config& config) {
  const int64_t neighbors =
      config.zero.stage == 3 ? std::max<int64_t>(1, config.zero.hpz_partition_size) : 1;
  // If all ranks are neighbors, the shards themselves replace secondary shards, unless they are
  // offloaded.
  const bool are_all_ranks = neighbors == rank_mesh(config).group_size(kStateAxes);
  return are_all_ranks && config.zero.offload_param.device == OffloadDevice::kNone
             ? 1
             : static_cast<int>(neighbors);
}

}  // namespace ftrun
