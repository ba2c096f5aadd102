#pragma once

#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "base/exec_arguments.h"

namespace ftrun::testing {

/// Returns a rank's main function (SupervisorOptions::rank_main) that executes another program.
inline std::function<int(const std::vector<std::string>&)> exec_program(std::string program) {
  return [program = std::move(program)](const std::vector<std::string>& arguments) {
    ::execv(program.c_str(), exec_arguments(arguments).data());
    return 127;
  };
}

}  // namespace ftrun::testing
