#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/import.h"
#include "checkpoint/inspect.h"
#include "checkpoints_folder.h"
#include "commands.h"
#include "error_with_problems.h"
#include "json_output.h"

namespace ftrun {
namespace {

/// Throws an Error for a damaged checkpoint, with a separate problem for each damage.
[[noreturn]] void refuse_damaged(const std::vector<std::string>& damage) {
  std::vector<Problem> problems;
  for (const std::string& message : damage) {
    Problem problem;
    problem.message = message;
    problems.push_back(problem);
  }
  throw ErrorWithProblems(
      Error(ExitCode::kBadInput, join(damage, "\n"),
            "continue from the newest undamaged checkpoint with --resume auto, or "
            "from another one with --resume STEP"),
      std::move(problems));
}

int verify(const std::string& path, JsonOutput& output) {
  std::vector<std::string> problems;
  if (is_import_folder(path))
    const ImportedState imported(path);  // the constructor reads and checks everything
  else
    problems = verify_checkpoint(checkpoints_folder(path));
  if (problems.empty()) {
    std::cout << terminal_text(path) << ": every file is complete and undamaged\n";
    output.add("path", path);
    output.add("undamaged", true);
    return 0;
  }
  refuse_damaged(problems);
}

}  // namespace

Command add_verify(CLI::App& app, JsonOutput& output) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("verify", "read checkpoints in full and report what is damaged");
  command->add_option("path", *path, "a checkpoint, its checkpoints/ folder, or a run")->required();
  JsonOutput::add_option(*command);
  return [path, &output] { return verify(*path, output); };
}

}  // namespace ftrun
