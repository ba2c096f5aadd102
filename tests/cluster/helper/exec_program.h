#pragma once

#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

namespace ftrun::testing {

/// A rank's main (SupervisorOptions::rank_main) that becomes another program.
inline std::function<int(const std::vector<std::string>&)> exec_program(std::string program) {
  return [program = std::move(program)](std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(program.c_str(), argv.data());
    return 127;
  };
}

}  // namespace ftrun::testing
