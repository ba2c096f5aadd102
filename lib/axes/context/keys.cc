#include "axes/keys.h"

#include <algorithm>

// Context-parallel ranks divide the tokens of each sequence. No config can use them yet
// (docs/ranks.md).

namespace ftrun {

constinit const AxisKeys keys::context{
    .key = "parallel.context",
    .degree = &ParallelConfig::context,
    .deepspeed_key = "sequence_parallel_size",
    .deepspeed_degree = [](const Config& c) { return c.sequence_parallel_size; },
    .ranks = AxisRanks::kModel,
    .support = AxisSupport::kRefused,
    .feature = "context parallelism",
    .check = nullptr,
    .suggest_degrees = nullptr};

int64_t mesh_sizes::context(const Config& config) {
  return std::max<int64_t>(1, config.parallel.context);
}

}  // namespace ftrun
