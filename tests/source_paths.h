#pragma once

#include <string>

namespace ftrun::testing {

/// Returns the checkout to which these tests belong. It is a function and not a compiler
/// definition, so that another checkout can use this one's compiler cache.
std::string source_dir();

/// Returns the build tree in which these tests run.
std::string binary_dir();

}  // namespace ftrun::testing
