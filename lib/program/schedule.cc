#include "program/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

using Actions = std::vector<ScheduleAction>;

void add(Actions& actions, Phase phase, int32_t micro_batch) {
  actions.push_back({.phase = phase, .micro_batch = micro_batch});
}

Actions gpipe(int32_t micro_batches) {
  Actions actions;
  for (int32_t m = 0; m < micro_batches; ++m) add(actions, Phase::kForward, m);
  for (int32_t m = 0; m < micro_batches; ++m) add(actions, Phase::kBackward, m);
  return actions;
}

/// `warm` forward passes, then one forward for each backward.
Actions one_forward_one_backward(int32_t warm, int32_t micro_batches) {
  Actions actions;
  for (int32_t m = 0; m < warm; ++m) add(actions, Phase::kForward, m);
  for (int32_t m = 0; m < micro_batches; ++m) {
    add(actions, Phase::kBackward, m);
    if (m + warm < micro_batches) add(actions, Phase::kForward, m + warm);
  }
  return actions;
}

/// The same with backward in two: up to `delayed` micro-batches wait for their weight gradients.
Actions zero_bubble(int32_t warm, int32_t delayed, int32_t micro_batches) {
  Actions actions;
  for (int32_t m = 0; m < warm; ++m) add(actions, Phase::kForward, m);
  for (int32_t m = 0; m < micro_batches; ++m) {
    add(actions, Phase::kInputGrad, m);
    if (m >= delayed) add(actions, Phase::kWeightGrad, m - delayed);
    if (m + warm < micro_batches) add(actions, Phase::kForward, m + warm);
  }
  for (int32_t m = std::max(0, micro_batches - delayed); m < micro_batches; ++m)
    add(actions, Phase::kWeightGrad, m);
  return actions;
}

char letter(Phase phase) { return "FBIW"[static_cast<size_t>(phase)]; }

}  // namespace

std::vector<ScheduleAction> make_schedule(ScheduleKind kind, int stages, int stage, int32_t micro_batches) {
  require(stage >= 0 && stage < stages, "a stage of the pipeline");
  const int32_t warm = std::min<int32_t>(stages - stage, micro_batches);
  switch (kind) {
    case ScheduleKind::kGpipe:
      return gpipe(micro_batches);
    case ScheduleKind::k1F1B:
      return one_forward_one_backward(warm, micro_batches);
    case ScheduleKind::kZbH1:
      return zero_bubble(warm, stage, micro_batches);
  }
  bug("a kind of schedule");
}

std::string schedule_text(const std::vector<ScheduleAction>& actions) {
  std::vector<std::string> words;
  for (const ScheduleAction& action : actions)
    words.push_back(cat(letter(action.phase), action.chunk, ".", action.micro_batch));
  return join(words, " ");
}

}  // namespace ftrun
