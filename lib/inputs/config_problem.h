#pragma once

#include <string>

#include "base/error.h"
#include "config/config.h"
#include "config/problem.h"

namespace ftrun {

/// Makes a notice at the position where a key's request is written.
Problem notice_about(const Origins& origins, const std::string& key, std::string message,
                     std::string remedy = "");

/// Makes a problem at a position of the config from the error that the value there causes.
Problem problem_at(Position at, const Error& error);

}  // namespace ftrun
