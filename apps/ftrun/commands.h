#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ftrun {

class JsonOutput;

/// Runs the program without ending the process: reads the arguments (the first is the program's own
/// name), runs the command, and reports an error. Returns the exit code. The process of a rank also
/// runs this function, whether the supervisor or a launcher started it.
int run_arguments(const std::vector<std::string>& arguments);

/// Command is a function that runs a command after its options were read; it returns the exit code
/// or throws an Error.
using Command = std::function<int()>;

// The functions below add a subcommand each to the application, and return the function that runs
// it. (The command train is the application itself.) Commands with a JsonOutput add their results
// to it. add_train() needs the arguments of the process, because it starts ranks with the same
// arguments.
Command add_train(CLI::App& app, const std::vector<std::string>& arguments);
Command add_check(CLI::App& app, JsonOutput& output);
Command add_plan(CLI::App& app, JsonOutput& output);
Command add_bench(CLI::App& app);
Command add_init(CLI::App& app);
Command add_schema(CLI::App& app);
Command add_inspect(CLI::App& app, JsonOutput& output);
Command add_report(CLI::App& app);
Command add_convert(CLI::App& app, JsonOutput& output);
Command add_verify(CLI::App& app, JsonOutput& output);

}  // namespace ftrun
