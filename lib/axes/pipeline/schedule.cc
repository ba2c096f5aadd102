#include "axes/pipeline/schedule.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace ftrun {
namespace {

/// ScheduleWriter writes the actions of a stage. Each call writes the next micro-batch of its phase
/// and chunk, so micro-batches ascend by construction. Calls past the last micro-batch are counted
/// but write nothing.
class ScheduleWriter {
 public:
  ScheduleWriter(int chunks, int32_t micro_batches) : micro_batches_(micro_batches) {
    for (std::vector<int32_t>& counts : next_) counts.resize(static_cast<size_t>(chunks));
  }

  void add(Phase phase, int32_t chunk = 0) {
    int32_t& next = next_[static_cast<size_t>(phase)][static_cast<size_t>(chunk)];
    if (next < micro_batches_) actions_.push_back({phase, chunk, next});
    ++next;
  }

  int32_t count(Phase phase, int32_t chunk = 0) const {
    return next_[static_cast<size_t>(phase)][static_cast<size_t>(chunk)];
  }

  /// Adds input gradients, and their weight gradients right after.
  void add_both(int32_t chunk) {
    add(Phase::kInputGrad, chunk);
    add(Phase::kWeightGrad, chunk);
  }

  /// Adds the missing weight gradients of a chunk whose input gradients are done.
  void add_missing_weight_gradients(int32_t chunk) {
    while (count(Phase::kWeightGrad, chunk) < count(Phase::kInputGrad, chunk))
      add(Phase::kWeightGrad, chunk);
  }

  std::vector<ScheduleAction> release() { return std::move(actions_); }

 private:
  int32_t micro_batches_;
  std::array<std::vector<int32_t>, 4> next_;  // [phase][chunk]
  std::vector<ScheduleAction> actions_;
};

void write_gpipe(ScheduleWriter& out, int32_t micro_batches) {
  for (int32_t m = 0; m < micro_batches; ++m) out.add(Phase::kForward);
  for (int32_t m = 0; m < micro_batches; ++m) out.add(Phase::kBackward);
}

/// Writes `warmup_passes` forward passes, then a backward and a forward pass in turn.
void write_1f1b(ScheduleWriter& out, int32_t warmup_passes, int32_t micro_batches) {
  for (int32_t m = 0; m < warmup_passes; ++m) out.add(Phase::kForward);
  for (int32_t m = 0; m < micro_batches; ++m) {
    out.add(Phase::kBackward);
    out.add(Phase::kForward);
  }
}

/// Writes a schedule whose backward passes are split into input gradients and weight gradients. Up
/// to `delayed` micro-batches wait for their weight gradients.
void write_zero_bubble(ScheduleWriter& out, int32_t warmup_passes, int32_t delayed,
                       int32_t micro_batches) {
  for (int32_t m = 0; m < warmup_passes; ++m) out.add(Phase::kForward);
  for (int32_t m = 0; m < micro_batches; ++m) {
    out.add(Phase::kInputGrad);
    if (m >= delayed) out.add(Phase::kWeightGrad);
    out.add(Phase::kForward);
  }
  out.add_missing_weight_gradients(0);
}

/// Returns the number of micro-batches that a stage runs through one chunk before it switches to
/// the next chunk.
int32_t round_size(int stages, int32_t micro_batches) {
  return micro_batches / std::max(1, micro_batches / stages);
}

/// Runs forward passes of the chunks in turn, a round of micro-batches each, and backward passes
/// likewise from the last chunk. The warm-up includes twice the distance to the last stage, so that
/// each of the other transfers can take as long as one action.
void write_interleaved(ScheduleWriter& out, int stages, int32_t chunks, int stage,
                       int32_t micro_batches) {
  const int32_t round = round_size(stages, micro_batches);
  const int32_t passes = chunks * micro_batches;
  const int32_t warmup_passes = std::min((chunks - 1) * round + 2 * (stages - 1 - stage), passes);
  const auto forward = [&](int32_t step) { out.add(Phase::kForward, step / round % chunks); };
  for (int32_t step = 0; step < warmup_passes; ++step) forward(step);
  for (int32_t step = 0; step < passes; ++step) {
    if (warmup_passes + step < passes) forward(warmup_passes + step);
    out.add(Phase::kBackward, chunks - 1 - step / round % chunks);
  }
}

/// Writes chunk 0 down the stages and chunk 1 up again, so that the first stage has the loss and
/// starts its backward passes first. The order is made for at least 2 x stages - 1 micro-batches;
/// if there are fewer, the missing ones are left out.
void write_v_shaped(ScheduleWriter& out, int stages, int stage, int32_t micro_batches) {
  const int32_t min_micro_batches = std::max(2 * stages - 1, micro_batches);
  const int32_t stages_left = stages - stage;
  for (int32_t i = 0; i < 2 * stages_left - 1; ++i) out.add(Phase::kForward, 0);
  for (int i = 0; i < stage; ++i) {
    out.add(Phase::kForward, 1);
    out.add(Phase::kForward, 0);
  }
  for (int32_t i = 0; i < stages_left; ++i) {
    out.add(Phase::kForward, 1);
    out.add_both(1);
  }
  while (out.count(Phase::kForward, 1) < min_micro_batches) {
    if (out.count(Phase::kForward, 0) < min_micro_batches) out.add(Phase::kForward, 0);
    out.add_both(0);
    out.add(Phase::kForward, 1);
    out.add_both(1);
  }
  // The remaining actions compute gradients. Those for which other stages wait come first.
  for (int i = 0; i < stage; ++i) {
    out.add(Phase::kInputGrad, 0);
    out.add(Phase::kInputGrad, 1);
  }
  for (int32_t i = 0; i < stages_left; ++i) out.add_both(0);
  out.add_missing_weight_gradients(1);
  out.add_missing_weight_gradients(0);
}

}  // namespace

int model_chunk_of(ChunkPlacement placement, int stages, int stage, int chunk) {
  const bool back = placement == ChunkPlacement::kV && chunk == 1;
  return back ? 2 * stages - 1 - stage : chunk * stages + stage;
}

int required_chunks(PipelineSchedule schedule) {
  const PipelineScheduleTraits& traits = traits_of(schedule);
  return traits.chunks_configurable ? 0 : traits.default_chunks;
}

bool accepts_micro_batches(PipelineSchedule schedule, int stages, int32_t micro_batches) {
  return !traits_of(schedule).runs_in_rounds ||
         micro_batches % round_size(stages, micro_batches) == 0;
}

std::vector<ScheduleAction> make_schedule(PipelineSchedule schedule, int stages, int chunks,
                                          int stage, int32_t micro_batches) {
  require(stage >= 0 && stage < stages, "the pipeline has this stage");
  require(chunks > 0 && (required_chunks(schedule) == 0 || required_chunks(schedule) == chunks),
          "there are as many chunks as the schedule has");
  require(micro_batches > 0 && accepts_micro_batches(schedule, stages, micro_batches),
          "there are as many micro-batches as the schedule is made for");
  const int32_t warmup_passes = std::min<int32_t>(stages - stage, micro_batches);
  ScheduleWriter out(chunks, micro_batches);
  switch (schedule) {
    case PipelineSchedule::kGpipe:
      write_gpipe(out, micro_batches);
      break;
    case PipelineSchedule::k1F1B:
      write_1f1b(out, warmup_passes, micro_batches);
      break;
    case PipelineSchedule::kInterleaved:
      write_interleaved(out, stages, chunks, stage, micro_batches);
      break;
    case PipelineSchedule::kZbH1:
      write_zero_bubble(out, warmup_passes, stage, micro_batches);
      break;
    case PipelineSchedule::kZbV:
      write_v_shaped(out, stages, stage, micro_batches);
      break;
  }
  return out.release();
}

StageActions make_schedules(PipelineSchedule schedule, int stages, int chunks,
                            int32_t micro_batches) {
  StageActions lists;
  for (int stage = 0; stage < stages; ++stage)
    lists.push_back(make_schedule(schedule, stages, chunks, stage, micro_batches));
  return lists;
}

char phase_letter(Phase phase) {
  return "FBIW"[static_cast<size_t>(phase)];
}

}  // namespace ftrun
