#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config_source.h"
#include "model/size.h"
#include "program/check.h"
#include "program/step_plan.h"
#include "report/table.h"

namespace ftrun {
namespace {

struct PlanOptions {
  ConfigSource source;
  bool program = false;
  bool evaluation = false;
  int64_t rank = 0;
};

void print_memory(const Program& program) {
  std::vector<std::vector<std::string>> rows;
  const MemoryAccount account = memory_account(program);
  for (const auto& [category, bytes] : account.by_category)
    rows.push_back(
        {std::string(category_name(category)), std::to_string(bytes), human_bytes(bytes)});
  rows.push_back({"total", std::to_string(account.total), human_bytes(account.total)});
  std::cout << format_table({"memory of a rank", "bytes", ""}, rows);
}

int plan_command(const PlanOptions& options) {
  const LaunchEnvironment single;
  const LoadedConfig loaded = load_source(options.source, single, true);
  if (options.rank >= loaded.ranks)
    throw Error(
        ExitCode::kUsage,
        cat("--rank ", options.rank, ": the run has ", loaded.ranks,
            loaded.ranks == 1 ? " rank" : " ranks", ", counted from 0"),
        loaded.ranks == 1 ? "leave --rank out" : cat("give a rank from 0 to ", loaded.ranks - 1));
  const StepPlan plan = plan_steps(loaded.config, *loaded.model);
  const Program& program = options.evaluation ? plan.evaluate.program : plan.train.program;
  const std::vector<const Program*> ranks(static_cast<size_t>(loaded.ranks), &program);
  const std::vector<std::string> faults = check_programs(ranks);
  if (!faults.empty()) bug(join(faults, "; "));
  if (options.program)
    std::cout << "rank " << options.rank << " of " << loaded.ranks << ", " << program_text(program)
              << '\n';
  print_memory(program);
  std::cout << "parameters: " << human_count(count_parameters(plan.train.model).total)
            << ", sent by a rank each step: "
            << human_bytes(all_reduce_bytes(program, loaded.ranks)) << '\n';
  return 0;
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plan", "show what the ranks would do, without starting one");
  add_config_options(*command, options->source);
  command->add_flag("--program", options->program, "print the step program, an instruction a line");
  command->add_flag("--evaluation", options->evaluation,
                    "the program of a validation instead of a training step");
  command->add_option("--rank", options->rank, "the rank whose program is shown")
      ->check(CLI::Range(0, 1 << 20));
  return [options] { return plan_command(*options); };
}

}  // namespace ftrun
