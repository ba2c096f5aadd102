#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ftrun {

/// StopCosts holds the measured durations, in seconds, for which a stop has to wait.
struct StopCosts {
  double longest_step_seconds = 0;
  /// The longest save, including the comparison of replicas before it.
  double longest_save_seconds = 0;
  /// Says whether a save in the background may be in progress when the signal arrives; a stop
  /// finishes it first.
  bool saves_in_background = false;

  /// The maximum number of steps for which a stop waits. If the signal arrives just after the rank
  /// has sent its flags, these are the current step and the next one.
  static constexpr int kAwaitedSteps = 2;
  int awaited_saves() const { return saves_in_background ? 2 : 1; }
  /// Returns the longest time from a signal to the end of the save that follows it.
  double longest_stop_seconds() const {
    return kAwaitedSteps * longest_step_seconds + awaited_saves() * longest_save_seconds;
  }
};

/// StopLead compares the lead, which is the time between a scheduler's warning signal and its kill
/// (`--stop-lead`), with the time that a stop may take. It keeps its measurements in the counters
/// of run.json for later starts.
class StopLead {
 public:
  /// Sets the lead in seconds; 0 if none was given.
  StopLead(double lead_seconds, bool saves_in_background);

  /// Reads the measurements of an earlier start of the run from its counters, and its lead if this
  /// start has none.
  void read_counters(const std::map<std::string, int64_t>& counters);
  /// Writes the lead and the costs, rounded up to milliseconds.
  void write_counters(std::map<std::string, int64_t>& counters) const;
  /// Returns whether a cost has grown by more than a tenth, and by more than 50 ms, since
  /// mark_costs_written().
  bool has_grown() const;
  void mark_costs_written() { written_costs_ = costs_; }

  void add_step_time(double seconds);
  void add_save_time(double seconds);

  /// Returns a warning, with the calculation, that the lead is too short. Returns "" if the lead is
  /// long enough or was not given, or if the warning was given already for costs that were not much
  /// smaller.
  std::string new_warning();

  double lead_seconds() const { return lead_seconds_; }
  const StopCosts& costs() const { return costs_; }

 private:
  double lead_seconds_;
  StopCosts costs_;
  StopCosts written_costs_;
  /// The seconds that the last warning stated.
  double warned_seconds_ = 0;
};

}  // namespace ftrun
