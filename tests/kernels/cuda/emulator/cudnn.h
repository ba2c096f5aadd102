#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// The emulated cuDNN's settings and records for tests.
namespace ftrun::emulator {

struct Engine {
  std::vector<int> notes;
  /// The status of its plans, if not 0.
  int refuses = 0;
};

struct Cudnn {
  size_t version = 91900;
  /// The engines in the order in which cuDNN would name them.
  std::vector<Engine> engines = {{}};
  int64_t workspace_bytes = 4096;
  /// The status of each run, if not 0.
  int execution = 0;
  /// Descriptors that were made and not destroyed.
  int64_t descriptors = 0;
  int64_t handles = 0;
  /// Operations of the graphs that were run, in order: "matmul", "pointwise 9",
  /// "reduction 3", "reshape".
  std::vector<std::string> ran;
  /// The engine of the last run.
  size_t engine = 0;
};
Cudnn& cudnn();

}  // namespace ftrun::emulator
