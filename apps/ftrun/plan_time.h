#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config_source.h"
#include "machine/machine.h"
#include "sim/step_time.h"

namespace CLI {
class App;
}

namespace ftrun {

class JsonOutput;

/// TimeOptions holds the options about the time of a step on another machine.
struct TimeOptions {
  /// The path of a machine file; "" for none.
  std::string machine;
  /// The path of a file with the rates of another program; "" for none.
  std::string stack;
  /// The texts given with --slow, --network and --price.
  std::vector<std::string> slow;
  std::string network;
  std::string price;
};

/// RequestedMachine is the machine for which a plan is made.
struct RequestedMachine {
  Machine machine;
  /// The machine as its file describes it, without the assumptions of --slow and --network, which
  /// `slow_ranks` and `what_if_text` hold ("" for none).
  Machine unmodified_machine;
  std::vector<SlowRank> slow_ranks;
  std::string what_if_text;
};

/// Adds --slow, --network and --price to a command that has --machine.
void add_time_options(CLI::App& command, TimeOptions& options);

/// Reads the machine that the options name, and applies their assumptions. Throws Error(kUsage) for
/// an invalid option.
RequestedMachine read_requested_machine(const TimeOptions& options, int64_t nodes);

/// PageWriter is a function that writes the HTML page about a step; `text` is the printed text
/// about the step's time.
using PageWriter = std::function<void(const StepTimeline& timeline, const std::string& text)>;

/// Prints the time of a step and of the run on the machine `requested`, or the reason why it is not
/// known, and adds it to `output`. `plan` may be the plan of any rank. The timeline of the step is
/// written to a new file `trace` (unless it is ""), and passed to `write_page` (unless it is null).
void print_time(const LoadedConfig& loaded, const RequestedMachine& requested, int64_t nodes,
                const std::string& trace, const PageWriter& write_page,
                const RankClassPlans& class_plans, const StepPlan& plan, JsonOutput& output);

}  // namespace ftrun
