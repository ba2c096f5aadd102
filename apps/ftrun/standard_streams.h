#pragma once

#include <string>

namespace ftrun {

/// Opens /dev/null for each of descriptors 0 to 2 that was closed when the process started. Call it
/// before anything else is opened: otherwise a file could get such a number, and printed text would
/// be written into it. Throws Error(kEnvironment).
void open_standard_descriptors();

/// Flushes standard output. Returns the reason why not all printed text was written, or "". A
/// reader that has gone (a closed pipe, a lost terminal) needs no more text, so this is not a
/// problem.
std::string output_problem();

}  // namespace ftrun
