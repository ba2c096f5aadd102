#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

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

/// ChunkPlacement says which of the stages x chunks model chunks each stage has: chunk k of stage s
/// is model chunk k x stages + s, or (two chunks) its chunk 1 is model chunk 2 x stages - 1 - s, so
/// that the first stage has the first and the last one.
enum class ChunkPlacement : uint8_t { kLoop, kV };

/// PipelineScheduleTraits holds what code other than schedule.cc knows about a schedule: such code
/// asks for a trait and names no schedule (tests/house/schedules_test.py).
struct PipelineScheduleTraits {
  PipelineSchedule schedule{};
  std::string_view name;  // in parallel.schedule
  /// The number of model chunks on a stage, unless the config gives another one.
  int default_chunks = 1;
  /// Says whether the config may set the number of chunks, to at least 2.
  bool chunks_configurable = false;
  ChunkPlacement placement = ChunkPlacement::kLoop;
  /// Says whether the gradients of inputs and of weights are separate actions.
  bool splits_backward = false;
  /// Says whether a stage switches to its next chunk after a round of micro-batches; all rounds
  /// have the same size.
  bool runs_in_rounds = false;
  /// Says whether a stage keeps the activations of all micro-batches. With any other schedule, the
  /// number of micro-batches whose activations it keeps has a bound that does not grow.
  bool keeps_all_micro_batches = false;
};

inline constexpr PipelineScheduleTraits kPipelineScheduleTraits[] = {
    {.schedule = PipelineSchedule::kGpipe, .name = "gpipe", .keeps_all_micro_batches = true},
    {.schedule = PipelineSchedule::k1F1B, .name = "1f1b"},
    {.schedule = PipelineSchedule::kInterleaved,
     .name = "interleaved",
     .default_chunks = 2,
     .chunks_configurable = true,
     .runs_in_rounds = true},
    {.schedule = PipelineSchedule::kZbH1, .name = "zb-h1", .splits_backward = true},
    {.schedule = PipelineSchedule::kZbV,
     .name = "zbv",
     .default_chunks = 2,
     .placement = ChunkPlacement::kV,
     .splits_backward = true},
};

/// The schedule of a config that names none, and of a single stage.
inline constexpr PipelineSchedule kDefaultSchedule = PipelineSchedule::k1F1B;

constexpr const PipelineScheduleTraits& traits_of(PipelineSchedule schedule) {
  return kPipelineScheduleTraits[static_cast<size_t>(schedule)];
}

template <>
struct EnumNames<PipelineSchedule> {
  static constexpr auto kNames =
      names_of_rows<&PipelineScheduleTraits::schedule>(kPipelineScheduleTraits);
};

/// PipelineBalance is the key pipeline.partition: the quantity that a pipeline divides as equally
/// as possible among the model chunks.
enum class PipelineBalance : uint8_t {
  kCost,        // "best": time of forward and backward (graph/cost.h)
  kParameters,  // "parameters": their elements; a tied output matrix counts in the head too
  kLayers,      // "uniform": number of layers, embedding and head among them
  kBlocks,      // "type:REGEX" that matches decoder layers: number of these
};

}  // namespace ftrun
