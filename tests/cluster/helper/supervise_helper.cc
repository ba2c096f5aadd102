// supervise_helper RANKS PROGRAM ARGS...: a supervisor in a process of its own, to be signalled.
#include <cstdlib>
#include <string>
#include <vector>

#include "cluster/supervisor.h"

int main(int argc, char** argv) {
  ftrun::SupervisorOptions options;
  options.local_ranks = std::atoi(argv[1]);
  options.program = argv[2];
  options.arguments.assign(argv + 2, argv + argc);
  options.grace = std::chrono::milliseconds(400);
  return ftrun::run_supervisor(options);
}
