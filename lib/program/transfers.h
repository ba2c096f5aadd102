#pragma once

#include <cstdint>
#include <vector>

#include "axes/pipeline/pipeline_layout.h"
#include "axes/pipeline/schedule.h"
#include "program/program.h"
#include "program/state_options.h"

namespace ftrun {

/// Transfer sends one value from a stage of a pipeline to another in a micro-batch: the output of a
/// chunk's last layer to the next chunk, or the gradient with respect to it back.
struct Transfer {
  /// The layer whose output, or the gradient of whose output, is sent.
  int32_t layer = -1;
  int32_t micro_batch = -1;
  bool is_gradient = false;
  /// The sending and the receiving stage.
  int from = -1;
  int to = -1;
  bool operator==(const Transfer&) const = default;
};

/// LayerCounts holds the number of layers of a model, and the number of the first one that has
/// backward lists (ModelDescription::first_trained).
struct LayerCounts {
  int32_t count = 0;
  int32_t first_trained = 0;
};

/// ActionTransfers holds the transfer that an action needs from another stage, and the transfer
/// that it makes to another stage; a transfer whose `from` is -1 does not exist. Weight gradients
/// stay in their stage, and no gradient is sent to a layer that has no backward lists.
struct ActionTransfers {
  Transfer received;
  Transfer sent;
};
ActionTransfers transfers_of(const PipelineLayout& pipeline, int stage,
                             const ScheduleAction& action, const LayerCounts& layers);

/// BufferedTransfer is a transfer of this rank, with the buffer that it sends or fills.
struct BufferedTransfer {
  Transfer transfer;
  BufferId buffer = -1;
  /// The action of this stage that reads or writes the buffer.
  size_t action = 0;
};

/// Adds a send after the last writer of each output, and a receive one action before the first
/// reader of each input, in the order in which the sender's `actions` make them, so that transfers
/// overlap the work before. `action_begins` holds the first plain instruction of each action.
Program add_transfers(Program program, const std::vector<BufferedTransfer>& transfers,
                      const std::vector<size_t>& action_begins, const StageActions& actions,
                      const StateOptions& state, const GroupCollection& groups,
                      const LayerCounts& layers, DType dtype);

}  // namespace ftrun
