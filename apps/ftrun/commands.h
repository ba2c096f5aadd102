#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ftrun {

class Answer;

/// Does everything that main does except ending the process: reads the arguments (the program's own
/// name first), runs the command, reports an error. Returns the exit code. A rank's process runs
/// only this, whether the supervisor or a launcher starts it.
int run_arguments(const std::vector<std::string>& arguments);

/// Command runs a command after its options were read; returns the exit code or throws Error.
using Command = std::function<int()>;

// Functions that add a subcommand to the application (train also as the application itself) and
// return what to run when it was chosen. Those with an Answer fill it for programs that ask with
// --json. The arguments of the process are needed to start ranks with them.
Command add_train(CLI::App& app, const std::vector<std::string>& arguments);
Command add_check(CLI::App& app, Answer& answer);
Command add_plan(CLI::App& app, Answer& answer);
Command add_bench(CLI::App& app);
Command add_init(CLI::App& app);
Command add_schema(CLI::App& app);
Command add_inspect(CLI::App& app, Answer& answer);
Command add_report(CLI::App& app);
Command add_convert(CLI::App& app, Answer& answer);
Command add_verify(CLI::App& app, Answer& answer);

}  // namespace ftrun
