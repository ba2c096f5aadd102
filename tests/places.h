#pragma once

#include <string>

namespace ftrun::testing {

/// The checkout that these tests belong to. (A function, not a definition for the compiler: so that
/// what one checkout has compiled is found in the cache by another.)
std::string source_dir();

/// The build tree that these tests run in.
std::string binary_dir();

}  // namespace ftrun::testing
