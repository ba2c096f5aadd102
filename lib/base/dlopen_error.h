#pragma once

#include <string_view>

namespace ftrun {

/// Returns whether dlopen failed because memory ran out; `error` is dlerror's text.
inline bool dlopen_ran_out_of_memory(std::string_view error) {
  return error.find("failed to map segment") != error.npos ||
         error.find("cannot allocate") != error.npos || error.find("Cannot allocate") != error.npos;
}

}  // namespace ftrun
