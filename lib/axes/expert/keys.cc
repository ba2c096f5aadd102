#include "axes/keys.h"

#include "config/resolve_state.h"

// Expert-parallel ranks divide the data-parallel and context-parallel ranks. No config can use them
// yet (docs/ranks.md).

namespace ftrun {
namespace {

void check_experts(ResolveState& r) {
  const ParallelConfig& mesh = r.config.parallel;
  if ((mesh.data * mesh.context) % mesh.expert != 0)
    r.error("parallel.expert",
            cat("data-parallel ", mesh.data, " × context ", mesh.context, " = ",
                mesh.data * mesh.context, " ranks cannot be divided by expert ", mesh.expert),
            cat("use a divisor of ", mesh.data * mesh.context));
}

}  // namespace

constinit const AxisKeys keys::expert{.key = "parallel.expert",
                                      .degree = &ParallelConfig::expert,
                                      .deepspeed_key = nullptr,
                                      .deepspeed_degree = nullptr,
                                      .ranks = AxisRanks::kWithinOthers,
                                      .support = AxisSupport::kRefused,
                                      .feature = "expert parallelism",
                                      .check = check_experts,
                                      .suggest_degrees = nullptr};

}  // namespace ftrun
