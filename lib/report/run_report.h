#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// Makes one HTML page of one or several runs that needs nothing else, no network either: losses,
/// evaluations, rates, times, memory, texts that the model wrote, warnings and configuration, from
/// what lies in the run folders. Lines that cannot be read are passed over, and the page says how
/// many. Error(kBadInput) for a folder without a run.
std::string run_report(const std::vector<std::string>& run_folders);

/// Writes the page to `path` as a whole. Error(kUsage) where something lies there that is not a
/// report of ours, which stays as it is.
void write_run_report(const std::string& path, const std::vector<std::string>& run_folders);

}  // namespace ftrun
