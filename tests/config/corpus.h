#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// Returns the folder of real configs in the reference material (the need "reference").
std::string corpus_folder();

/// Returns the names of the files in it that have one of these extensions, sorted.
std::vector<std::string> corpus_files(const std::vector<std::string>& extensions);

/// Compares `text` with a file below tests/config; with FTRUN_UPDATE_GOLDENS set, writes the file.
/// Returns the difference, or "".
std::string compare_golden(const std::string& path, const std::string& text);

}  // namespace ftrun
