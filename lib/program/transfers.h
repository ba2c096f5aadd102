#pragma once

#include <cstdint>
#include <vector>

#include "program/pipeline_layout.h"
#include "program/program.h"
#include "program/schedule.h"
#include "program/state_options.h"

namespace ftrun {

/// A transfer goes from a stage of a pipeline to another in a micro-batch: the output of the last
/// layer of a part to the next part, or the gradient by it back.
struct Transfer {
  /// The layer whose output it is.
  int32_t layer = -1;
  int32_t micro_batch = -1;
  bool gradient = false;
  /// Stages.
  int from = -1;
  int to = -1;
  bool operator==(const Transfer&) const = default;
};

/// The layers of a model, and the first of them that has backward lists
/// (ModelDescription::first_trained).
struct LayersOfModel {
  int32_t count = 0;
  int32_t first_trained = 0;
};

/// ActionTransfers are what an action needs from another stage, and what it makes for another
/// stage; `from` is -1 where that is nothing. Weight gradients stay in their stage, and no gradient
/// goes to a layer that has no backward lists.
struct ActionTransfers {
  Transfer received;
  Transfer sent;
};
ActionTransfers transfers_of(const PipelineLayout& pipeline, int stage,
                             const ScheduleAction& action, const LayersOfModel& layers);

/// A transfer of this rank and where it lies here.
struct PlacedTransfer {
  Transfer transfer;
  BufferId buffer = -1;
  /// The action of this stage that reads or writes it.
  size_t action = 0;
};

/// Sends what leaves this stage behind its last writer, and receives what arrives one action ahead
/// of its first reader, in the order in which its sender's `actions` make it, so that it comes
/// beside the work before it. `begins`: the plain instruction with which each action begins.
Program add_transfers(Program program, const std::vector<PlacedTransfer>& transfers,
                      const std::vector<size_t>& begins, const StageActions& actions,
                      const StateOptions& state, const StateGroups& groups,
                      const LayersOfModel& layers, DType dtype);

}  // namespace ftrun
