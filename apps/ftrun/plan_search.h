#pragma once

#include <cstdint>
#include <string>

#include "config_source.h"
#include "machine/machine.h"
#include "plan_time.h"
#include "search/search.h"

namespace ftrun {

class Answer;

/// SearchOptions are the options of `ftrun plan --search`.
struct SearchOptions {
  ConfigSource source;
  TimeOptions time;
  int64_t nodes = 1;
  int64_t device_memory = 0;
  int64_t host_memory = 0;
  double seconds = 10;
  /// A new file for the layout that was found; "" for none.
  std::string out;
  /// The file that a page of what was found is written to; "" for none.
  std::string html;
};

/// Makes the task of a source on a machine: the batch of its config, with all of its layout open. A
/// config that leaves the device open computes on the machine's. Errors of load_source().
SearchTask search_task(const SearchOptions& options, const Machine& machine);

/// Throws Error(kUsage, kEnvironment) where a search has found no layout: what was refused, or what
/// is short and how many nodes would do.
void require_choice(const SearchTask& task, const SearchResult& result);

/// Returns the text of a config with the layout found for it, with the lines `why` as comments
/// before it.
std::string searched_config(const SearchTask& task, const Layout& layout,
                            const std::vector<std::string>& why);

/// Searches the fastest layout of a config on a machine. Prints it with the next ones and the
/// obstacles to plain choices, and writes it to a file if asked. `asked` is the machine that the
/// options name.
int search_plan(const SearchOptions& options, const AskedMachine& asked, Answer& answer);

}  // namespace ftrun
