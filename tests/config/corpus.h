#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// Returns the folder of real configs beside the checkout (the need "reference").
std::string corpus_folder();

/// Returns the names of its files with one of the extensions, sorted.
std::vector<std::string> corpus_files(const std::vector<std::string>& extensions);

/// Compares `text` with the file tests/config/NAME; with FTRUN_UPDATE_GOLDENS set, writes it.
/// Returns the difference, or "".
std::string compare_golden(const std::string& path, const std::string& text);

}  // namespace ftrun
