#pragma once

#include <string>
#include <vector>

#include "config/load.h"
#include "config/resolve.h"

namespace ftrun {

/// Returns the texts of problems, in order.
std::vector<std::string> problem_texts(const std::vector<Problem>& problems);

/// Returns the problems of a config text that is read under this name.
std::vector<std::string> problems_of(const std::string& name, const std::string& text,
                                     const std::vector<std::string>& overrides = {});

/// Returns the config written in a text; fails the test if it has errors.
WrittenConfig written_of(const std::string& text, const std::vector<std::string>& overrides = {},
                         const std::string& name = "c.yaml");

/// Returns the values in a text, with the defaults of other keys, before anything is resolved.
Config config_of(const std::string& text, const std::vector<std::string>& overrides = {},
                 const std::string& name = "c.yaml");

using Lines = std::vector<std::string>;

}  // namespace ftrun
