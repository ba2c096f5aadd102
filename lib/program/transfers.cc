#include "program/transfers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "base/error.h"
#include "program/insertions.h"

namespace ftrun {

ActionTransfers transfers_of(const PipelineLayout& pipeline, int stage,
                             const ScheduleAction& action, const LayerCounts& layers) {
  if (action.phase == Phase::kWeightGrad) return {};
  const bool gradient = action.phase != Phase::kForward;
  const auto transfer_between = [&](int from, int to) {
    const bool both = std::min(from, to) >= 0 && std::max(from, to) < pipeline.model_chunks();
    if (!both || pipeline.stage_of(from) == pipeline.stage_of(to)) return Transfer{};
    const int32_t layer = pipeline.layers_of(std::min(from, to), layers.count).end - 1;
    if (gradient && layer < layers.first_trained) return Transfer{};
    return Transfer{layer, action.micro_batch, gradient, pipeline.stage_of(from),
                    pipeline.stage_of(to)};
  };
  const int model_chunk = pipeline.model_chunk_of(stage, action.chunk);
  // Outputs go to the next chunk, gradients to the previous chunk.
  const int ahead = gradient ? -1 : 1;
  return {.received = transfer_between(model_chunk - ahead, model_chunk),
          .sent = transfer_between(model_chunk, model_chunk + ahead)};
}

namespace {

/// TransferPass decides where the sends and receives of one rank are inserted.
class TransferPass {
 public:
  TransferPass(const Program& program, const GroupCollection& groups, DType dtype)
      : program_(program), groups_(groups), dtype_(dtype), uses_(find_buffer_uses(program)) {}

  void add_send(const BufferedTransfer& buffered) {
    Instr instr = make_transfer(InstrKind::kSend, buffered);
    instr.reads = {program_.full_range(buffered.buffer)};
    insertions_.push_back({.plain_instr = uses_[static_cast<size_t>(buffered.buffer)].last,
                           .is_after = true,
                           .instrs = {std::move(instr)}});
  }

  /// Adds the receives of all transfers over one link, in the order in which they are sent.
  void add_receives(const std::vector<const BufferedTransfer*>& arriving,
                    const std::vector<size_t>& action_begins) {
    std::vector<Insertion> receives;
    size_t latest = program_.instrs.size();
    for (auto buffered = arriving.rbegin(); buffered != arriving.rend(); ++buffered) {
      const size_t action = (*buffered)->action;
      latest = std::min(latest, action_begins[action == 0 ? 0 : action - 1]);
      Instr instr = make_transfer(InstrKind::kReceive, **buffered);
      instr.writes = {program_.full_range((*buffered)->buffer)};
      receives.push_back(
          {.plain_instr = latest, .waits_for_compute = true, .instrs = {std::move(instr)}});
    }
    insertions_.insert(insertions_.end(), std::make_move_iterator(receives.rbegin()),
                       std::make_move_iterator(receives.rend()));
  }

  std::vector<Insertion> release() { return std::move(insertions_); }

 private:
  Instr make_transfer(InstrKind kind, const BufferedTransfer& buffered) const {
    const Transfer& transfer = buffered.transfer;
    Instr instr;
    instr.kind = kind;
    instr.detail = Communication{groups_.links.at({transfer.from, transfer.to}), dtype_};
    instr.lane = lane_of(instr.group());
    instr.layer = transfer.layer;
    instr.micro_batch = transfer.micro_batch;
    return instr;
  }

  const Program& program_;
  const GroupCollection& groups_;
  const DType dtype_;
  const std::vector<BufferUse> uses_;
  std::vector<Insertion> insertions_;
};

}  // namespace

Program add_transfers(Program program, const std::vector<BufferedTransfer>& transfers,
                      const std::vector<size_t>& action_begins, const StageActions& actions,
                      const StateOptions& state, const GroupCollection& groups,
                      const LayerCounts& layers, DType dtype) {
  TransferPass pass(program, groups, dtype);
  std::map<std::pair<int32_t, std::pair<int32_t, bool>>, const BufferedTransfer*> arriving;
  for (const BufferedTransfer& buffered : transfers) {
    const Transfer& transfer = buffered.transfer;
    if (transfer.from == state.pipeline_stage)
      pass.add_send(buffered);
    else
      arriving[{transfer.layer, {transfer.micro_batch, transfer.is_gradient}}] = &buffered;
  }
  size_t received = 0;
  for (int stage = 0; stage < state.pipeline.stages(); ++stage) {
    std::vector<const BufferedTransfer*> over_link;
    for (const ScheduleAction& action : actions[static_cast<size_t>(stage)]) {
      const Transfer sent = transfers_of(state.pipeline, stage, action, layers).sent;
      if (sent.to != state.pipeline_stage) continue;
      const auto found = arriving.find({sent.layer, {sent.micro_batch, sent.is_gradient}});
      require(found != arriving.end(), "what a stage sends is expected");
      over_link.push_back(found->second);
    }
    received += over_link.size();
    pass.add_receives(over_link, action_begins);
  }
  require(received == arriving.size(), "what a stage expects is sent");
  std::vector<Insertion> insertions = pass.release();
  return merge_insertions(std::move(program), std::move(insertions));
}

}  // namespace ftrun
