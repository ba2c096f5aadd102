#include "report/effective_time.h"

#include <algorithm>
#include <cmath>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr const char* kFirstStart = "first_start_unix_milliseconds";

int64_t in_thousandths(double value) {
  return static_cast<int64_t>(std::llround(value * 1e3));
}

/// Returns the text ", with 2 ranks (removed: ranks 1, 3)".
std::string fewer_ranks_text(const RanksOfStart& start) {
  if (start.removed_ranks.empty()) return "";
  return cat(", with ", count_text(start.count, "rank"),
             " (removed: ", rank_list(start.removed_ranks), ")");
}

}  // namespace

void record_first_start(RunManifest& manifest, double unix_seconds) {
  manifest.counters.try_emplace(kFirstStart, in_thousandths(unix_seconds));
}

EffectiveTime record_effective_time(RunManifest& manifest, const std::vector<StepMetrics>& metrics,
                                    double unix_seconds) {
  EffectiveTime time;
  for (const StepMetrics& step : metrics) time.steps_seconds += step.step_seconds;
  record_first_start(manifest, unix_seconds);
  time.total_seconds = unix_seconds - static_cast<double>(manifest.counters[kFirstStart]) * 1e-3;
  manifest.counters["counted_steps_milliseconds"] = in_thousandths(time.steps_seconds);
  manifest.counters["since_first_start_milliseconds"] = in_thousandths(time.total_seconds);
  manifest.counters["effective_training_time_per_million"] =
      static_cast<int64_t>(std::llround(time.ratio() * 1e6));
  return time;
}

std::string effective_time_text(const EffectiveTime& time) {
  return cat("effective training time: ", percent_text(time.ratio(), 1), " of ",
             human_seconds(time.total_seconds), " since the first start (",
             human_seconds(time.steps_seconds), " in steps that counted)");
}

std::vector<std::string> restart_texts(const RunManifest& manifest, int64_t count) {
  std::vector<std::string> texts;
  const auto all = static_cast<int64_t>(manifest.restarts.size());
  for (int64_t i = std::max<int64_t>(0, all - count); i < all; ++i) {
    const RestartRecord& restart = manifest.restarts[static_cast<size_t>(i)];
    texts.push_back(cat("restarted at ", restart.time, " after step ", restart.from_step,
                        ", from step ", restart.to_step, fewer_ranks_text(restart.ranks),
                        restart.rank >= 0 ? cat(": rank ", restart.rank) : "", ": ",
                        first_line(restart.reason)));
  }
  return texts;
}

}  // namespace ftrun
