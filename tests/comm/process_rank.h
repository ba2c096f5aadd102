#pragma once

#include <chrono>
#include <string>

namespace ftrun {

struct ProcessRank {
  int rank = 0;
  int world_size = 1;
  int port = 0;
  std::string backend;
  std::chrono::milliseconds timeout{};
  /// The name of a scenario; process_rank.cc lists them.
  std::string scenario;
};

/// Runs the rank to its end; returns the exit code of its process.
int run_process_rank(const ProcessRank& rank);

}  // namespace ftrun
