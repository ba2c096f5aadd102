#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/written_config.h"

namespace ftrun {

/// Layout describes how a run is distributed over its ranks. It holds the settings of a config that
/// do not change what is trained: the batch of a step, the precision and the optimizer are not
/// among them.
struct Layout {
  /// The number of ranks that read different sequences.
  int64_t data = 1;
  /// The number of copies of the state. Each copy is shared by data / replicas ranks.
  int64_t replicas = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  PipelineSchedule schedule = kDefaultSchedule;
  /// The number of model chunks of each stage of the pipeline.
  int64_t chunks = 1;
  /// The ZeRO stage.
  int64_t zero = 0;
  /// The tier of the optimizer's state outside a step.
  OffloadDevice optimizer_offload = OffloadDevice::kNone;
  /// The tier of the parameters outside a step.
  OffloadDevice parameter_offload = OffloadDevice::kNone;
  /// The number of sequences in a micro-batch of a rank.
  int64_t micro_batch = 1;
  /// The number of micro-batches in a step.
  int64_t accumulation = 1;
  RecomputeLevel recompute = RecomputeLevel::kNone;

  int64_t ranks() const { return data * tensor * pipeline; }
  int64_t batch() const { return data * micro_batch * accumulation; }
  /// Returns the number of ranks that share one copy of the state.
  int64_t shards() const { return zero == 0 ? 1 : data / replicas; }
  auto operator<=>(const Layout&) const = default;
};

/// Scores the complexity of a layout, from 0 for plain data parallelism: of two layouts with equal
/// times, the one with the lower score is better.
int complexity_score(const Layout& layout);

/// Lists the keys of a config that a layout sets, with their values.
std::vector<std::pair<std::string, FieldValue>> layout_keys(const Layout& layout);

/// Writes a layout's keys into a config, replacing the config's own.
void write_layout(const Layout& layout, WrittenConfig& config);

/// Lists the overrides that prepare a config for write_layout(): they set every key of a layout
/// once, and remove other names of the same settings.
std::vector<std::string> layout_overrides(int64_t batch);

/// Describes a layout: "data 4 × tensor 2, ZeRO 1, micro-batch 2 × 4, recompute full, optimizer
/// state in main memory".
std::string layout_text(const Layout& layout);

}  // namespace ftrun
