#include "training/step_time_comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/amount_text.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/machine_info.h"
#include "base/median.h"
#include "base/text.h"
#include "machine/machine_file.h"
#include "sim/step_trace.h"

namespace ftrun {
namespace {

constexpr int64_t kLeftOut = 2;
/// The difference between prediction and measurement, as a share, above which the part with the
/// largest deviation is named.
constexpr double kNotable = 0.15;
/// Parts that take less than this share of a step are not printed.
constexpr double kShown = 0.005;

int64_t microseconds(double seconds) {
  return std::llround(seconds * 1e6);
}

/// Says "9.9 % less" or "9.9 % more".
std::string difference_text(double predicted, double measured) {
  const double deviation = predicted / measured - 1;
  return cat(percent_text(std::abs(deviation), 1), deviation < 0 ? " less" : " more");
}

/// Describes the other work on the machine during the run. It can explain only a step that took
/// longer than predicted.
std::string load_text(bool took_longer, const CpuLoadShares& load) {
  constexpr double kMuch = 0.05;
  if (load.other_programs + load.stolen < kMuch)
    return "; other work took less than 5 % of the cores";
  std::vector<std::string> loads;
  if (load.other_programs >= kMuch / 2)
    loads.push_back(cat("other programs took ", percent_text(load.other_programs, 0)));
  if (load.stolen >= kMuch / 2)
    loads.push_back(cat("other machines took ", percent_text(load.stolen, 0)));
  return cat("; meanwhile ", join(loads, " and "), " of the cores",
             took_longer ? ", which explains some of it" : "");
}

/// Formats the events of the ranks of `timeline` whose class contains a traced rank.
std::string format_predicted_events(const StepTimeline& timeline, const RankClasses& classes,
                                    const std::vector<int>& traced_ranks) {
  TraceEvents events;
  for (const RankTimeline& rank : timeline.ranks)
    if (std::any_of(traced_ranks.begin(), traced_ranks.end(), [&](int traced_rank) {
          return classes.class_of(traced_rank) == classes.class_of(rank.rank);
        }))
      add_predicted_rank(events, rank);
  return events.text();
}

}  // namespace

PredictedStep predict_step_on_this_machine(const RankClassPlans& class_plans, int64_t ranks_here,
                                           int64_t threads, const std::vector<int>& traced_ranks) {
  const std::string path = own_machine_path();
  PredictedStep predicted;
  try {
    const std::optional<Machine> machine = read_own_machine(path);
    if (!machine) {
      predicted.unavailable_reason = "ftrun bench machine has not measured this machine";
    } else if (machine->cpu_model != read_machine_info().cpu_model ||
               machine->devices != count_usable_cores()) {
      predicted.unavailable_reason = cat(
          path,
          " describes another CPU or number of cores; run ftrun bench machine to measure this one");
    } else if (ranks_here != class_plans.classes().ranks()) {
      predicted.unavailable_reason = cat(path, " describes one machine, and the run uses several");
    } else {
      predicted.machine = cat(machine->name, ", measured ", machine->measured_on);
      StepTimeline timeline;
      predicted.time = predict_step(class_plans, *machine, {.nodes = 1, .threads = threads},
                                    traced_ranks.empty() ? nullptr : &timeline);
      predicted.events = format_predicted_events(timeline, class_plans.classes(), traced_ranks);
    }
  } catch (const std::exception& error) {
    predicted.unavailable_reason = first_line(error.what());
  }
  return predicted;
}

StepTimeComparison::StepTimeComparison(PredictedStep predicted) : predicted_(std::move(predicted)) {
  for (auto* seconds_of_steps : {&steps_, &layers_, &update_, &communication_, &stages_})
    seconds_of_steps->reserve(kMaxRecordedSteps);
}

void StepTimeComparison::add_step(const StepMetrics& metrics, const StepSeconds& seconds) {
  if (recorded_steps_++ < kLeftOut) return;
  const auto index = static_cast<size_t>((recorded_steps_ - kLeftOut - 1) %
                                         static_cast<int64_t>(kMaxRecordedSteps));
  const auto record = [&](std::vector<double>& seconds_of_steps, double value) {
    if (index == seconds_of_steps.size()) seconds_of_steps.push_back(value);
    seconds_of_steps[index] = value;
  };
  record(steps_, metrics.step_seconds - metrics.data_wait_seconds);
  record(layers_, seconds.layers);
  record(update_, seconds.update);
  record(communication_, metrics.exposed_communication_seconds.value_or(0));
  record(stages_, seconds.stage_wait);
}

void StepTimeComparison::average_over_stage(bool in_first_stage,
                                            const std::function<void(std::span<double>)>& sum) {
  const bool counts = in_first_stage && !steps_.empty();
  const MeasuredParts own = counts ? measured_parts() : MeasuredParts{};
  std::array<double, 5> sums{counts ? 1.0 : 0.0, own.layers, own.update, own.communication,
                             own.stages};
  sum(sums);
  if (sums[0] == 0) return;
  for (double& value : std::span(sums).subspan(1)) value /= sums[0];
  stage_mean_ = {.layers = sums[1], .update = sums[2], .communication = sums[3], .stages = sums[4]};
}

StepTimeComparison::MeasuredParts StepTimeComparison::measured_parts() const {
  if (stage_mean_) return *stage_mean_;
  return {.layers = median(layers_),
          .update = median(update_),
          .communication = median(communication_),
          .stages = median(stages_)};
}

/// Lists the parts of a step. The last part, the rest, is the time of the compute lane outside
/// layers and updates, and its waits for copies, for the disk and, at the end of the step, for
/// other ranks.
std::vector<StepTimeComparison::PartSeconds> StepTimeComparison::part_seconds() const {
  const StepTime& time = *predicted_.time;
  const MeasuredParts measured = measured_parts();
  constexpr auto& kNames = step_parts::kMeasured;
  const std::array<std::pair<double, double>, kNames.size()> predicted_and_measured{
      {{time.layer_seconds, measured.layers},
       {time.update_seconds, measured.update},
       {time.collective_wait_seconds, measured.communication},
       {time.pipeline_wait_seconds, measured.stages},
       {time.seconds, median(steps_)}}};
  std::vector<PartSeconds> parts;
  for (size_t i = 0; i < kNames.size(); ++i)
    parts.push_back({kNames[i], predicted_and_measured[i].first, predicted_and_measured[i].second});
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    parts.back().predicted -= parts[i].predicted;
    parts.back().measured -= parts[i].measured;
  }
  parts.back().predicted = std::max(0.0, parts.back().predicted);
  parts.back().measured = std::max(0.0, parts.back().measured);
  return parts;
}

std::string StepTimeComparison::text(const CpuLoadShares& load) const {
  if (steps_.empty()) return "";
  const double measured_seconds = median(steps_);
  const std::string measured_text = cat(seconds_text(measured_seconds), " measured (median of ",
                                        count_text(std::ssize(steps_), "step"), ")");
  if (!predicted_.time)
    return cat("time of a step: ", measured_text,
               "; not predicted: ", predicted_.unavailable_reason);
  const StepTime& time = *predicted_.time;
  std::string text =
      cat("time of a step: ", seconds_text(time.seconds), " predicted (", predicted_.machine, "), ",
          measured_text, ": ", difference_text(time.seconds, measured_seconds));
  const std::vector<PartSeconds> part_times = part_seconds();
  for (const PartSeconds& part : part_times)
    if (std::max(part.predicted, part.measured) >= kShown * measured_seconds)
      text += cat("\n  ", part.name.name, ": ", seconds_text(part.predicted), " predicted, ",
                  seconds_text(part.measured), " measured");
  if (std::abs(time.seconds - measured_seconds) > kNotable * measured_seconds) {
    const auto largest = std::max_element(
        part_times.begin(), part_times.end(), [](const PartSeconds& a, const PartSeconds& b) {
          return std::abs(a.predicted - a.measured) < std::abs(b.predicted - b.measured);
        });
    text += cat("\n  most of the difference is in: ", largest->name.name,
                load_text(measured_seconds > time.seconds, load));
  }
  return text;
}

std::map<std::string, std::map<std::string, int64_t>> StepTimeComparison::manifest_values(
    const CpuLoadShares& load) const {
  std::map<std::string, std::map<std::string, int64_t>> record;
  if (predicted_.time) {
    auto& predicted = record["predicted"];
    predicted[step_parts::kStep.key] = microseconds(predicted_.time->seconds);
    for (const PartSeconds& part : steps_.empty() ? std::vector<PartSeconds>{} : part_seconds())
      predicted[part.name.key] = microseconds(part.predicted);
  }
  if (steps_.empty()) return record;
  auto& measured = record["measured"];
  measured[step_parts::kStep.key] = microseconds(median(steps_));
  measured[step_parts::kCollectives.key] = microseconds(measured_parts().communication);
  if (!predicted_.time) return record;
  for (const PartSeconds& part : part_seconds())
    measured[part.name.key] = microseconds(part.measured);
  record["load"] = {{"others_per_million", std::llround(load.other_programs * 1e6)},
                    {"stolen_per_million", std::llround(load.stolen * 1e6)}};
  return record;
}

}  // namespace ftrun
