#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config/ranks.h"
#include "config_source.h"
#include "model/size.h"
#include "plan_text.h"
#include "sim/check.h"
#include "program/memory_plan.h"
#include "program/plan_notes.h"
#include "program/savings.h"
#include "program/step_plan.h"
#include "program/traffic.h"

namespace ftrun {
namespace {

struct PlanOptions {
  ConfigSource source;
  bool memory = false;
  bool program = false;
  bool evaluation = false;
  int64_t rank = 0;
};

void refuse_rank(int64_t rank, int64_t ranks) {
  if (rank < ranks) return;
  throw Error(
      ExitCode::kUsage,
      cat("--rank ", rank, ": the run has ", ranks, ranks == 1 ? " rank" : " ranks", ", counted from 0"),
      ranks == 1 ? "leave --rank out" : cat("give a rank from 0 to ", ranks - 1));
}

void print_memory(const LoadedConfig& loaded, const StepPlan& plan, const MemoryPlan& memory) {
  std::cout << memory_plan_text(memory, count_parameters(plan.train.model).total) << '\n'
            << state_formula_text(plan, memory);
  for (const std::string& line : loaded.lines)
    if (line.find("zero_optimization.") != std::string::npos) std::cout << line << '\n';
  for (const std::string& line : plan_notes(loaded.config, plan)) std::cout << line << '\n';
}

void print_savings(const LoadedConfig& loaded, int rank) {
  const MemoryMeasure measure = limiting_memory(loaded.config);
  std::cout << '\n' << savings_text(memory_savings(loaded.config, *loaded.model, rank, measure));
}

void print_traffic(const StepPlan& plan, bool evaluation) {
  const Program& program = evaluation ? plan.evaluate.program : plan.train.program;
  const Traffic traffic = program_traffic(program);
  if (traffic.rows.empty()) return;
  std::cout << '\n'
            << (evaluation ? traffic_text(traffic)
                           : traffic_text(traffic, explain_traffic(program, plan.train.model,
                                                                   plan.partition, plan.options)));
}

int plan_command(const PlanOptions& options) {
  const LaunchEnvironment single;
  const LoadedConfig loaded = load_source(options.source, single, true);
  refuse_rank(options.rank, loaded.ranks);
  const auto rank = static_cast<int>(options.rank);
  const StepPlan plan = plan_steps(loaded.config, *loaded.model, rank);
  const Program& program = options.evaluation ? plan.evaluate.program : plan.train.program;
  const std::vector<RankProgram> ranks{{rank, &program}};
  const std::vector<std::string> faults = check_programs(ranks);
  if (!faults.empty()) bug(join(faults, "; "));
  std::cout << "rank " << rank << " of " << loaded.ranks << ", ";
  if (options.program) {
    std::cout << program_text(program);
    return 0;
  }
  std::cout << human_count(count_parameters(plan.train.model).total) << " parameters, ZeRO stage "
            << plan.options.state.stage << "\n\n";
  const MemoryPlan memory = options.evaluation ? memory_plan({&program}) : memory_plan(plan);
  print_memory(loaded, plan, memory);
  if (options.memory)
    print_savings(loaded, rank);
  else
    print_traffic(plan, options.evaluation);
  return 0;
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plan", "show what the ranks would do, without starting one");
  add_config_options(*command, options->source);
  command->add_flag("--memory", options->memory,
                    "memory alone, and which changes of the config would save most of it");
  command->add_flag("--program", options->program, "the step program alone, an instruction a line");
  command->add_flag("--evaluation", options->evaluation,
                    "the program of a validation instead of a training step");
  command->add_option("--rank", options->rank, "the rank whose program is shown")
      ->check(CLI::Range(int64_t{0}, kMostRanks));
  return [options] { return plan_command(*options); };
}

}  // namespace ftrun
