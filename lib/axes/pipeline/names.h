#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace ftrun {

/// PipelineSchedule is the key parallel.schedule: the order in which the stages of a pipeline run
/// their micro-batches. Schedules differ in the number of micro-batches in flight and in the idle
/// time of stages, not in the result.
enum class PipelineSchedule : uint8_t {
  kGpipe,        // all forward passes, then all backward passes (Huang et al. 2019)
  k1F1B,         // one forward, one backward (Narayanan et al. 2019, PipeDream-Flush)
  kInterleaved,  // 1F1B over several chunks a stage (Narayanan et al. 2021)
  kZbH1,         // 1F1B with weight gradients where a stage would be idle (Qi et al. 2024)
  kZbV,          // the same over two chunks a stage that lie in a V (Qi et al. 2024)
};
template <>
struct EnumNames<PipelineSchedule> {
  static constexpr auto kNames =
      enum_names<PipelineSchedule>({"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"});
};

/// PipelinePartition is the key pipeline.partition: the quantity that a pipeline divides as equally
/// as possible among the parts of a model.
enum class PipelinePartition : uint8_t {
  kCost,        // "best": time of forward and backward (graph/cost.h)
  kParameters,  // "parameters": their elements; a tied output matrix counts in the head too
  kLayers,      // "uniform": number of layers, embedding and head among them
  kBlocks,      // "type:REGEX" that matches decoder layers: number of these
};

}  // namespace ftrun
