#pragma once

#include <string>

namespace ftrun::testing {

/// Returns the checkout that these tests belong to. (A function, not a definition for the compiler,
/// so that another checkout finds in the cache what one has compiled.)
std::string source_dir();

/// Returns the build tree that these tests run in.
std::string binary_dir();

}  // namespace ftrun::testing
