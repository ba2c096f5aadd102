#include "config_source.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <utility>

#include "base/amount_text.h"
#include "base/env_lookup.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/model_folder.h"
#include "cluster/visible_gpus.h"
#include "config/limits.h"
#include "config/ranks.h"
#include "config/resolve.h"
#include "data/conversations.h"
#include "engine.h"
#include "error_with_problems.h"
#include "inputs/adapter_modules.h"
#include "inputs/check_data_files.h"
#include "inputs/config_problem.h"
#include "inputs/model_folder_check.h"
#include "inputs/model_notices.h"
#include "inputs/trained_check.h"
#include "named_inputs.h"

namespace ftrun {
namespace {

/// Removes the file's name from the beginning of the message if the problem's position also names
/// the file.
std::string text_without_file(Problem problem) {
  const std::string itself = problem.at.file + ": ";
  if (!problem.at.file.empty() && problem.message.starts_with(itself))
    problem.message.erase(0, itself.size());
  return to_text(problem);
}

/// LoadReport collects the problems and notices of all stages of reading, so that all are shown
/// together.
struct LoadReport {
  std::vector<std::string> errors;
  std::vector<ResolvedLine> notices;
  /// All errors of `errors`, each with its position.
  std::vector<Problem> problems;
  /// Says whether the config itself has an error, not only the model or the data that it names.
  bool has_config_errors = false;
  /// Says whether the model, or the data, has an error.
  bool has_model_errors = false;
  bool has_data_errors = false;

  void add(const std::vector<Problem>& problems) {
    for (const Problem& problem : problems) {
      if (problem.severity == Severity::kError)
        add_error(problem);
      else
        notices.push_back({problem.key, text_without_file(problem)});
    }
    has_config_errors |= has_errors(problems);
  }

  void add_error(const Problem& problem) {
    errors.push_back(text_without_file(problem));
    problems.push_back(problem);
  }

  /// Adds an error about the model that model.path names.
  void add_model_error(const Problem& problem) {
    add_error(problem);
    has_model_errors = true;
  }

  /// Adds an error about a data set that the config names.
  void add_data_error(const Problem& problem) {
    add_error(problem);
    has_data_errors = true;
  }
};

/// Reads the model's config.json. Errors in it are added to the report like errors of the config.
std::optional<ModelConfig> read_model(const WrittenConfig& config, LoadReport& report) {
  if (config.get<std::string>("model.path").empty()) return std::nullopt;
  try {
    const CheckedModelFolder model_folder = find_model_folder_of(config);
    report.add(model_folder.notices);
    const std::string path = model_folder.folder + "/config.json";
    return parse_model_config(read_file(path, kMaxModelConfig), path);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kUnsupported) throw;
    report.add_model_error(problem_at(config.origins.position("model.path"), error));
  }
  return std::nullopt;
}

/// Adds the problems and notices of looking up Hub names. Missing data is not an error if the
/// source is only planned.
void add_named_inputs(const NamedInputs& named_inputs, const ConfigSource& source,
                      LoadReport& report) {
  const Origins& origins = named_inputs.config.origins;
  report.add(named_inputs.notices);
  if (named_inputs.model_error)
    report.add_model_error(problem_at(origins.position("model.path"), *named_inputs.model_error));
  if (source.plans_only) return;
  for (const auto& [key, error] : named_inputs.data_errors)
    report.add_data_error(problem_at(origins.position(key), error));
}

const char* subject_of(const LoadReport& report) {
  if (report.has_config_errors) return "the config";
  if (!report.has_data_errors) return "the model";
  return report.has_model_errors ? "the model and the data" : "the data";
}

[[noreturn]] void refuse_config(const LoadReport& report) {
  throw ErrorWithProblems(
      Error(report.has_config_errors ? ExitCode::kUsage : ExitCode::kBadInput,
            cat(join(report.errors, "\n"), "\n",
                count_text(static_cast<int64_t>(report.errors.size()), "problem"), " in ",
                subject_of(report), "; nothing was started")),
      report.problems);
}

[[noreturn]] void refuse_unsupported(const std::vector<UnsupportedRequest>& gaps) {
  std::vector<std::string> lines;
  std::vector<Problem> problems;
  for (const UnsupportedRequest& gap : gaps) {
    lines.push_back(to_text(gap));
    Problem problem;
    problem.at = gap.at;
    problem.message = cat("not supported yet: ", gap.feature, " (", gap.key, ")");
    problems.push_back(problem);
  }
  throw ErrorWithProblems(
      Error(ExitCode::kUnsupported,
            cat("the config is valid, but this build cannot do what it requests:\n",
                join(lines, "\n")),
            "remove these keys"),
      std::move(problems));
}

/// Returns the number of ranks that each process must start, if it is given.
std::optional<int64_t> ranks_per_process(const LaunchEnvironment& launch,
                                         std::optional<int64_t> nproc) {
  return !nproc && launch.ranks_per_node ? std::optional<int64_t>(*launch.ranks_per_node) : nproc;
}

/// Counts the ranks of a job whose nodes each start their own ranks. A launcher that sets only RANK
/// and WORLD_SIZE starts one process for each rank, unless something says that each process starts
/// several ranks.
RankCount count_ranks_of_nodes(const WrittenConfig& config, const LaunchEnvironment& launch,
                               std::optional<int64_t> nproc) {
  const std::string nodes = cat("WORLD_SIZE ", launch.nodes);
  const std::optional<int64_t> ranks_of_each = ranks_per_process(launch, nproc);
  if (ranks_of_each)
    return {launch.nodes * *ranks_of_each, cat(nodes, " × ", *ranks_of_each, " ranks each"), {}};
  RankCount config_count = count_ranks(config, std::nullopt, std::nullopt);
  if (config_count.ranks % launch.nodes == 0) return config_count;
  if (config_count.ranks == 1) return {launch.nodes, cat(nodes, ", one rank each"), {}};
  Problem problem;
  problem.message = cat(config_count.ranks, " ranks (", config_count.rule,
                        ") cannot be shared equally by ", nodes, " processes");
  problem.remedy = "start as many processes as ranks, or give --nproc, the ranks of each process";
  config_count.problems.push_back(problem);
  return config_count;
}

RankCount count_ranks_of_job(const WrittenConfig& config, const LaunchEnvironment& launch,
                             std::optional<int64_t> nproc) {
  if (launch.is_rank()) return count_ranks(config, launch.world_size, nproc);
  if (launch.kind == LaunchKind::kNode && launch.nodes > 1)
    return count_ranks_of_nodes(config, launch, nproc);
  return count_ranks(config, std::nullopt, ranks_per_process(launch, nproc));
}

/// Returns the number of ranks that share the visible GPUs. Our supervisor shows all GPUs to its
/// ranks; other launchers may show each rank only its own GPU.
int64_t ranks_that_share_gpus(const LaunchEnvironment& launch, int64_t ranks) {
  if (launch.kind == LaunchKind::kSupervised) return launch.local_size;
  return launch.is_rank() ? 1 : ranks / std::max(1, launch.nodes);
}

void check_files(const ConfigSource& source) {
  if (source.files.empty() && source.texts.empty())
    throw Error(ExitCode::kUsage, "no config was given",
                "run: ftrun --config FILE (JSON or YAML); see ftrun --help");
}

/// Reads the config of a source, and looks up the Hub names in it.
NamedInputs read_named_inputs(const ConfigSource& source, LoadReport& report) {
  check_files(source);
  LoadResult loaded = load_config(source);
  report.add(loaded.problems);
  NamedInputs named_inputs = find_named_inputs(std::move(loaded.written), source.resumes);
  add_named_inputs(named_inputs, source, report);
  return named_inputs;
}

/// Collects the facts outside of the config on which resolved values depend.
ResolveContext resolve_context(const WrittenConfig& written, const ConfigSource& source,
                               const LaunchEnvironment& launch, int64_t ranks,
                               const std::optional<ModelConfig>& model) {
  ResolveContext context;
  context.world_size = ranks;
  context.for_training = true;
  context.plans_only = source.plans_only;
  if (has_cuda_module()) context.gpus = count_visible_gpus(process_environment());
  context.local_ranks = ranks_that_share_gpus(launch, ranks);
  if (model) context.hidden_size = model->hidden;
  context.conversations = holds_conversations(written.get<std::vector<std::string>>("data.train"),
                                              written.get<DataFormat>("data.format"));
  return context;
}

/// Removes problems that only follow from a wrong number of ranks: those at the same position.
void remove_follow_up_problems(const RankCount& count, std::vector<Problem>& problems) {
  if (count.problems.empty()) return;
  const auto is_at_same_position = [&](const Problem& problem) {
    return problem.at == count.problems.front().at;
  };
  std::erase_if(problems, is_at_same_position);
}

std::string rule_with_mesh(const RankCount& count, const ParallelConfig& mesh) {
  if (model_ranks(mesh) <= 1 || count.rule_names_mesh) return count.rule;
  return cat(count.rule, "; the mesh: ", mesh_text(mesh));
}

/// Checks whether a model fits the config, whether it can be trained as requested, and its weights.
/// If `with_notices`, it also adds notices about the modules that an adapter's settings name.
void check_model(const Config& config, const ModelConfig& model, const ConfigSource& source,
                 bool with_notices, LoadReport& report) {
  if (const auto problem = find_division_problem(config, model, report.has_config_errors))
    report.add({*problem});
  if (!report.has_config_errors) {
    report.add(check_trainable(config, model));
    report.add(check_adapter_modules(config, model, with_notices && !report.has_config_errors));
  }
  if (!source.reads_weights) return;
  if (const auto problem = find_weights_problem(config, model)) report.add_model_error(*problem);
}

}  // namespace

void add_config_options(CLI::App& command, ConfigSource& source) {
  command
      .add_option(
          "-c,--config", source.files,
          "config file, JSON or YAML; may be repeated, and later files override earlier ones")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("-s,--set", source.overrides, "override one key: --set train.steps=100")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("--nproc", source.nproc, "ranks to start on this machine")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, kMaxRanks));
}

bool prints_notices(const LaunchEnvironment& launch) {
  return launch.rank == 0 && launch.node == 0 && launch.kind != LaunchKind::kSupervised;
}

LoadResult load_config(const ConfigSource& source) {
  return source.texts.empty() ? load_config(source.files, source.overrides)
                              : load_config_texts(source.texts, source.overrides);
}

ConfigSource read_source_files(ConfigSource source) {
  if (!source.texts.empty()) return source;
  std::vector<ConfigText> texts;
  try {
    for (const std::string& file : source.files)
      texts.push_back({file, read_file(file, kMaxConfigBytes)});
  } catch (const Error&) {
    return source;
  }
  source.texts = std::move(texts);
  return source;
}

WrittenConfig read_unresolved(const ConfigSource& source) {
  LoadReport report;
  NamedInputs named_inputs = read_named_inputs(source, report);
  if (!report.errors.empty()) refuse_config(report);
  return std::move(named_inputs.config);
}

LoadedConfig load_source(const ConfigSource& source, const LaunchEnvironment& launch) {
  LoadReport report;
  const NamedInputs named_inputs = read_named_inputs(source, report);
  LoadedConfig result;
  const RankCount count = count_ranks_of_job(named_inputs.config, launch, source.nproc);
  report.add(count.problems);
  result.ranks = count.ranks;
  result.model = source.model;
  if (!named_inputs.model_error && !source.model)
    result.model = read_model(named_inputs.config, report);
  result.context = resolve_context(named_inputs.config, source, launch, count.ranks, result.model);
  // The keys that could be read are resolved even if there are unknown keys, so that contradictions
  // are reported together with them.
  ResolvedConfig resolution = resolve(named_inputs.config, result.context);
  remove_follow_up_problems(count, resolution.problems);
  report.add(resolution.problems);
  result.config = std::move(resolution.config);
  result.rank_rule = rule_with_mesh(count, result.config.parallel);
  if (result.model)
    check_model(result.config, *result.model, source, prints_notices(launch), report);
  if (source.reads_data && named_inputs.data_errors.empty()) {
    const auto rows = result.model ? std::optional(result.model->vocab_rows) : std::nullopt;
    for (const Problem& problem : check_data_files(result.config, rows))
      report.add_data_error(problem);
  }
  if (!report.errors.empty()) refuse_config(report);
  // Features that this build lacks are listed only for a config without errors.
  if (!resolution.unsupported.empty()) refuse_unsupported(resolution.unsupported);
  report.add(model_notices(result.config, result.model));
  result.lines = std::move(report.notices);
  result.lines.insert(result.lines.end(), resolution.lines.begin(), resolution.lines.end());
  return result;
}

}  // namespace ftrun
