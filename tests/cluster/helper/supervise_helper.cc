// supervise_helper RANKS PROGRAM ARGS... runs a supervisor in a separate process, to which tests
// send signals. The variable RESTARTS sets how often failed ranks are restarted, each time after a
// minute.
#include <cstdlib>
#include <string>
#include <vector>

#include "cluster/supervisor.h"
#include "exec_program.h"

int main(int argc, char** argv) {
  ftrun::SupervisorOptions options;
  options.local_ranks = std::atoi(argv[1]);
  options.rank_main = ftrun::testing::exec_program(argv[2]);
  options.arguments.assign(argv + 2, argv + argc);
  options.grace_period = std::chrono::milliseconds(400);
  if (const char* restarts = std::getenv("RESTARTS"))
    options.restarts = {.max_restarts_without_progress = std::atoi(restarts),
                        .first_delay = std::chrono::minutes(1)};
  return ftrun::run_supervisor(options);
}
