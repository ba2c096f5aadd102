#include "training/stop_lead.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr const char* kLeadCounter = "stop_lead_milliseconds";
constexpr const char* kStepCounter = "longest_step_milliseconds";
constexpr const char* kSaveCounter = "longest_save_milliseconds";
/// Costs that have grown by less than this factor are not reported again. They are written to
/// run.json only if they have also grown by kNotableSeconds.
constexpr double kNotableFactor = 1.1;
constexpr double kNotableSeconds = 0.05;

int64_t round_up_to_milliseconds(double seconds) {
  return std::llround(std::ceil(seconds * 1e3));
}

double counter_seconds(const std::map<std::string, int64_t>& counters, const char* name) {
  const auto counter = counters.find(name);
  return counter == counters.end() ? 0 : 1e-3 * static_cast<double>(counter->second);
}

bool is_notable_increase(double new_seconds, double old_seconds) {
  return new_seconds > kNotableFactor * old_seconds && new_seconds > old_seconds + kNotableSeconds;
}

/// Returns the text "75.5 s". It never uses minutes, so that a reader can check the sum.
std::string tenths_text(double seconds) {
  return fixed_text(seconds, 1) + " s";
}

/// Returns the text "2 x 3.1 s (longest step) + 4.0 s (longest save) = 10.2 s".
std::string stop_duration_text(const StopCosts& costs) {
  std::string text = cat(StopCosts::kAwaitedSteps, " x ", tenths_text(costs.longest_step_seconds),
                         " (longest step)");
  if (costs.longest_save_seconds > 0)
    text += cat(
        " + ", costs.awaited_saves() > 1 ? cat(costs.awaited_saves(), " x ") : "",
        tenths_text(costs.longest_save_seconds),
        costs.saves_in_background ? " (longest save; one may be under way)" : " (longest save)");
  text += cat(" = ", tenths_text(costs.longest_stop_seconds()));
  if (costs.longest_save_seconds == 0) text += " plus a save, whose time has not been measured yet";
  return text;
}

}  // namespace

StopLead::StopLead(double lead_seconds, bool saves_in_background) : lead_seconds_(lead_seconds) {
  costs_.saves_in_background = saves_in_background;
}

void StopLead::read_counters(const std::map<std::string, int64_t>& counters) {
  if (lead_seconds_ == 0) lead_seconds_ = counter_seconds(counters, kLeadCounter);
  add_step_time(counter_seconds(counters, kStepCounter));
  add_save_time(counter_seconds(counters, kSaveCounter));
}

void StopLead::write_counters(std::map<std::string, int64_t>& counters) const {
  if (lead_seconds_ > 0) counters[kLeadCounter] = round_up_to_milliseconds(lead_seconds_);
  if (costs_.longest_step_seconds > 0)
    counters[kStepCounter] = round_up_to_milliseconds(costs_.longest_step_seconds);
  if (costs_.longest_save_seconds > 0)
    counters[kSaveCounter] = round_up_to_milliseconds(costs_.longest_save_seconds);
}

bool StopLead::has_grown() const {
  return is_notable_increase(costs_.longest_step_seconds, written_costs_.longest_step_seconds) ||
         is_notable_increase(costs_.longest_save_seconds, written_costs_.longest_save_seconds);
}

void StopLead::add_step_time(double seconds) {
  costs_.longest_step_seconds = std::max(costs_.longest_step_seconds, seconds);
}

void StopLead::add_save_time(double seconds) {
  costs_.longest_save_seconds = std::max(costs_.longest_save_seconds, seconds);
}

std::string StopLead::new_warning() {
  const double needed_seconds = costs_.longest_stop_seconds();
  if (lead_seconds_ == 0 || needed_seconds <= lead_seconds_ ||
      needed_seconds <= kNotableFactor * warned_seconds_)
    return "";
  warned_seconds_ = needed_seconds;
  return cat("--stop-lead ", tenths_text(lead_seconds_), " is too short: a stop may take ",
             stop_duration_text(costs_),
             "\n  remedy: have the scheduler send its signal earlier, at least ",
             std::llround(std::ceil(needed_seconds)),
             " s before it kills (sbatch --signal=B:USR1@SECONDS, and --stop-lead the same), or "
             "make steps shorter (gradient_accumulation_steps)");
}

}  // namespace ftrun
