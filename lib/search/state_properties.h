#pragma once

#include <cstdint>

#include "config/config.h"

namespace ftrun {

/// StateProperties holds the properties of a resolved config on which the bounds of a layout
/// depend: the bytes that are kept for each parameter, and which tensors are sharded. Layouts on
/// the same mesh with the same ZeRO stage, replicas and offload have equal properties.
struct StateProperties {
  /// The minimum bytes of an element's optimizer states, and the bytes of a gradient in memory and
  /// in communication.
  double state_bytes = 0;
  double gradient_bytes = 0;
  double communicated_bytes = 0;
  /// Says whether the weights have an fp32 master copy in addition to the weights that layers read.
  bool has_master = false;
  /// Says whether ranks keep a second set of the weights' shards (zero_hpz_partition_size).
  bool has_secondary_shards = false;
  /// The share of the optimizer state that is offloaded, if offload is on.
  double offloaded_share = 1;
  /// Tensors of more elements than this are sharded at stage 3.
  int64_t persistence_threshold = 0;

  auto operator<=>(const StateProperties&) const = default;
};

/// Reads the properties from a resolved config.
StateProperties state_properties(const Config& config);

}  // namespace ftrun
