#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "axes/tensor/node_traffic.h"
#include "base/amount_text.h"
#include "base/error.h"
#include "base/round_up.h"
#include "base/text.h"
#include "commands.h"
#include "config/ranks.h"
#include "config_source.h"
#include "inputs/check_data_files.h"
#include "json_output.h"
#include "model/size.h"
#include "new_file_checks.h"
#include "nodes_option.h"
#include "pipeline_text.h"
#include "plan_json.h"
#include "plan_memory_table.h"
#include "plan_model.h"
#include "plan_page.h"
#include "plan_search.h"
#include "plan_text.h"
#include "plan_time.h"
#include "program/gpu_overhead.h"
#include "program/memory_plan.h"
#include "program/memory_savings.h"
#include "program/plan_notes.h"
#include "program/step_plan.h"
#include "program/traffic.h"
#include "resource_checks.h"
#include "search/search_task.h"
#include "sim/rank_class_plans.h"

namespace ftrun {
namespace {

struct PlanOptions {
  ConfigSource source;
  bool memory = false;
  bool program = false;
  bool schedule = false;
  bool evaluation = false;
  bool text = false;
  int64_t rank = 0;
  /// The bytes of each kind of memory that a rank may use; 0: no limit.
  int64_t device_memory_bytes = 0;
  int64_t host_memory_bytes = 0;
  /// Says whether the plan is for a machine of CPUs, so `device_memory_bytes` holds the host tier
  /// too.
  bool shares_memory = false;
  int64_t nodes = 1;
  TimeOptions time;
  /// The file to which the trace of a step is written; "" for none.
  std::string trace;
  /// The file to which the HTML page of the plan is written; "" for none.
  std::string html;
  bool search = false;
  /// The seconds after which a search ends.
  double seconds = 10;
  /// The file to which a search writes the config; "" for none.
  std::string out;
  /// The model, if no config names it.
  ModelOptions model;
  bool table = false;
  std::vector<int64_t> gpus;
};

void require_rank(int64_t rank, int64_t ranks) {
  if (rank < ranks) return;
  throw Error(ExitCode::kUsage,
              cat("--rank ", rank, ": the run has ", count_text(ranks, "rank"), ", counted from 0"),
              ranks == 1 ? "remove --rank" : cat("give a rank from 0 to ", ranks - 1));
}

void print_memory(const LoadedConfig& loaded, const StepPlan& plan, const MemoryPlan& memory) {
  std::cout << memory_plan_text(memory, count_parameters(plan.train.model).total) << '\n'
            << state_formula_text(plan, memory);
  for (const ResolvedLine& line : loaded.lines)
    if (line.key.starts_with("zero_optimization.")) std::cout << line.text << '\n';
  for (const std::string& line : list_plan_notes(loaded.config, plan)) std::cout << line << '\n';
}

void print_savings(const LoadedConfig& loaded, int rank) {
  const MemoryMeasure measure = memory_measure_of(Tier::kDevice, loaded.config);
  std::cout << '\n'
            << savings_text(list_memory_savings(loaded.config, *loaded.model, rank, measure));
}

/// Returns the program that the options select.
const Program& select_program(const PlanOptions& options, const StepPlan& plan) {
  if (options.evaluation) return plan.evaluate.program;
  if (!options.text) return plan.train.program;
  if (!plan.generation)
    throw Error(ExitCode::kUsage, "--text: the run writes no samples of text",
                "set train.generate.prompt_tokens and data.validation, or remove --text");
  return plan.generation->program;
}

void print_traffic(const StepPlan& plan, const Program& program) {
  const Traffic traffic = program_traffic(program);
  if (traffic.rows.empty()) return;
  const bool trains = &program == &plan.train.program;
  std::cout << '\n'
            << (trains ? planned_traffic_text(
                             traffic, compare_traffic_with_theory(program, plan.train.model,
                                                                  plan.partition, plan.options))
                       : planned_traffic_text(traffic));
}

/// Returns a line that says what a plan assumes if there is no data.
std::string assumption_text(const Config& config) {
  return cat("assumed: every sequence has ", config.data.sequence_length,
             " tokens (data.sequence_length), because data.train ",
             config.data.train.empty() ? "is not set" : "cannot be read");
}

/// Returns the function that writes the HTML page of the plan; null if the options request none.
PageWriter make_page_writer(const LoadedConfig& loaded, const PlanOptions& options,
                            const RequestedMachine& requested, const RankClassPlans& class_plans) {
  if (options.html.empty()) return nullptr;
  return [&](const StepTimeline& timeline, const std::string& time) {
    PlanPage page = make_plan_page(loaded.config, class_plans, options.source, requested,
                                   options.nodes, first_line(time));
    if (!has_readable_data(loaded.config)) page.facts.push_back(assumption_text(loaded.config));
    page.device_memory_bytes = options.device_memory_bytes;
    page.host_memory_bytes = options.host_memory_bytes;
    write_plan_page(options.html, std::move(page), loaded.config, class_plans, timeline);
  };
}

/// Prints how many ranks and programs were checked.
void print_check_summary(const RankClasses& classes) {
  const int ranks = classes.ranks();
  const int programs = classes.count();
  std::cout << "checked: " << (ranks == 1 ? "1 rank" : cat("all ", ranks, " ranks")) << ", "
            << programs << (programs == 1 ? " program" : " different programs")
            << (ranks == 1 ? "" : ": their collectives match, and no rank can wait forever")
            << '\n';
}

/// Returns the budget of each tier; libraries use `library_bytes` of the device.
TierBudget budget_of(const PlanOptions& options, int64_t library_bytes) {
  TierBudget budget = kNoBudget;
  if (options.device_memory_bytes > 0)
    budget[static_cast<size_t>(Tier::kDevice)] =
        std::max<int64_t>(options.device_memory_bytes - library_bytes, 0);
  if (options.host_memory_bytes > 0)
    budget[static_cast<size_t>(Tier::kHost)] = options.host_memory_bytes;
  return budget;
}

/// Throws an Error if the plan needs more memory than its budget. The remedy is for the first tier
/// whose budget is too small.
void require_within_budget(const RankClassPlans& class_plans, const LoadedConfig& loaded,
                           const PlanOptions& options, const StepPlan& plan) {
  const int64_t library_bytes = total_bytes(list_gpu_overheads(loaded.config, plan));
  const std::vector<BudgetExcess> excesses =
      class_plans.list_budget_excesses(budget_of(options, library_bytes), options.shares_memory);
  if (excesses.empty()) return;
  const BudgetExcess& first = excesses.front();
  std::vector<std::string> lines;
  for (const BudgetExcess& excess : excesses) {
    lines.push_back(budget_excess_text(excess));
    if (excess.tier == Tier::kDevice && library_bytes > 0)
      lines.back() += cat("; libraries use up to ", human_bytes(library_bytes), " of the GPU's ",
                          human_bytes(options.device_memory_bytes));
  }
  const MemoryMeasure measure = memory_measure_of(first.tier, /*shares_memory=*/first.with_host);
  throw Error(ExitCode::kEnvironment, join(lines, "\n"),
              savings_remedy(list_memory_savings(loaded.config, *loaded.model, first.rank, measure),
                             first.needed_bytes - first.budget_bytes));
}

/// Adds the plan to the output for --json. `program` is the program that options such as --rank
/// select.
void fill_plan_output(JsonOutput& output, const LoadedConfig& loaded, const StepPlan& plan,
                      const Program& program, int programs, const MemoryPlan& memory,
                      const std::vector<std::string>& warnings, int rank) {
  output.add("rank", rank);
  output.add("ranks", loaded.ranks);
  output.add("parameters", count_parameters(plan.train.model).total);
  output.add("zero_stage", plan.options.state.zero_stage);
  output.add("programs", programs);
  output.add("memory", memory_json(memory));
  output.add("traffic", traffic_json(program_traffic(program)));
  output.add("warnings", warnings);
}

/// Sets the memory of each of `ranks_per_node` ranks to what a search lets it use, unless options
/// set it. Ranks on CPUs have no main memory in addition to that of their devices.
void set_memory_budgets(const Machine& machine, int64_t ranks_per_node, PlanOptions& options) {
  options.device_memory_bytes =
      device_memory_budget(machine, options.device_memory_bytes, ranks_per_node);
  options.shares_memory = !machine.has_gpus;
  if (machine.has_gpus)
    options.host_memory_bytes =
        host_memory_budget(machine, options.host_memory_bytes, ranks_per_node);
}

/// RankPlan holds the data that the command prints about one rank: its plan, and the program that
/// options select.
struct RankPlan {
  const LoadedConfig& loaded;
  const StepPlan& plan;
  /// The plans of all ranks.
  const RankClassPlans& class_plans;
  const Program& program;
  int rank = 0;

  bool trains() const { return &program == &plan.train.program; }
};

/// Prints the model and its main settings, and how many programs were checked.
void print_plan_head(const RankPlan& rank_plan, const std::optional<NamedModel>& named_model) {
  std::cout << human_count(count_parameters(rank_plan.plan.train.model).total)
            << " parameters, ZeRO stage " << rank_plan.plan.options.state.zero_stage << '\n';
  if (named_model) std::cout << named_model_text(*named_model);
  print_check_summary(rank_plan.class_plans.classes());
  const Config& config = rank_plan.loaded.config;
  if (!has_readable_data(config)) std::cout << assumption_text(config) << '\n';
  std::cout << '\n';
}

/// Prints the memory of the rank and of the pipeline stages, and then either the changes that would
/// save the most memory or the traffic.
void print_sizes(const RankPlan& rank_plan, const MemoryPlan& memory, bool savings) {
  print_memory(rank_plan.loaded, rank_plan.plan, memory);
  if (const std::string stages = rank_plan.trains() ? stage_memory_text(rank_plan.class_plans) : "";
      !stages.empty())
    std::cout << '\n' << stages;
  if (savings)
    print_savings(rank_plan.loaded, rank_plan.rank);
  else
    print_traffic(rank_plan.plan, rank_plan.program);
}

/// Prints and returns warnings about a training program: links that it would overload, and what
/// this machine lacks for it.
std::vector<std::string> print_warnings(const RankPlan& rank_plan, const PlanOptions& options) {
  std::vector<std::string> warnings;
  if (!rank_plan.trains()) return warnings;
  const LoadedConfig& loaded = rank_plan.loaded;
  const std::string traffic =
      node_traffic_warning_of(loaded.config, rank_plan.class_plans, options.nodes);
  if (!traffic.empty()) {
    warnings.push_back(traffic);
    std::cout << "\nwarning: " << traffic << '\n';
  }
  // If a budget is given, the plan is for another machine, so this machine is not checked.
  if (options.device_memory_bytes != 0 || options.host_memory_bytes != 0) return warnings;
  std::ostringstream machine;
  if (print_machine_problems(machine, loaded, rank_plan.plan, loaded.ranks, read_memory_limit()))
    warnings.push_back(machine.str());
  std::cout << machine.str();
  return warnings;
}

/// Plans a config. Prints its memory and traffic and, if a machine is requested, the time of a step
/// on it. Refuses a plan that exceeds a budget.
int plan_config(PlanOptions options, const std::optional<NamedModel>& named_model,
                const std::optional<RequestedMachine>& requested, JsonOutput& output) {
  const LaunchEnvironment single;
  if (!options.trace.empty()) check_new_file("--trace", options.trace);
  options.source.plans_only = true;
  const LoadedConfig loaded = load_source(options.source, single);
  require_rank(options.rank, loaded.ranks);
  check_even_nodes(loaded.ranks, options.nodes);
  if (requested) {
    check_slow_ranks_exist(requested->slow_ranks, loaded.ranks);
    set_memory_budgets(requested->machine, divide_up(loaded.ranks, options.nodes), options);
  }
  if (options.schedule) {
    std::cout << pipeline_text(loaded.config, *loaded.model, output_columns());
    return 0;
  }
  const auto rank = static_cast<int>(options.rank);
  const StepPlan plan = plan_steps(loaded.config, *loaded.model, rank);
  const Program& program = select_program(options, plan);
  const RankClassPlans class_plans(loaded.config, *loaded.model, rank, plan);
  class_plans.require_no_faults();
  std::cout << "rank " << rank << " of " << loaded.ranks << ", ";
  if (options.program) {
    std::cout << program_text(program);
    return 0;
  }
  const RankPlan rank_plan{loaded, plan, class_plans, program, rank};
  print_plan_head(rank_plan, named_model);
  const MemoryPlan memory = rank_plan.trains() ? plan_memory(plan) : plan_memory({&program});
  print_sizes(rank_plan, memory, options.memory);
  if (rank_plan.trains() && requested)
    print_time(loaded, *requested, options.nodes, options.trace,
               make_page_writer(loaded, options, *requested, class_plans), class_plans, plan,
               output);
  const std::vector<std::string> warnings = print_warnings(rank_plan, options);
  if (output.is_requested())
    fill_plan_output(output, loaded, plan, program, class_plans.classes().count(), memory, warnings,
                     rank);
  require_within_budget(class_plans, loaded, options, plan);
  return 0;
}

int plan_command(PlanOptions options, JsonOutput& output) {
  if (options.table)
    return print_memory_table({options.model, options.time.machine, options.gpus}, output);
  options.source = read_source_files(options.source);
  std::optional<RequestedMachine> requested;
  if (!options.time.machine.empty())
    requested = read_requested_machine(options.time, options.nodes);
  std::optional<NamedModel> named_model;
  if (options.model.is_given()) {
    named_model = read_named_model(options.model);
    set_planned_model(options.source, *named_model, requested ? &requested->machine : nullptr,
                      options.nodes);
  }
  if (!options.html.empty()) check_plan_page_path(options.html);
  if (options.search)
    return search_plan({options.source, options.time, options.nodes, options.device_memory_bytes,
                        options.host_memory_bytes, options.seconds, options.out, options.html},
                       *requested, output);
  return plan_config(std::move(options), named_model, requested, output);
}

/// Adds the options that select what is shown of a plan.
void add_shown_options(CLI::App& command, PlanOptions& options) {
  command.add_flag("--memory", options.memory,
                   "only memory, and how much of it each change of the config would save");
  command.add_flag("--program", options.program, "only the step program, one instruction per line");
  command.add_flag(
      "--schedule", options.schedule,
      "only the pipeline: its picture, and how long each stage waits and what it keeps");
  command.add_flag("--evaluation", options.evaluation,
                   "the program of a validation instead of a training step");
  command.add_flag("--text", options.text,
                   "the program that scores the next token of a sample of text (train.generate)");
  command.add_option("--rank", options.rank, "the rank whose program is shown")
      ->check(CLI::Range(int64_t{0}, kMaxRanks));
}

/// Adds the options that describe the machine: its memory, and a file with its rates.
void add_machine_options(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--device-memory", options.device_memory_bytes,
                  "bytes of a rank's device (80GiB): fails if any rank needs more")
      ->transform(CLI::AsSizeValue(false));
  command
      .add_option("--host-memory", options.host_memory_bytes,
                  "bytes of main memory that a rank may use: fails if any rank needs more")
      ->transform(CLI::AsSizeValue(false));
  command
      .add_option("--machine", options.time.machine,
                  "a machine that ftrun knows (h100-80gb, ...) or a machine file "
                  "(docs/plan.md): predicts the time of a step on it")
      ->option_text("FILE");
  add_time_options(command, options.time);
}

/// Adds the options that write the timeline of a step to a file.
void add_record_options(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--trace", options.trace,
                  "a new file for the timeline of the step, for Perfetto or chrome://tracing")
      ->option_text("FILE")
      ->needs("--machine");
  command
      .add_option("--html", options.html,
                  "a page of the plan for a browser: time, memory and lanes of the step")
      ->option_text("FILE")
      ->needs("--machine");
}

void add_search_options(CLI::App& command, PlanOptions& options) {
  CLI::Option* search =
      command
          .add_flag("--search", options.search,
                    "search for the fastest layout that fits the machine, and say why others were "
                    "not chosen")
          ->needs("--machine");
  command.add_option("--seconds", options.seconds, "the time that a search may take")
      ->check(CLI::PositiveNumber)
      ->needs(search);
  command.add_option("--out", options.out, "a new file for the config that a search finds")
      ->option_text("FILE")
      ->needs(search);
}

/// Adds the options for a plan without a config: the model, and the program that trains it.
void add_model_options(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--model", options.model.model,
                  "the model: a known name (llama-3.1-8b), a config.json or a model folder; with "
                  "or without a --config that names no model")
      ->option_text("NAME");
  command
      .add_option("--params", options.model.size,
                  "plan for a Llama-like model of about N parameters (7B; docs/plan.md)")
      ->option_text("N");
  command
      .add_option("--stack", options.time.stack,
                  "a file with the speed of another program's kernels, to predict that program")
      ->option_text("FILE")
      ->needs("--machine");
}

void add_table_options(CLI::App& command, PlanOptions& options) {
  CLI::Option* table = command.add_flag("--table", options.table,
                                        "memory of a GPU by model, ZeRO stage and number of GPUs: "
                                        "textbook formulas compared with the exact plan");
  command.add_option("--gpus", options.gpus, "the numbers of GPUs of a table (4,8,64)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kMaxRanks))
      ->needs(table);
}

/// Declares which options exclude each other: a row names an option, and the options with which it
/// cannot be given. Only a training step has a predicted time, so options that show something else
/// exclude --machine, and the options that need it.
void exclude_options(CLI::App& command) {
  struct Row {
    const char* option;
    std::vector<const char*> excluded;
  };
  const Row rows[] = {
      {"--program", {"--machine", "--trace", "--html", "--search", "--table", "--json"}},
      {"--schedule", {"--machine", "--trace", "--html", "--search", "--table", "--json"}},
      {"--text", {"--machine", "--trace", "--html", "--search", "--table", "--evaluation"}},
      {"--evaluation",
       {"--machine", "--trace", "--html", "--search", "--table", "--model", "--params"}},
      {"--memory", {"--search", "--table"}},
      {"--rank", {"--search", "--table"}},
      {"--trace", {"--search", "--table"}},
      {"--nproc", {"--search", "--table"}},
      {"--price", {"--search", "--table"}},
      {"--config", {"--table"}},
      {"--set", {"--table"}},
      {"--device-memory", {"--table"}},
      {"--host-memory", {"--table"}},
      {"--nodes", {"--table"}},
      {"--slow", {"--table"}},
      {"--network", {"--table"}},
      {"--stack", {"--table"}},
      {"--html", {"--table"}},
      {"--search", {"--table"}},
      {"--out", {"--model", "--params"}},
      {"--model", {"--params"}},
  };
  for (const auto& [option, excluded] : rows)
    for (const char* other : excluded)
      command.get_option(option)->excludes(command.get_option(other));
}

}  // namespace

Command add_plan(CLI::App& app, JsonOutput& output) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      app.add_subcommand("plan", "show what the ranks would do, without starting one");
  // Options are added in this order because an option can need only options that were added before
  // it.
  add_config_options(*command, options->source);
  add_shown_options(*command, *options);
  add_machine_options(*command, *options);
  add_record_options(*command, *options);
  add_search_options(*command, *options);
  add_nodes_option(*command, options->nodes);
  add_model_options(*command, *options);
  add_table_options(*command, *options);
  JsonOutput::add_option(*command);
  exclude_options(*command);
  return [options, &output] { return plan_command(*options, output); };
}

}  // namespace ftrun
