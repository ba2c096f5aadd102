#include <CLI/CLI.hpp>

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/as_error.h"
#include "base/error.h"
#include "base/launch_variables.h"
#include "base/log.h"
#include "base/open_library.h"
#include "base/text.h"
#include "base/utf8.h"
#include "base/write_whole.h"
#include "build_info.h"
#include "cluster/failure_report.h"
#include "commands.h"
#include "engine.h"
#include "json_output.h"
#include "shell_files.h"
#include "standard_streams.h"

namespace ftrun {
namespace {

/// Reports an exception and returns its exit code. A rank under the supervisor does not print it,
/// because the supervisor shows the earliest failure of its ranks.
int report_exception(const std::exception& exception) {
  const Error error = as_error(exception);
  const char* rank = std::getenv("RANK");
  report_failure(make_failure_report(rank != nullptr ? std::atoi(rank) : 0, exception, error));
  if (std::getenv(launch_variables::kStatusFd) == nullptr)
    write_whole(STDERR_FILENO, cat("ftrun: ", terminal_text(error.what()), "\n"));
  return static_cast<int>(error.code());
}

bool is_config_name(const std::string& argument) {
  const std::string end = std::filesystem::path(argument).extension().string();
  return end == ".yaml" || end == ".yml" || end == ".json";
}

/// Returns `code`, the exit code of a command whose only result is its output. Throws
/// Error(kEnvironment) if `code` is 0 and not all output could be printed.
int require_output_printed(int code) {
  if (code != 0) return code;
  const std::string problem = output_problem();
  if (!problem.empty())
    throw Error(ExitCode::kEnvironment, problem,
                "free space on the disk of the output, or redirect the output to another file");
  return 0;
}

/// Warns if not all output could be printed. For training this is no failure, because the results
/// are in the run folder.
int warn_about_output(int code) {
  const std::string problem = output_problem();
  if (!problem.empty()) log_warning(problem);
  return code;
}

bool is_option(const std::string& argument) {
  return argument.size() > 1 && argument[0] == '-' && argument != "--";
}

/// Refuses an unknown option and names the nearest one: "--confg=mine.yaml" for --config.
[[noreturn]] void refuse_option(const CLI::App& command, const std::string& argument) {
  const std::string option = argument.substr(0, argument.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* known : command.get_options())
    for (const std::string& name : known->get_lnames()) names.push_back("--" + name);
  throw Error(ExitCode::kUsage,
              cat("the option ", option, " is unknown", did_you_mean(closest_match(option, names))),
              cat("list the options with: ftrun ",
                  command.get_parent() == nullptr ? "" : command.get_name() + " ", "--help"));
}

/// Refuses an unknown command whose name is similar to that of a command: "chek" for check. Does
/// nothing if no name is similar.
void refuse_mistyped_command(const CLI::App& app, const std::string& argument) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  const std::string near = closest_match(argument, commands);
  if (near.empty()) return;
  throw Error(ExitCode::kUsage, cat("the command ", argument, " is unknown", did_you_mean(near)),
              "list the commands with: ftrun --help");
}

/// Handles arguments that cannot be parsed: refuses an unknown command or option, and a config file
/// without --config, and says what to write instead. CLI11 reports all other errors, and prints
/// help and version. Returns the exit code.
int handle_parse_error(const CLI::App& app, const CLI::ParseError& error, JsonOutput& output) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const auto subcommands = app.get_subcommands();
    const std::vector<std::string> unknown = app.remaining(true);
    if (const auto option = std::find_if(unknown.begin(), unknown.end(), is_option);
        option != unknown.end())
      refuse_option(subcommands.empty() ? app : *subcommands.front(), *option);
    if (const auto config = std::find_if(unknown.begin(), unknown.end(), is_config_name);
        config != unknown.end())
      throw Error(ExitCode::kUsage, cat("the argument ", *config, " was not expected"),
                  cat("give it as --config ", *config));
    if (subcommands.empty() && !unknown.empty()) refuse_mistyped_command(app, unknown.front());
  }
  const bool is_help = error.get_exit_code() == 0;
  if (output.is_requested() && !is_help)
    throw Error(ExitCode::kUsage, error.what(), "list commands and options with: ftrun --help");
  output.print_text_instead();
  const int code = app.exit(error);
  return code == 0 ? require_output_printed(0) : static_cast<int>(ExitCode::kUsage);
}

/// Refuses options in front of the command, because the command would not get them.
void refuse_options_before(const CLI::App& app, const CLI::App& command) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    throw Error(
        ExitCode::kUsage,
        cat("the option ", option->get_name(), " must follow the command ", command.get_name()),
        cat("run: ftrun ", command.get_name(), " ", option->get_name(), " ..."));
  }
}

/// Returns the facts about the build that a bug report needs, and whether its LibTorch was found.
std::string version_text() {
  const BuildInfo build = build_info();
  std::string torch;
  try {
    torch = cat("in ", torch_folder());
  } catch (const Error&) {
    torch = "not found here";
  }
  return cat("ftrun ", build.version,
             build.git_commit.empty() ? "" : cat(" (commit ", build.git_commit, ")"), "\nLibTorch ",
             build.libtorch.empty() ? "none: all commands work but train and bench machine"
                                    : cat(build.libtorch, ", ", torch),
             "\nCUDA ",
             build.cuda.empty() ? "none: trains only on CPUs"
                                : cat(build.cuda, ", kernels for ", gpu_architectures()),
             "\n", build.compiler);
}

/// Adds the command that prints the completions for a shell. Like the command that prints the
/// manual page, it is for installations, not for users.
Command add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "print the completions of a shell")->group("");
  command->add_option("shell", *shell, "bash, zsh or fish")->required();
  return [&app, shell] {
    std::cout << shell_completion(app, *shell);
    return 0;
  };
}

Command add_manual(CLI::App& app) {
  app.add_subcommand("manual", "print the manual page")->group("");
  return [&app] {
    std::cout << manual_page(app, build_info().version);
    return 0;
  };
}

int run(const std::vector<std::string>& arguments, JsonOutput& output) {
  CLI::App app{"Fine-tunes large language models on any number of ranks, from one config file.",
               "ftrun"};
  app.set_version_flag("--version", std::function<std::string()>(version_text));
  app.require_subcommand(0, 1);
  app.footer(
      "Without a command ftrun trains. Exit codes: docs/errors.md. Keys of the config: "
      "docs/config.md.");
  const Command train = add_train(app, arguments);
  std::map<std::string, Command> commands{{"check", add_check(app, output)},
                                          {"plan", add_plan(app, output)},
                                          {"schema", add_schema(app)},
                                          {"inspect", add_inspect(app, output)},
                                          {"convert", add_convert(app, output)},
                                          {"verify", add_verify(app, output)},
                                          {"report", add_report(app)},
                                          {"bench", add_bench(app)},
                                          {"init", add_init(app)}};
  commands.emplace("completion", add_completion(app));
  commands.emplace("manual", add_manual(app));
  // CLI11 takes the arguments in reverse order, without the program's own name.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  if (!reversed.empty()) reversed.pop_back();
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return handle_parse_error(app, error, output);
  }
  const auto subcommands = app.get_subcommands();
  if (!subcommands.empty()) refuse_options_before(app, *subcommands.front());
  if (subcommands.empty() || subcommands.front()->get_name() == "train")
    return warn_about_output(train());
  output.set_command(subcommands.front()->get_name());
  const int code = commands.at(subcommands.front()->get_name())();
  output.print(code);
  return require_output_printed(code);
}

}  // namespace

int run_arguments(const std::vector<std::string>& arguments) {
  JsonOutput output(arguments);
  try {
    open_standard_descriptors();
    // With the signal ignored, a write beyond the file size limit fails with an error, which is
    // reported with a remedy.
    std::signal(SIGXFSZ, SIG_IGN);
    set_library_folders(library_folders);
    return run(arguments, output);
  } catch (const std::exception& exception) {
    output.print_failure(exception);
    return report_exception(exception);
  }
}

}  // namespace ftrun

int main(int argc, char** argv) {
  return ftrun::end_process(ftrun::run_arguments({argv, argv + argc}));
}
