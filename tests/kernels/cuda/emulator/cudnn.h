#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// This header holds the emulated cuDNN's settings and records for tests.
namespace ftrun::emulator {

struct Engine {
  std::vector<int> notes;
  /// The status of plans with this engine; 0: success.
  int refuses = 0;
};

struct Cudnn {
  size_t version = 91900;
  /// The engines, in the order in which cuDNN would list them.
  std::vector<Engine> engines = {{}};
  int64_t workspace_bytes = 4096;
  /// The status of each execution; 0: success.
  int execution = 0;
  /// The number of descriptors that were created and not destroyed.
  int64_t descriptors = 0;
  int64_t handles = 0;
  /// The operations of the graphs that were run, in order: "matmul", "pointwise 9", "reduction 3",
  /// "reshape".
  std::vector<std::string> ran;
  /// The engine of the last execution.
  size_t engine = 0;
};
Cudnn& cudnn();

}  // namespace ftrun::emulator
