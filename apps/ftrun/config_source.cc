#include "config_source.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "adapter_modules.h"
#include "axes/model_fit.h"
#include "axes/pipeline/pipeline_config.h"
#include "axes/tensor/tensor_config.h"
#include "base/amount_text.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/text.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/model_folder.h"
#include "cluster/visible_gpus.h"
#include "config/limits.h"
#include "config/model_name.h"
#include "config/peft_config.h"
#include "config/ranks.h"
#include "config/resolve.h"
#include "config/serving_limits.h"
#include "config/unsupported.h"
#include "data/check_headers.h"
#include "data/conversations.h"
#include "engine.h"
#include "error_with_problems.h"
#include "inputs/export_options.h"
#include "inputs/sequence_options.h"
#include "inputs/weights_check.h"
#include "model/families.h"
#include "model/rope_angles.h"
#include "named_inputs.h"
#include "program/training_model.h"

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
  std::vector<std::string> notices;
  /// All errors of `errors`, each with its position.
  std::vector<Problem> problems;
  /// The config itself has an error, not only the model or the data that it names.
  bool has_config_errors = false;
  /// The model, or the data, has an error.
  bool has_model_errors = false;
  bool has_data_errors = false;

  void add(const std::vector<Problem>& problems) {
    for (const Problem& problem : problems) {
      if (problem.severity == Severity::kError)
        add_error(problem);
      else
        notices.push_back(text_without_file(problem));
    }
    has_config_errors |= has_errors(problems);
  }

  void add_error(const Problem& problem) {
    errors.push_back(text_without_file(problem));
    problems.push_back(problem);
  }
};

void add_notice(const Origins& origins, const char* key, const std::string& message,
                const std::string& remedy, LoadReport& report) {
  report.add({Problem{request_position(origins, key), message, remedy, Severity::kNotice}});
}

/// Makes a problem at a position of the config from the error that the value there causes.
Problem problem_at(Position at, const Error& error) {
  return {std::move(at), error.message(), error.remedy()};
}

/// Adds an error about the model that model.path names.
void add_model_problem(const Origins& origins, const Error& error, LoadReport& report) {
  report.add_error(problem_at(origins.position("model.path"), error));
  report.has_model_errors = true;
}

/// Reads the name of the base model from an adapter's file; "" if the file does not name it.
std::string base_of_adapter(const std::string& folder) {
  const std::string file = folder + "/adapter_config.json";
  const nlohmann::json adapter_config =
      nlohmann::json::parse(read_file(file, kMaxModelConfig), nullptr, false);
  if (!adapter_config.is_object() || !adapter_config.contains("base_model_name_or_path")) return "";
  const auto& base = adapter_config["base_model_name_or_path"];
  return base.is_string() ? printable(base.get<std::string>()) : "";
}

/// Refuses a folder without config.json. If it is the folder of a run, the remedy names the model
/// or adapter that the run exported.
[[noreturn]] void refuse_without_config(const std::string& folder, const std::string& hidden) {
  std::error_code error;
  const std::string message = cat(folder, ": has no config.json"), model = folder + "/export/model",
                    adapter = folder + "/export/adapter";
  if (std::filesystem::exists(model + "/config.json", error))
    throw Error(ExitCode::kBadInput, message,
                cat("it is the folder of a run: name the model that it trained, ", model));
  if (std::filesystem::exists(adapter + "/adapter_config.json", error))
    throw Error(
        ExitCode::kBadInput, message,
        cat("write adapter: ", adapter, " to continue from the adapter that this run trained, ",
            "and its base model as model.path"));
  throw Error(ExitCode::kBadInput, message,
              cat("give the path of a Hugging Face model folder", hidden));
}

/// Refuses a path that is not the folder of a model: a missing path, a file, an adapter, or a
/// folder without config.json.
void check_model_folder(const ResolvedFolder& found) {
  namespace fs = std::filesystem;
  const std::string& folder = found.folder;
  const std::string hidden =
      found.hides_cached
          ? "; or rename this one to use the model of that name in the Hugging Face cache"
          : "";
  std::error_code error;
  if (!fs::exists(folder, error))
    throw Error(ExitCode::kBadInput,
                cat(folder, ": there is no such folder",
                    did_you_mean(hub_name_like(folder, process_environment()))),
                "name a model folder on this machine, relative to the working directory, or a "
                "model of the Hugging Face Hub that was downloaded, as owner/name; ftrun downloads "
                "nothing (hf "
                "download owner/name does)");
  if (!fs::is_directory(folder, error)) {
    const fs::path file = folder;
    const bool is_of_model = file.filename() == "config.json" || file.extension() == ".safetensors";
    const std::string parent = file.parent_path().empty() ? "." : file.parent_path().string();
    throw Error(
        ExitCode::kBadInput, cat(folder, ": is a file, expected a model folder"),
        is_of_model
            ? cat("name the folder that contains it, ", parent)
            : cat("name a Hugging Face model folder (config.json and *.safetensors)", hidden));
  }
  if (fs::exists(folder + "/config.json", error)) return;
  if (fs::exists(folder + "/adapter_config.json", error)) {
    const std::string base = base_of_adapter(folder);
    throw Error(
        ExitCode::kBadInput, cat(folder, ": is an adapter (adapter_config.json), not a model"),
        cat("write adapter: ", folder, " to continue from it, and its base model as model.path",
            base.empty() ? "" : cat(" (its file says ", base, ")")));
  }
  refuse_without_config(folder, hidden);
}

/// Returns the folder of the model that a config names.
std::string model_folder(const WrittenConfig& config, LoadReport& report) {
  const auto path = config.get<std::string>("model.path");
  const ResolvedFolder found =
      find_model_folder(pinned_name({.path = path, .commit = config.model_commit}));
  check_model_folder(found);
  if (found.hides_cached)
    add_notice(config.origins, "model.path",
               cat("model.path: the folder ", path,
                   " is read; the Hugging Face cache also has a model of that name"),
               cat("write ", std::filesystem::absolute(path).lexically_normal().string(),
                   " if you mean the folder; else rename it"),
               report);
  if (std::filesystem::exists(found.folder + "/adapter_config.json"))
    add_notice(config.origins, "model.path",
               cat("model.path: ", found.folder,
                   " also contains an adapter (adapter_config.json), which is not read"),
               cat("to continue from it, write adapter: ", found.folder), report);
  return found.folder;
}

/// Reads the model's config.json. Errors in it are added to the report like errors of the config.
std::optional<ModelConfig> read_model(const WrittenConfig& config, LoadReport& report) {
  if (config.get<std::string>("model.path").empty()) return std::nullopt;
  try {
    const std::string path = model_folder(config, report) + "/config.json";
    return parse_model_config(read_file(path, kMaxModelConfig), path);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kUnsupported) throw;
    add_model_problem(config.origins, error, report);
  }
  return std::nullopt;
}

/// Checks the model's weights as training does when it opens the model.
void check_weights(const Config& config, const ModelConfig& model, LoadReport& report) {
  try {
    const ModelDescription described = build_model(model, {}, Mode::kEvaluate);
    check_model_weights(described, open_model_folder(folder_of(config.model), described));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadInput) throw;
    add_model_problem(config.origins, error, report);
  }
}

/// Adds an error if the model cannot be split among tensor-parallel ranks or cut into pipeline
/// stages as the config requests. The pipeline is checked only if the config has no errors.
void check_model_fit(const Config& config, const ModelConfig& model, LoadReport& report) {
  const std::optional<ModelFitProblem> problem =
      find_model_fit_problem(config, model, report.has_config_errors);
  if (!problem) return;
  report.add({problem_at(request_position(config.origins, problem->key), problem->error)});
}

/// Reports that the adapter was trained on a base that was quantized in another way: an adapter
/// fits only the base weights that it was trained on.
void check_base(const Config& config, const AdapterFolder& adapter, LoadReport& report) {
  const std::optional<QuantizationConfig> before = base_quantization(adapter);
  if (!before || *before == config.quantization) return;
  const auto described = [](const QuantizationConfig& quantization) {
    return quantization.type == QuantizationType::kNone
               ? "not quantized"
               : cat("quantized as ", quantization_text(quantization));
  };
  add_notice(config.origins, "adapter",
             cat(adapter.path(), ": was trained on a base ", described(*before), "; here it is ",
                 described(config.quantization)),
             "continue with the same quantization; on another base the first losses are higher",
             report);
}

/// Checks whether the model can be trained as the config requests: adapters, quantization, frozen
/// tensors, and the adapter from which training continues.
void check_trained(const Config& config, const ModelConfig& model, LoadReport& report) {
  const bool packs = config.quantization.type != QuantizationType::kNone;
  if (config.adapter.type == AdapterType::kNone && !packs && config.train.freeze.empty() &&
      config.train.only.empty())
    return;
  const char* key = "adapter";
  try {
    const Adapter adapter = adapter_of(config, model);
    key = packs                          ? "quantization"
          : !config.train.freeze.empty() ? "train.freeze"
          : !config.train.only.empty()   ? "train.only"
                                         : "adapter";
    const ModelDescription trained = training_model(config, model, 0);
    if (config.adapter.path.empty()) return;
    const AdapterFolder begun(find_adapter_folder(config.adapter.path).folder);
    check_adapter(trained, begun);
    check_base(config, begun, report);
  } catch (const Error& error) {
    report.add({problem_at(request_position(config.origins, key), error)});
  }
}

/// Reports the pipeline bubble. Called only for a config without errors, in which a pipeline has at
/// most as many stages as the model has layers.
void report_bubble(const Config& config, LoadReport& report) {
  const std::string bubble = bubble_notice(config);
  if (!bubble.empty()) add_notice(config.origins, "parallel.pipeline", bubble, "", report);
}

/// Reports limits of programs that serve the trained adapter, because users should know them before
/// training.
void report_serving(const Config& config, LoadReport& report) {
  for (const std::string& limits : serving_limits(config.adapter, config.quantization))
    add_notice(config.origins, "adapter", limits, "", report);
}

/// Reports if the config requests more positions than the model was trained on. This is allowed;
/// the notice says which scaling of the rotary embedding would support them.
void report_positions(const Config& config, const ModelConfig& model, LoadReport& report) {
  const int64_t tokens = config.data.sequence_length, limit = reached_positions(model);
  if (limit == 0 || tokens <= limit) return;
  const char* const reach =
      limit == model.max_positions
          ? "the model's max_position_embeddings, "
          : "factor times original_max_position_embeddings of the model's yarn, ";
  add_notice(config.origins, "data.sequence_length",
             cat("data.sequence_length ", tokens, " is above ", reach, limit),
             scaling_for(model, tokens), report);
}

/// Reports which factors longrope uses in this run; the longest sequence decides that.
void report_longrope(const Config& config, const ModelConfig& model, LoadReport& report) {
  const int64_t tokens = config.data.sequence_length;
  for (const RopeConfig& rope : model.rotations()) {
    const auto* longrope = rope.as<LongRopeScaling>();
    if (longrope == nullptr) continue;
    const bool is_long = uses_long_factors(rope, tokens);
    add_notice(
        config.origins, "data.sequence_length",
        cat("data.sequence_length ", tokens, is_long ? " is above" : " is not above",
            " longrope's original_max_position_embeddings, ", longrope->original_positions, ": ",
            is_long ? "long_factor" : "short_factor", " rotates all sequences of the run"),
        is_long ? cat("set data.sequence_length to at most ", longrope->original_positions,
                      " to train with short_factor, as the model is used for short texts")
                : "",
        report);
  }
}

/// Adds an error about a data set that the config names.
void add_data_problem(const Origins& origins, const std::string& key, const Error& error,
                      LoadReport& report) {
  report.add_error(problem_at(origins.position(key), error));
  report.has_data_errors = true;
}

/// Checks the data files as training does when it opens them, except for checks that read all of
/// the data.
void check_data_files(const Config& config, std::optional<int64_t> vocab_rows, LoadReport& report) {
  const SequenceSetOptions options = sequence_options(config);
  TokenFileOptions files;
  files.format = options.format;
  files.dtype = options.dtype;
  for (const char* key : {"data.train", "data.validation"}) {
    const bool train = std::string_view(key) == "data.train";
    const auto& paths = train ? config.data.train : config.data.validation;
    std::vector<Error> errors = check_headers(paths, files, vocab_rows);
    if (errors.empty()) errors = too_long_conversations(paths, options);
    for (const Error& error : errors) add_data_problem(config.origins, key, error, report);
  }
}

/// Adds the problems and notices of looking up Hub names. Missing data is not an error if the
/// source is only planned.
void add_named_inputs(const NamedInputs& named, const ConfigSource& source, LoadReport& report) {
  const Origins& origins = named.config.origins;
  report.add(named.notices);
  if (named.model_error) add_model_problem(origins, *named.model_error, report);
  if (source.plans_only) return;
  for (const auto& [key, error] : named.data_errors) add_data_problem(origins, key, error, report);
}

const char* subject_of(const LoadReport& report) {
  if (report.has_config_errors) return "the config";
  if (!report.has_data_errors) return "the model";
  return report.has_model_errors ? "the model and the data" : "the data";
}

[[noreturn]] void refuse(const LoadReport& report) {
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
RankCount ranks_of_nodes(const WrittenConfig& config, const LaunchEnvironment& launch,
                         std::optional<int64_t> nproc) {
  const std::string nodes = cat("WORLD_SIZE ", launch.nodes);
  const std::optional<int64_t> each = ranks_per_process(launch, nproc);
  if (each) return {launch.nodes * *each, cat(nodes, " × ", *each, " ranks each"), {}};
  RankCount own = count_ranks(config, std::nullopt, std::nullopt);
  if (own.ranks % launch.nodes == 0) return own;
  if (own.ranks == 1) return {launch.nodes, cat(nodes, ", one rank each"), {}};
  Problem problem;
  problem.message =
      cat(own.ranks, " ranks (", own.rule, ") cannot be shared equally by ", nodes, " processes");
  problem.remedy = "start as many processes as ranks, or give --nproc, the ranks of each process";
  own.problems.push_back(problem);
  return own;
}

RankCount ranks_of_job(const WrittenConfig& config, const LaunchEnvironment& launch,
                       std::optional<int64_t> nproc) {
  if (launch.is_rank()) return count_ranks(config, launch.world_size, nproc);
  if (launch.kind == LaunchKind::kNode && launch.nodes > 1)
    return ranks_of_nodes(config, launch, nproc);
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
NamedInputs read_written(const ConfigSource& source, LoadReport& report) {
  check_files(source);
  LoadResult loaded = load_config(source);
  report.add(loaded.problems);
  NamedInputs named = find_named_inputs(std::move(loaded.written), source.resumes);
  add_named_inputs(named, source, report);
  return named;
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
void remove_consequences(const RankCount& count, std::vector<Problem>& problems) {
  if (count.problems.empty()) return;
  const auto at = [&](const Problem& problem) { return problem.at == count.problems.front().at; };
  std::erase_if(problems, at);
}

std::string rule_with_mesh(const RankCount& count, const ParallelConfig& mesh) {
  if (model_ranks(mesh) <= 1 || count.rule_names_mesh) return count.rule;
  return cat(count.rule, "; the mesh: ", mesh_text(mesh));
}

/// Checks whether a model fits the config, whether it can be trained as requested, and its weights.
/// If `with_notices`, it also adds notices about the modules that an adapter's settings name.
void check_model(const Config& config, const ModelConfig& model, const ConfigSource& source,
                 bool with_notices, LoadReport& report) {
  check_model_fit(config, model, report);
  if (!report.has_config_errors) {
    check_trained(config, model, report);
    report.add(check_adapter_modules(config, model, with_notices && !report.has_config_errors));
  }
  if (source.reads_weights) check_weights(config, model, report);
}

/// Adds the notices about a config without errors, and about its model if that is known.
void add_notices(const Config& config, const std::optional<ModelConfig>& model,
                 LoadReport& report) {
  if (model) {
    report_positions(config, *model, report);
    report_longrope(config, *model, report);
  }
  if (const auto notice = sequence_padding_notice(config)) report.add({*notice});
  if (model) report_bubble(config, report);
  report_serving(config, report);
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
  NamedInputs named = read_written(source, report);
  if (!report.errors.empty()) refuse(report);
  return std::move(named.config);
}

LoadedConfig load_source(const ConfigSource& source, const LaunchEnvironment& launch) {
  LoadReport report;
  const NamedInputs named = read_written(source, report);
  LoadedConfig result;
  const RankCount count = ranks_of_job(named.config, launch, source.nproc);
  report.add(count.problems);
  result.ranks = count.ranks;
  result.model = source.model;
  if (!named.model_error && !source.model) result.model = read_model(named.config, report);
  result.context = resolve_context(named.config, source, launch, count.ranks, result.model);
  // The keys that could be read are resolved even if there are unknown keys, so that contradictions
  // are reported together with them.
  Resolution resolution = resolve(named.config, result.context);
  remove_consequences(count, resolution.problems);
  report.add(resolution.problems);
  result.config = std::move(resolution.config);
  result.rank_rule = rule_with_mesh(count, result.config.parallel);
  if (result.model)
    check_model(result.config, *result.model, source, prints_notices(launch), report);
  if (source.reads_data && named.data_errors.empty())
    check_data_files(result.config,
                     result.model ? std::optional(result.model->vocab_rows) : std::nullopt, report);
  if (!report.errors.empty()) refuse(report);
  // Features that this build lacks are listed only for a config without errors.
  if (!resolution.unsupported.empty()) refuse_unsupported(resolution.unsupported);
  add_notices(result.config, result.model, report);
  result.lines = std::move(report.notices);
  result.lines.insert(result.lines.end(), resolution.lines.begin(), resolution.lines.end());
  return result;
}

}  // namespace ftrun
