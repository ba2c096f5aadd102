#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ftrun {

class Answer;

/// Runs the program without ending the process: reads the arguments (the first is the program's own
/// name), runs the command, and reports an error. Returns the exit code. A rank's process runs only
/// this function, whether the supervisor or a launcher starts it.
int run_arguments(const std::vector<std::string>& arguments);

/// Command runs a command after its options were read; it returns the exit code or throws Error.
using Command = std::function<int()>;

// The functions below each add a subcommand to the application (train also as the application
// itself) and return the function to run when the user chose it. Functions with an Answer fill it
// for --json. The arguments of the process are needed to start ranks with the same ones.
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
