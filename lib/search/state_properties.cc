#include "search/state_properties.h"

#include <algorithm>

#include "base/dtype.h"
#include "program/optimizer_state_specs.h"
#include "program/training_model.h"

namespace ftrun {
namespace {

double bytes_of(ConfigDtype dtype) {
  return static_cast<double>(dtype_bytes(dtype_of(dtype)));
}

double state_bytes(const Config& config) {
  double in_8bit = 0, plain = 0;
  bool has_8bit = false;
  for (const OptimizerStateSpec& state : list_optimizer_state_specs(config)) {
    const auto bytes = static_cast<double>(dtype_bytes(state.dtype));
    has_8bit |= state.is_8bit;
    (state.is_8bit ? in_8bit : plain) += bytes / static_cast<double>(state.block);
  }
  return has_8bit ? std::min(in_8bit, plain) : plain;
}

}  // namespace

StateProperties state_properties(const Config& config) {
  return {.state_bytes = state_bytes(config),
          .gradient_bytes = bytes_of(gradient_dtype(config)),
          .communicated_bytes = bytes_of(communication_dtype(config)),
          .has_master = training_dtype(config) != master_dtype(config),
          .has_secondary_shards = config.zero.hpz_partition_size > 1,
          .offloaded_share = config.zero.offload_optimizer.ratio,
          .persistence_threshold = config.zero.param_persistence_threshold};
}

}  // namespace ftrun
