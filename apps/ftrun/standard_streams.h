#pragma once

#include <string>

namespace ftrun {

/// Opens /dev/null as each of descriptors 0 to 2 that the process was started without. Call it
/// before anything else is opened: otherwise a file gets the number, and printed text goes into it.
/// Error(kEnvironment).
void open_standard_descriptors();

/// Flushes standard output. Returns why not all printed text was written, or "". A reader that has
/// left (a closed pipe, a lost terminal) wanted no more of it, so that is not a problem.
std::string output_problem();

}  // namespace ftrun
