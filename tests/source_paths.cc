#include "source_paths.h"

namespace ftrun::testing {

std::string source_dir() {
  return FTRUN_SOURCE_DIR;
}

std::string binary_dir() {
  return FTRUN_BINARY_DIR;
}

}  // namespace ftrun::testing
