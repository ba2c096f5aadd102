#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// Makes an HTML page of one or several runs from the files in the run folders. The page shows
/// losses, evaluations, rates, times, memory, text samples of the model, warnings and
/// configuration, and needs no other file and no network. Lines that cannot be read are skipped,
/// and the page says how many. Error(kBadInput) for a folder without a run.
std::string run_report(const std::vector<std::string>& run_folders);

/// Writes the page to `path`, replacing an older report as a whole. If `path` exists and is not a
/// report, throws Error(kUsage) and leaves the file unchanged.
void write_run_report(const std::string& path, const std::vector<std::string>& run_folders);

}  // namespace ftrun
