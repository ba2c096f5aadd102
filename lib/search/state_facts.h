#pragma once

#include <cstdint>

#include "config/config.h"

namespace ftrun {

/// StateFacts holds what the bounds of a layout take from its resolved config: the bytes kept for a
/// parameter, and which tensors are sharded. Layouts of one mesh that keep their state alike have
/// equal facts.
struct StateFacts {
  /// The least bytes of an element's optimizer states, and the bytes of a gradient as it is kept
  /// and as it is exchanged.
  double state_bytes = 0;
  double gradient_bytes = 0;
  double exchanged_bytes = 0;
  /// Weights have a master copy in fp32 beside those that layers read.
  bool has_master = false;
  /// Ranks keep a second set of the weights' shards (zero_hpz_partition_size).
  bool has_secondary_shards = false;
  /// The share of optimizer state that goes elsewhere, where some does.
  double offloaded_share = 1;
  /// Tensors of more elements than this are sharded at stage 3.
  int64_t persistence_threshold = 0;

  auto operator<=>(const StateFacts&) const = default;
};

/// Takes the facts from a resolved config.
StateFacts state_facts(const Config& config);

}  // namespace ftrun
