#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <optional>
#include <sstream>

#include "axes/tensor/node_traffic.h"
#include "base/amount_text.h"
#include "base/error.h"
#include "base/matmul_library.h"
#include "base/text.h"
#include "commands.h"
#include "config/effective_json.h"
#include "config/write.h"
#include "config_source.h"
#include "data/dataset_report.h"
#include "elastic_notice.h"
#include "inputs/sequence_options.h"
#include "json_output.h"
#include "model/families.h"
#include "model/size.h"
#include "nodes_option.h"
#include "output_checks.h"
#include "plan_json.h"
#include "program/memory_plan.h"
#include "program/step_plan.h"
#include "report/environment.h"
#include "report/run_folder.h"
#include "resource_checks.h"

namespace ftrun {
namespace {

struct CheckOptions {
  ConfigSource source;
  bool data = false;
  bool quiet = false;
  int64_t nodes = 1;
};

void check_data(const Config& config, const ModelConfig& model) {
  std::vector<std::string> bad;
  bool has_remedy = false;
  for (const auto* paths : {&config.data.train, &config.data.validation}) {
    if (paths->empty()) continue;
    const bool train = paths == &config.data.train;
    const SequenceSetOptions options = train ? training_options(config) : sequence_options(config);
    const bool drops_rest = train && config.data.drop_last;
    const DataReport report =
        check_dataset(*paths, options, model.vocab_rows,
                      drops_rest ? std::optional(config.train_batch_size) : std::nullopt);
    std::cout << data_report_text(report);
    bad.insert(bad.end(), report.problems.begin(), report.problems.end());
    has_remedy |= report.has_remedy;
  }
  if (bad.empty()) return;
  throw Error(ExitCode::kBadInput, cat("the data cannot be trained on:\n", join(bad, "\n")),
              has_remedy ? "" : "prepare it again with the tokenizer of this model");
}

/// Returns the memory by tier: "1.68 GiB, host 317.25 MiB, nvme 769.50 MiB".
std::string tiers_text(const MemoryPlan& plan) {
  std::string text = human_bytes(plan.at(Tier::kDevice).total);
  for (const Tier tier : {Tier::kHost, Tier::kDisk})
    if (plan.at(tier).total > 0)
      text += cat(", ", tier_name(tier), " ", human_bytes(plan.at(tier).total));
  return text;
}

void print_elastic_notice(const LoadedConfig& loaded) {
  const std::string elastic =
      elastic_notice(loaded, detect_launch(process_environment()), std::nullopt);
  if (!elastic.empty()) std::cout << elastic << '\n';
}

/// Lists warnings about a run that can be planned.
std::vector<std::string> warnings_of(const LoadedConfig& loaded, const StepPlan& plan,
                                     const CheckOptions& options) {
  std::vector<std::string> warnings;
  if (const std::string warning = check_outputs(loaded, plan, loaded.ranks); !warning.empty())
    warnings.push_back(warning);
  if (const auto problem = run_folder_problem(loaded.config.output_dir, RunStart::kFresh))
    warnings.push_back(cat("a run without --resume would not start: ", problem->message(),
                           "\n  remedy: ", problem->remedy()));
  if (const std::string traffic = node_traffic_warning_of(loaded, plan, options.nodes);
      !traffic.empty())
    warnings.push_back(traffic);
  return warnings;
}

/// Adds the results of the command to its output for --json.
void fill_check_output(JsonOutput& output, const LoadedConfig& loaded, const StepPlan& plan,
                       const std::vector<std::string>& warnings, bool runs_here) {
  const ModelDescription& model = plan.train.model;
  output.add("ranks", loaded.ranks);
  output.add("rank_rule", loaded.rank_rule);
  output.add("model", nlohmann::ordered_json{{"family", model.family},
                                             {"parameters", count_parameters(model).total}});
  output.add("memory", memory_json(plan_memory(plan)));
  output.add("notices", line_texts(loaded.lines));
  output.add("warnings", warnings);
  output.add("config",
             nlohmann::ordered_json::parse(without_secrets(effective_json(loaded.config))));
  output.add("runs_here", runs_here);
}

int check_command(const CheckOptions& options, JsonOutput& output) {
  const LaunchEnvironment single;
  ConfigSource source = options.source;
  source.reads_weights = true;
  source.reads_data = !options.data;
  const LoadedConfig loaded = load_source(source, single);
  check_even_nodes(loaded.ranks, options.nodes);
  for (const ResolvedLine& line : loaded.lines) std::cout << line.text << '\n';
  std::cout << count_text(loaded.ranks, "rank") << ": " << loaded.rank_rule << '\n';
  const StepPlan plan = plan_steps(loaded.config, *loaded.model, 0);
  const ParameterCounts parameters = count_parameters(plan.train.model);
  std::cout << "model: " << plan.train.model.family << ", " << human_count(parameters.total)
            << " parameters\n"
            << "memory per rank: " << tiers_text(plan_memory(plan)) << " planned\n";
  if (const auto pinned = pinned_matmul_library(loaded.config.kernels))
    check_matmul_library(*pinned);
  print_elastic_notice(loaded);
  std::vector<std::string> warnings = warnings_of(loaded, plan, options);
  for (const std::string& warning : warnings) std::cout << "warning: " << warning << '\n';
  if (!options.quiet) std::cout << '\n' << effective_yaml(loaded.config);
  std::ostringstream machine;
  const bool runs_here =
      !print_machine_problems(machine, loaded, plan, loaded.ranks, read_memory_limit());
  std::cout << machine.str();
  if (!runs_here) warnings.push_back(machine.str());
  if (output.is_requested()) fill_check_output(output, loaded, plan, warnings, runs_here);
  if (options.data) check_data(loaded.config, *loaded.model);
  std::cout << "the config is good" << (runs_here ? "\n" : ", but this machine cannot run it\n");
  return 0;
}

}  // namespace

Command add_check(CLI::App& app, JsonOutput& output) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command =
      app.add_subcommand("check", "report every problem of a config, without using a device");
  add_config_options(*command, options->source);
  command->add_flag("--data", options->data, "also read every token of the data sets");
  add_nodes_option(*command, options->nodes);
  command->add_flag("-q,--quiet", options->quiet, "do not print the effective config");
  JsonOutput::add_option(*command);
  return [options, &output] { return check_command(*options, output); };
}

}  // namespace ftrun
