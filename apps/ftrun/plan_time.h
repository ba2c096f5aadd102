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

class Answer;

/// TimeOptions ask about the time of a step on another machine.
struct TimeOptions {
  /// The path of a machine file; "" for none.
  std::string machine;
  /// The path of a file of another program's rates; "" for none.
  std::string stack;
  /// The texts given with --slow, --network and --price.
  std::vector<std::string> slow;
  std::string network;
  std::string price;
};

/// AskedMachine is the machine that a plan is for.
struct AskedMachine {
  Machine machine;
  /// The machine as its file describes it, and the assumed differences ("" for none).
  Machine as_filed;
  std::vector<SlowRank> slow;
  std::string what_if;
};

/// Adds --slow, --network and --price to a command that has --machine.
void add_time_options(CLI::App& command, TimeOptions& options);

/// Reads the machine that options name, with what they assume of it. Error(kUsage) where one of
/// them is wrong.
AskedMachine asked_machine(const TimeOptions& options, int64_t nodes);

/// PageWriter writes a page of a step; `text` is the text that is printed about its time.
using PageWriter = std::function<void(const StepRecord& record, const std::string& text)>;

/// Prints and answers the time of a step, and of the run, on the machine that is asked about, or
/// why it is not known. `plan` is any rank's. The step over time is written to a new file `trace`
/// ("": none) and passed to `write_page` (null: nobody).
void print_time(const LoadedConfig& loaded, const AskedMachine& asked, int64_t nodes,
                const std::string& trace, const PageWriter& write_page, const ClassPlans& all,
                const StepPlan& plan, Answer& answer);

}  // namespace ftrun
