#include "axes/pipeline/schedule_timeline.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {
namespace {

constexpr double kNotReady = -1;

/// TimelineSimulation runs the stages' lists of actions in turn, each as far as possible, until all
/// have ended.
class TimelineSimulation {
 public:
  TimelineSimulation(const StageActions& lists, ChunkPlacement placement,
                     const ActionSeconds& seconds, double transfer_seconds)
      : lists_(lists), placement_(placement), seconds_(seconds), transfer_(transfer_seconds) {
    require(seconds.size() == lists.size(), "a timeline has the seconds of each stage's actions");
    int32_t largest = 0;
    int chunks = 0;
    for (size_t s = 0; s < lists.size(); ++s) {
      require(seconds[s].size() == lists[s].size(), "a timeline has the seconds of each action");
      for (const ScheduleAction& action : lists[s]) {
        largest = std::max(largest, action.micro_batch + 1);
        chunks = std::max(chunks, action.chunk + 1);
      }
    }
    const auto model_chunks = lists.size() * static_cast<size_t>(chunks);
    const std::vector<double> none(static_cast<size_t>(largest), kNotReady);
    outputs_.assign(model_chunks, none);
    gradients_.assign(model_chunks, none);
    stage_of_.resize(model_chunks);
    for (int stage = 0; stage < stages(); ++stage)
      for (int chunk = 0; chunk < chunks; ++chunk)
        stage_of_[static_cast<size_t>(model_chunk_of(placement, stages(), stage, chunk))] = stage;
    timeline_.stages.resize(lists.size());
  }

  ScheduleTimeline run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int stage = 0; stage < stages(); ++stage)
        while (step(stage)) moved = true;
    }
    for (size_t s = 0; s < lists_.size(); ++s)
      require(timeline_.stages[s].actions.size() == lists_[s].size(),
              "the actions of a schedule do not wait for each other in a circle");
    return std::move(timeline_);
  }

 private:
  int stages() const { return static_cast<int>(lists_.size()); }

  /// Runs the next action of a stage; returns false if it has none or its inputs have not arrived.
  bool step(int stage) {
    StageTimeline& line = timeline_.stages[static_cast<size_t>(stage)];
    const auto& list = lists_[static_cast<size_t>(stage)];
    const size_t at = line.actions.size();
    if (at == list.size()) return false;
    const ScheduleAction& action = list[at];
    const auto model_chunk =
        static_cast<size_t>(model_chunk_of(placement_, stages(), stage, action.chunk));
    const double inputs = inputs_ready_time(action, model_chunk);
    if (inputs == kNotReady) return false;
    const double start =
        line.actions.empty() ? inputs : std::max(inputs, line.actions.back().end_seconds);
    const double seconds = seconds_[static_cast<size_t>(stage)][at];
    line.actions.push_back({action, start, start + seconds});
    line.busy_seconds += seconds;
    timeline_.makespan_seconds = std::max(timeline_.makespan_seconds, start + seconds);
    const auto m = static_cast<size_t>(action.micro_batch);
    if (action.phase == Phase::kForward) outputs_[model_chunk][m] = start + seconds;
    if (action.phase == Phase::kBackward || action.phase == Phase::kInputGrad)
      gradients_[model_chunk][m] = start + seconds;
    return true;
  }

  /// Returns the time when the inputs of an action have reached its stage.
  double inputs_ready_time(const ScheduleAction& action, size_t model_chunk) const {
    const auto m = static_cast<size_t>(action.micro_batch);
    if (action.phase == Phase::kForward)
      return model_chunk == 0
                 ? 0
                 : arrival_time(outputs_[model_chunk - 1][m], model_chunk - 1, model_chunk);
    if (action.phase == Phase::kWeightGrad) return gradients_[model_chunk][m];
    const double own_output = outputs_[model_chunk][m];
    if (model_chunk + 1 == outputs_.size() || own_output == kNotReady) return own_output;
    const double gradient =
        arrival_time(gradients_[model_chunk + 1][m], model_chunk + 1, model_chunk);
    return gradient == kNotReady ? kNotReady : std::max(own_output, gradient);
  }

  double arrival_time(double end, size_t from, size_t to) const {
    return end == kNotReady || stage_of_[from] == stage_of_[to] ? end : end + transfer_;
  }

  const StageActions& lists_;
  const ChunkPlacement placement_;
  const ActionSeconds& seconds_;
  const double transfer_;
  std::vector<int> stage_of_;                 // [model chunk]
  std::vector<std::vector<double>> outputs_;  // [model chunk][micro-batch] end of forward
  std::vector<std::vector<double>>
      gradients_;  // [model chunk][micro-batch] end of the input gradients
  ScheduleTimeline timeline_;
};

/// Returns the maximum number of micro-batches of a chunk that are begun and whose phase `last` has
/// not ended.
int32_t max_unfinished(const std::vector<ScheduleAction>& list, Phase last) {
  int32_t unfinished = 0, largest = 0;
  for (const ScheduleAction& action : list) {
    if (action.phase == Phase::kForward) largest = std::max(largest, ++unfinished);
    if (action.phase == last || action.phase == Phase::kBackward) --unfinished;
  }
  return largest;
}

}  // namespace

double PhaseSeconds::seconds_of(Phase phase) const {
  switch (phase) {
    case Phase::kForward:
      return forward;
    case Phase::kBackward:
      return backward;
    case Phase::kInputGrad:
      return input_grad;
    case Phase::kWeightGrad:
      return weight_grad;
  }
  bug("unknown phase");
}

double ScheduleTimeline::idle_share(int stage) const {
  return makespan_seconds > 0
             ? 1 - stages[static_cast<size_t>(stage)].busy_seconds / makespan_seconds
             : 0;
}

double ScheduleTimeline::idle_share() const {
  double sum = 0;
  for (int stage = 0; stage < static_cast<int>(stages.size()); ++stage) sum += idle_share(stage);
  return stages.empty() ? 0 : sum / static_cast<double>(stages.size());
}

ScheduleTimeline simulate_timeline(const StageActions& lists, ChunkPlacement placement,
                                   const ActionSeconds& seconds, double transfer_seconds) {
  return TimelineSimulation(lists, placement, seconds, transfer_seconds).run();
}

ScheduleTimeline simulate_timeline(const StageActions& lists, ChunkPlacement placement,
                                   const std::vector<PhaseSeconds>& by_chunk,
                                   double transfer_seconds) {
  require(!lists.empty() && by_chunk.size() % lists.size() == 0,
          "a timeline has the seconds of stages x chunks model chunks");
  const auto stages = static_cast<int>(lists.size());
  ActionSeconds seconds(lists.size());
  for (int stage = 0; stage < stages; ++stage)
    for (const ScheduleAction& action : lists[static_cast<size_t>(stage)]) {
      const auto model_chunk =
          static_cast<size_t>(model_chunk_of(placement, stages, stage, action.chunk));
      seconds[static_cast<size_t>(stage)].push_back(
          by_chunk.at(model_chunk).seconds_of(action.phase));
    }
  return simulate_timeline(lists, placement, seconds, transfer_seconds);
}

std::vector<PhaseSeconds> equal_chunk_seconds(int model_chunks) {
  return std::vector<PhaseSeconds>(static_cast<size_t>(model_chunks), {1, 2, 1, 1});
}

int32_t max_in_flight(const std::vector<ScheduleAction>& list) {
  return max_unfinished(list, Phase::kWeightGrad);
}

int32_t max_awaiting_input_grad(const std::vector<ScheduleAction>& list) {
  return max_unfinished(list, Phase::kInputGrad);
}

}  // namespace ftrun
