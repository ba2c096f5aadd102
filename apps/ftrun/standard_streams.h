#pragma once

#include <string>

namespace ftrun {

/// Opens /dev/null for each of the descriptors 0 to 2 that was closed when the process started.
/// Must be called before any file is opened: otherwise a file could get such a descriptor, and
/// printed text would be written to it. Throws Error(kEnvironment).
void open_standard_descriptors();

/// Flushes standard output. Returns the reason why not all printed text was written, or "". It is
/// not a problem if the reader has gone (a closed pipe, a lost terminal), because it needs no more
/// text.
std::string output_problem();

}  // namespace ftrun
