#include "training/step_times.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/median.h"
#include "base/processors.h"
#include "base/text.h"
#include "machine/machine_file.h"
#include "report/machine.h"

namespace ftrun {
namespace {

constexpr int64_t kLeftOut = 2;
/// A difference beyond which the part that is off most is named.
constexpr double kNotable = 0.15;

int64_t microseconds(double seconds) {
  return std::llround(seconds * 1e6);
}

/// Says "9.9 % less" or "9.9 % more".
std::string difference_text(double predicted, double measured) {
  const double off = predicted / measured - 1;
  return cat(percent_text(std::abs(off), 1), off < 0 ? " less" : " more");
}

}  // namespace

PredictedStep predict_here(const ClassPlans& all, int64_t ranks_here, int64_t threads) {
  const std::string path = own_machine_path();
  PredictedStep predicted;
  try {
    const std::optional<Machine> machine = own_machine(path);
    if (!machine) {
      predicted.why_not = "ftrun bench machine has not measured this machine";
    } else if (machine->processor != read_machine().cpu_model ||
               machine->devices != usable_processors()) {
      predicted.why_not = cat(path, " is of other processors: ftrun bench machine measures these");
    } else if (ranks_here != all.classes().ranks()) {
      predicted.why_not = cat(path, " knows one machine, and the run has several");
    } else {
      predicted.machine = cat(machine->name, ", measured ", machine->measured);
      predicted.time = predict_step(all, *machine, {.nodes = 1, .threads = threads});
    }
  } catch (const std::exception& error) {
    predicted.why_not = first_line(error.what());
  }
  return predicted;
}

StepTimes::StepTimes(PredictedStep predicted) : predicted_(std::move(predicted)) {
  steps_.reserve(kKept);
  communication_.reserve(kKept);
}

void StepTimes::note(const StepMetrics& metrics) {
  if (noted_++ < kLeftOut) return;
  const double whole = metrics.step_seconds - metrics.data_wait_seconds;
  const double communication = metrics.exposed_communication_seconds.value_or(0);
  if (steps_.size() < kKept) {
    steps_.push_back(whole);
    communication_.push_back(communication);
    return;
  }
  const auto place = static_cast<size_t>((noted_ - kLeftOut - 1) % static_cast<int64_t>(kKept));
  steps_[place] = whole;
  communication_[place] = communication;
}

std::string StepTimes::text() const {
  if (steps_.empty()) return "";
  const double measured = median(steps_), waited = median(communication_);
  const std::string found =
      cat(format_number("%.4g", measured), " s measured (median of ", steps_.size(), " steps)");
  if (!predicted_.time)
    return cat("time of a step: ", found, "; not predicted: ", predicted_.why_not);
  const StepTime& time = *predicted_.time;
  std::string text =
      cat("time of a step: ", format_number("%.4g", time.seconds), " s predicted (",
          predicted_.machine, "), ", found, ": ", difference_text(time.seconds, measured));
  if (time.communication > 0 || waited > 0)
    text += cat("\n  waits for collectives: ", format_number("%.4g", time.communication),
                " s predicted, ", format_number("%.4g", waited), " s measured");
  const double off = std::abs(time.seconds - measured),
               off_waits = std::abs(time.communication - waited);
  // Waits for stages, copies and the disk are not measured apart, so no part is named beside them.
  const bool is_known = time.stages == 0 && time.copies == 0 && time.disk == 0;
  if (is_known && off > kNotable * measured)
    text += cat("\n  most of the difference is in ",
                2 * off_waits > off ? "waits for collectives" : "what compute does");
  return text;
}

std::map<std::string, std::map<std::string, int64_t>> StepTimes::record() const {
  std::map<std::string, std::map<std::string, int64_t>> record;
  if (predicted_.time)
    record["predicted"] = {{"step", microseconds(predicted_.time->seconds)},
                           {"exposed_communication", microseconds(predicted_.time->communication)},
                           {"other_stages", microseconds(predicted_.time->stages)},
                           {"update", microseconds(predicted_.time->update)}};
  if (!steps_.empty())
    record["measured"] = {{"step", microseconds(median(steps_))},
                          {"exposed_communication", microseconds(median(communication_))}};
  return record;
}

}  // namespace ftrun
