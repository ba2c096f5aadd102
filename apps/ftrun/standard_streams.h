#pragma once

#include <string>

namespace ftrun {

/// Opens /dev/null as each of descriptors 0 to 2 that the process was started without. Comes
/// before anything else is opened: a file would get the number, and what is printed would go into
/// it. Error(kEnvironment).
void open_standard_descriptors();

/// Flushes standard output. "", or why not all that was printed has been written; a reader that has
/// left (a closed pipe, a lost terminal) wanted no more of it, so that is none.
std::string output_problem();

}  // namespace ftrun
