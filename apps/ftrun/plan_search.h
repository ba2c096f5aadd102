#pragma once

#include <cstdint>
#include <string>

#include "config_source.h"
#include "machine/machine.h"
#include "plan_time.h"
#include "search/search.h"

namespace ftrun {

class JsonOutput;

/// SearchOptions holds the options of `ftrun plan --search`.
struct SearchOptions {
  ConfigSource source;
  TimeOptions time;
  int64_t nodes = 1;
  int64_t device_memory_bytes = 0;
  int64_t host_memory_bytes = 0;
  double seconds = 10;
  /// The new file for the config with the best layout; "" for none.
  std::string out;
  /// The file of the HTML page about the search; "" for none.
  std::string html;
};

/// Makes the search task of a source on a machine. The task has the batch of the source's config,
/// and leaves the layout open. A config that names no device uses the machine's kind of device.
/// Throws the errors of load_source().
SearchTask make_search_task(const SearchOptions& options, const Machine& machine);

/// Throws Error(kUsage) or Error(kEnvironment) if a search has found no layout. The error says why
/// layouts were refused, or which memory is too small and how many nodes would suffice.
void check_found_layout(const SearchTask& task, const SearchResult& result);

/// Returns the text of a config with the layout, preceded by the lines `reasons` as comments.
std::string config_with_layout(const SearchTask& task, const Layout& layout,
                               const std::vector<std::string>& reasons);

/// Searches for the fastest layout of a config on a machine. Prints it with the next best layouts
/// and with the reasons against common settings, and writes it to a file if requested. `requested`
/// is the machine of the options.
int search_plan(const SearchOptions& options, const RequestedMachine& requested,
                JsonOutput& output);

}  // namespace ftrun
