#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// Makes one HTML page of one or several runs that needs no other file and no network: losses,
/// evaluations, rates, times, memory, texts that the model wrote, warnings and configuration, from
/// the files in the run folders. Lines that cannot be read are skipped, and the page says how many.
/// Error(kBadInput) for a folder without a run.
std::string run_report(const std::vector<std::string>& run_folders);

/// Writes the page to `path` as a whole. Throws Error(kUsage) if a file other than one of our
/// reports is there, and leaves it unchanged.
void write_run_report(const std::string& path, const std::vector<std::string>& run_folders);

}  // namespace ftrun
