#include <CLI/CLI.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/text.h"
#include "base/utf8.h"
#include "build_info.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_export.h"
#include "checkpoint/import.h"
#include "checkpoint/inspect.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/save.h"
#include "commands.h"
#include "config/load.h"
#include "config/model_name.h"
#include "config/resolve.h"
#include "inputs/export_options.h"
#include "inputs/resume_policy.h"
#include "inputs/weights_check.h"
#include "json_output.h"
#include "merge_adapter.h"
#include "model/tensors.h"
#include "program/training_model.h"
#include "report/run_folder.h"
#include "report/run_manifest.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

struct ConvertOptions {
  std::string checkpoint;
  std::string model;
  std::string out;
  std::string run;
  std::string dtype = "auto";
  std::string quantization;
  std::string format = "hf";
  bool merge = false;
};

/// Returns the newest checkpoint of a run folder or checkpoints folder. A step folder is returned
/// unchanged.
std::string find_step_folder(const std::string& path) {
  if (posix_files().exists(checkpoint_manifest_path(path))) return path;
  for (const std::string& root : {path + "/checkpoints", path})
    for (const CheckpointEntry& entry : list_checkpoints(root))
      if (entry.problem.empty()) return entry.folder;
  throw Error(ExitCode::kBadInput, cat(path, ": holds no checkpoint"),
              "give a run folder or a step folder");
}

/// Returns whether a folder holds another model than the one that run.json recorded, by its
/// fingerprint. This can happen because a relative path leads to another folder from another
/// working directory. Returns false if the folder's weights are gone, because it cannot be compared
/// then.
bool is_another_model(const std::string& folder, const std::string& recorded) {
  try {
    return !recorded.empty() && ModelFolder(folder).fingerprint() != recorded;
  } catch (const Error&) {
    return false;
  }
}

/// NamedModelFolder is the folder of a model, and the name by which the user or a file refers to
/// it.
struct NamedModelFolder {
  std::string folder;
  std::string name;
};

/// Returns the path of the model that a run recorded; for a Hub model, its name with the exact
/// commit.
std::string recorded_model_name(const InputRecord& model) {
  const std::optional<HubName> name = parse_hub_name(model.path);
  return name && !model.commit.empty() ? cat(name->repository, "@", model.commit) : model.path;
}

/// Returns the folder of the model that `file` names `name`. Throws an Error with `remedy` if it
/// does not exist.
std::string require_model_folder(const std::string& name, const std::string& file,
                                 const std::string& remedy) {
  try {
    const std::string folder = name.empty() ? "" : find_model_folder(name).folder;
    if (!folder.empty() && posix_files().exists(folder + "/config.json")) return folder;
  } catch (const Error& missing) {
    throw Error(ExitCode::kBadInput,
                cat(file, ": the model that it names does not exist: ", missing.message()),
                cat(missing.remedy(), "; or ", remedy));
  }
  throw Error(
      ExitCode::kBadInput,
      cat(file, ": the model folder that it names, \"", printable_text(name), "\", does not exist"),
      remedy);
}

/// Returns the model that the option --model names.
NamedModelFolder find_given_model(const ConvertOptions& options) {
  return {find_model_folder(options.model).folder, options.model};
}

/// Returns the model that run.json names. The file is two folders above the step folder.
NamedModelFolder find_recorded_model(const std::string& checkpoint_folder) {
  const fs::path run =
      fs::absolute(checkpoint_folder + "/.").parent_path().parent_path().parent_path();
  const std::string manifest = (run / "run.json").string();
  const char* remedy = "give the folder that training began from with --model";
  if (!posix_files().exists(manifest))
    throw Error(ExitCode::kBadInput,
                cat(manifest, ": does not exist, so the model that was trained is unknown"),
                remedy);
  const RunManifest manifest_of_run = read_manifest(manifest);
  const std::string model_name = recorded_model_name(manifest_of_run.model);
  const std::string model = require_model_folder(model_name, manifest, remedy);
  if (is_another_model(model, manifest_of_run.model.fingerprint))
    throw Error(ExitCode::kBadInput,
                cat(manifest, ": the model folder that it names, \"", model_name,
                    "\", is not the one that training began from: ",
                    fs::absolute(model).lexically_normal().string(),
                    " has another config.json or other tensors"),
                remedy);
  std::cout << terminal_text(cat("model: ", model_name, " (from ", manifest, ")\n"));
  const bool is_named =
      !manifest_of_run.model.commit.empty() && parse_hub_name(manifest_of_run.model.path);
  const ModelSection section{.path = manifest_of_run.model.path,
                             .commit = manifest_of_run.model.commit};
  return {model, is_named ? portable_name(section) : manifest_of_run.model.path};
}

/// Describes the model that a config trains, on a single rank: with its adapters, and with the
/// tensors that train.
ModelDescription describe_trained_model(const Config& trained, const ModelConfig& model) {
  Config config;
  config.adapter = trained.adapter;
  config.quantization = trained.quantization;
  config.train.freeze = trained.train.freeze;
  config.train.only = trained.train.only;
  config.train_micro_batch_size_per_gpu = 1;
  return build_training_model(config, model, 0);
}

/// Returns the config of the run that wrote a checkpoint, as far as it decides which tensors
/// trained. An imported checkpoint has no config; the result is then a default Config.
Config trained_config_of(const CheckpointMeta& meta) {
  const auto record = meta.extra.find(kConfigRecord);
  return record == meta.extra.end() ? Config{} : recorded_config(record->second);
}

/// Refuses a checkpoint whose weights do not belong to the model in `folder`, because no program
/// could load the exported folder.
void check_same_model(const std::string& checkpoint_folder,
                      const std::vector<std::pair<std::string, Dims>>& weights,
                      const ModelDescription& model, const std::string& folder) {
  std::vector<std::string> problems;
  std::map<std::string, Dims> unmatched_weights(weights.begin(), weights.end());
  for (const TensorInfo& tensor : model.tensors) {
    if (!tensor.trainable) continue;
    const auto weight = unmatched_weights.find(tensor.name);
    add_shape_problem(tensor.name, weight == unmatched_weights.end() ? nullptr : &weight->second,
                      tensor.shape, problems);
    unmatched_weights.erase(tensor.name);
  }
  for (const TensorInfo& tensor : model.tensors)
    if (unmatched_weights.erase(tensor.name) > 0)
      problems.push_back(cat("tensor ", tensor.name, " is frozen in the config of the run"));
  for (const auto& [name, shape] : unmatched_weights)
    if (!is_ignored_tensor(model, name))
      problems.push_back(cat("tensor ", name, " is not a parameter of a ", model.family, " model"));
  if (problems.empty()) return;
  throw Error(ExitCode::kBadInput,
              cat(checkpoint_folder, ": its weights are not those of ", folder, "/config.json:\n  ",
                  tensor_problems_text(problems)),
              "give the model folder that training began from (--model)");
}

/// Returns the folders that an export must not replace: the checkpoint that is read, and the
/// checkpoints folder of its run.
std::vector<std::string> list_kept_folders(const std::string& checkpoint_folder) {
  const fs::path checkpoints_folder =
      fs::absolute(checkpoint_folder + "/.").parent_path().parent_path();
  std::vector<std::string> folders{checkpoint_folder};
  if (checkpoints_folder.filename() == "checkpoints")
    folders.push_back(checkpoints_folder.string());
  return folders;
}

/// Returns the dtype with this name, which must be a valid name.
ExportDtype parse_dtype(const std::string& name) {
  const auto& names = EnumNames<ExportDtype>::kNames;
  return static_cast<ExportDtype>(std::find(names.begin(), names.end(), name) - names.begin());
}

/// Makes the folder of a new run, or reuses a folder that a killed convert command left unfinished.
RunFolder make_run_folder(const std::string& path) {
  RunFolder run(path, RunStart::kResume);
  const std::string root = run.paths().checkpoints();
  if (run.has_earlier_run() || !list_checkpoints(root).empty())
    throw Error(ExitCode::kUsage, cat(path, ": holds a run already"),
                "give --run a folder that does not exist yet, and use it as output_dir");
  clean_checkpoints(posix_files(), root);
  return run;
}

/// Returns the line that says which folder was written from which.
std::string wrote_text(const std::string& folder, const std::string& source) {
  return cat("wrote ", folder, " from ", source, "\n");
}

std::string import_text(const ImportedState& imported) {
  const std::vector<std::string>& unknown = imported.record().unknown_settings;
  return cat("imported from ", printable_text(imported.record().source), ": step ",
             step_text(imported.meta()),
             unknown.empty() ? "" : cat("; not known: ", printable_text(join(unknown, ", "))),
             "\n");
}

/// Refuses an import for a model whose tensors are parts of tensors in the model's files, or are
/// stored transposed there. A checkpoint stores the tensors of the model, but an import has the
/// tensors of the files.
void check_own_tensors(const ModelDescription& model, const std::string& folder) {
  const auto is_part = [](const TensorInfo& tensor) {
    return !tensor.stored_location.name.empty();
  };
  const auto part = std::find_if(model.tensors.begin(), model.tensors.end(), is_part);
  if (part == model.tensors.end()) return;
  throw Error(
      ExitCode::kUnsupported,
      cat(folder, ": ", part->stored_location.name, " holds several tensors of a ", model.family,
          " model, or one transposed; checkpoints of such models cannot be imported yet"),
      "save the model as a Hugging Face folder with the program that trained it, and give "
      "that as model.path");
}

/// Makes the first checkpoint of a new run from the output of scripts/import_checkpoint.py.
int convert_import(const ConvertOptions& options) {
  const ImportedState imported(options.checkpoint);
  const std::string model =
      options.model.empty() ? imported.model() : find_given_model(options).folder;
  const std::string config = model + "/config.json";
  if (!posix_files().exists(config))
    throw Error(ExitCode::kBadInput,
                cat(config, ": does not exist; the import was made for the model in ", model),
                "give the folder of the model with --model");
  const ModelDescription described =
      describe_trained_model({}, parse_model_config(read_file(config, kMaxModelConfig), config));
  check_own_tensors(described, imported.folder());
  check_same_model(imported.folder(), imported.tensors(), described, model);
  const RunFolder run = make_run_folder(options.run);
  CheckpointMeta meta = imported.meta();
  meta.ftrun_version = build_info().version;
  const SaveResult saved = save_checkpoint(posix_files(), SaveOptions{run.paths().checkpoints()},
                                           meta, imported.slices(), CheckpointGroup{});
  std::cout << terminal_text(
      cat(import_text(imported), wrote_text(saved.folder, options.checkpoint),
          "continue with: ftrun --config CONFIG --resume auto (output_dir: ", options.run, ")\n"));
  return 0;
}

/// ExportJob specifies what is exported, and to which folder.
struct ExportJob {
  ExportOptions options;
  /// The description of base model and adapter, and of the tensors that trained.
  ModelDescription model;
};

ExportJob make_export_job(const ConvertOptions& options, const Config& trained, std::string base,
                          const std::string& input) {
  ExportJob job;
  job.options.folder = options.out;
  job.options.source_folder = std::move(base);
  const std::string config = job.options.source_folder + "/config.json";
  job.options.config_json = read_file(config, kMaxModelConfig);
  const ModelConfig model = parse_model_config(job.options.config_json, config);
  job.options.dtype = exported_dtype(parse_dtype(options.dtype), model);
  keep_non_decoder_parts(job.options, model);
  job.options.kept_folders = list_kept_folders(input);
  job.model = describe_trained_model(trained, model);
  return job;
}

void print_merged(const ConvertOptions& options, const std::string& input, const Config& trained,
                  const MergeRounding& rounding) {
  std::cout << terminal_text(wrote_text(options.out, input));
  if (trained.quantization.type != QuantizationType::kNone)
    std::cout << "merged into the quantized base of the training: the linear layers of its "
                 "blocks hold the values of their "
              << name_of(trained.quantization.type) << " codes"
              << (trained.adapter.type == AdapterType::kLora
                      ? "; quantizing the merged model again would lose most of the adapter"
                      : "")
              << "\n";
  if (rounding.lost_share > 0)
    std::cout << "merged in fp32; rounding to the files' dtype loses up to "
              << percent_text(rounding.lost_share, 2) << " of the adapter's change (most in "
              << rounding.module << ")"
              << (rounding.lost_share > 0.05
                      ? "; to keep it, write --dtype fp32, or use the adapter without merging"
                      : "")
              << "\n";
}

/// Exports a checkpoint together with the frozen tensors of its base model.
int export_with_base(const ConvertOptions& options, const std::string& checkpoint_folder,
                     const Config& trained, const ExportJob& job) {
  CheckpointWeights weights(checkpoint_folder);
  const MergeRounding rounding = export_merged(
      umask_files(), job.options, job.model,
      open_model_folder(job.options.source_folder, job.model),
      [&](const std::string& tensor, int64_t begin, int64_t end, std::span<float> out) {
        if (!weights.has(tensor)) return false;
        weights.read(tensor, begin, end, out);
        return true;
      });
  print_merged(options, checkpoint_folder, trained, rounding);
  return 0;
}

int export_step(const ConvertOptions& options) {
  const std::string checkpoint_folder = find_step_folder(options.checkpoint);
  const CheckpointMeta meta = Checkpoint(checkpoint_folder).meta();
  const Config trained = trained_config_of(meta);
  const bool adapter = trained.adapter.type == AdapterType::kLora;
  if (options.merge && !adapter)
    throw Error(ExitCode::kUsage, cat("--merge: ", checkpoint_folder, " holds no adapter"),
                "remove --merge");
  const NamedModelFolder base =
      options.model.empty() ? find_recorded_model(checkpoint_folder) : find_given_model(options);
  ExportJob job = make_export_job(options, trained, base.folder, checkpoint_folder);
  check_same_model(checkpoint_folder, list_weight_shapes(checkpoint_folder), job.model,
                   job.options.source_folder);
  check_same_base(meta, checkpoint_folder, ModelFolder(job.options.source_folder));
  if (options.merge || (!adapter && !job.model.trains_all()))
    return export_with_base(options, checkpoint_folder, trained, job);
  if (adapter)
    set_adapter_export(
        job.options, trained,
        peft_model(base.name, job.model.family, job.model.multimodal, job.model.tied),
        parse_dtype(options.dtype));
  export_checkpoint(umask_files(), checkpoint_folder, job.options,
                    export_tensors(job.options, job.model));
  std::cout << terminal_text(wrote_text(options.out, checkpoint_folder));
  return 0;
}

/// Returns the folder of the base model that PEFT's adapter_config.json names.
std::string find_base_of_adapter(const std::string& adapter) {
  const std::string file = adapter + "/adapter_config.json";
  const auto json = parse_json_strict(read_file(file, kMaxModelConfig), file);
  const auto base_name = json.find("base_model_name_or_path");
  std::string base =
      base_name != json.end() && base_name->is_string() ? base_name->get<std::string>() : "";
  const auto revision = json.find("revision");
  const bool pinned = revision != json.end() && revision->is_string() && parse_hub_name(base) &&
                      !posix_files().exists(base);
  if (pinned) base += cat("@", revision->get<std::string>());
  const std::string folder =
      require_model_folder(base, file, "give the folder of the base model with --model");
  std::cout << terminal_text(cat("model: ", printable_text(base), " (from ", file, ")\n"));
  return folder;
}

/// Returns the quantization of the base on which an adapter was trained: as its file records it, or
/// as given with --quantization if the file does not record it.
QuantizationConfig quantization_of_base(const ConvertOptions& options,
                                        const AdapterFolder& adapter) {
  const std::optional<QuantizationConfig> recorded_quantization = read_base_quantization(adapter);
  if (options.quantization.empty()) return recorded_quantization.value_or(QuantizationConfig{});
  const std::string text = options.quantization.starts_with("{")
                               ? options.quantization
                               : nlohmann::json{{"type", options.quantization}}.dump();
  QuantizationConfig requested_quantization;
  try {
    requested_quantization = parse_quantization(text, "--quantization");
  } catch (const Error& error) {
    throw Error(ExitCode::kUsage, error.message(),
                "write nf4, int8, none, or the section of the config: '{\"type\": \"nf4\", "
                "\"double\": false}'");
  }
  if (recorded_quantization && *recorded_quantization != requested_quantization)
    throw Error(ExitCode::kUsage,
                cat("--quantization ", options.quantization, ": ", adapter.path(),
                    " was trained on a base ",
                    recorded_quantization->type == QuantizationType::kNone
                        ? "that was not quantized"
                        : cat("quantized as ", quantization_text(*recorded_quantization))),
                "remove --quantization; the adapter's file already records it");
  if (!recorded_quantization)
    std::cout << "taking the quantization of the base from --quantization: "
              << quantization_text(requested_quantization)
              << "; the adapter's file does not record it (bitsandbytes' default is \"double\": "
                 "false)\n";
  return requested_quantization;
}

/// Merges an adapter in PEFT's layout into its base model, and exports the result.
int merge_folder(const ConvertOptions& options) {
  const std::string& folder = options.checkpoint;
  if (!options.merge)
    throw Error(ExitCode::kUsage, cat(folder, ": is an adapter in PEFT's layout already"),
                "add --merge to merge it into its base model");
  if (find_invalid_utf8(folder))
    throw Error(ExitCode::kBadInput, cat(escape_not_utf8(folder), ": its name is not UTF-8"),
                "rename the folder");
  const AdapterFolder adapter(folder);
  const LoadResult loaded =
      load_config_text("adapter.json", nlohmann::json{{"adapter", folder}}.dump());
  for (const Problem& problem : loaded.problems)
    if (problem.severity == Severity::kError)
      throw Error(ExitCode::kBadInput, cat(folder, ": ", to_text(problem)), problem.remedy);
  // Only the adapter settings are known from the folder; all other settings have their defaults.
  Config trained = resolve(loaded.written, {}).config;
  trained.quantization = quantization_of_base(options, adapter);
  const ExportJob job = make_export_job(
      options, trained,
      options.model.empty() ? find_base_of_adapter(folder) : find_given_model(options).folder,
      folder);
  const std::map<std::string, AdapterTensor> adapter_tensors =
      locate_adapter_tensors(job.model, adapter);
  const MergeRounding rounding = export_merged(
      umask_files(), job.options, job.model,
      open_model_folder(job.options.source_folder, job.model),
      [&](const std::string& tensor, int64_t begin, int64_t end, std::span<float> out) {
        const auto adapter_tensor = adapter_tensors.find(tensor);
        if (adapter_tensor == adapter_tensors.end()) return false;
        read_adapter_tensor(adapter, adapter_tensor->second, begin, end, out);
        return true;
      });
  print_merged(options, folder, trained, rounding);
  return 0;
}

/// Refuses formats other than Hugging Face's. A separate script converts to gguf, because no Python
/// runs in this program.
void refuse_other_format(const ConvertOptions& options) {
  if (options.format == "hf") return;
  if (options.format != "gguf")
    throw Error(ExitCode::kUsage, cat("--to ", options.format, ": there is no such format"),
                "write --to hf, a model folder as transformers reads it");
  const std::string out = options.out.empty() ? "FILE.gguf" : shell_word(options.out);
  throw Error(ExitCode::kUsage, "--to gguf: scripts/export_gguf.py writes GGUF files",
              cat("run scripts/export_gguf.py ", shell_word(options.checkpoint), " --out ", out,
                  ", which writes what the run exported; convert another checkpoint to a model "
                  "folder first (--out FOLDER, without --to)"));
}

int convert_command(ConvertOptions options) {
  refuse_other_format(options);
  // An adapter may be given by its Hub name; a checkpoint is always a folder.
  if (!posix_files().exists(options.checkpoint) && is_in_hub_cache(options.checkpoint))
    options.checkpoint = find_adapter_folder(options.checkpoint).folder;
  if (options.out.empty() == options.run.empty())
    throw Error(
        ExitCode::kUsage,
        options.out.empty() ? "neither --out nor --run is given" : "both --out and --run are given",
        "give --out to write a model folder, or --run to make the first checkpoint of a run from "
        "what import_checkpoint.py wrote");
  if (!options.quantization.empty() && !posix_files().exists(options.checkpoint))
    throw Error(ExitCode::kUsage, cat(options.checkpoint, ": there is no such folder"),
                "give the folder of an adapter");
  const bool is_adapter =
      options.run.empty() && posix_files().exists(options.checkpoint + "/adapter_config.json");
  if (!options.quantization.empty() && !is_adapter)
    throw Error(ExitCode::kUsage,
                cat("--quantization: ", options.checkpoint, " is not an adapter in PEFT's layout"),
                "remove --quantization: a checkpoint says how its base was quantized");
  if (!options.run.empty()) return convert_import(options);
  return is_adapter ? merge_folder(options) : export_step(options);
}

}  // namespace

Command add_convert(CLI::App& app, JsonOutput& output) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command =
      app.add_subcommand("convert",
                         "write a checkpoint as a Hugging Face model folder (an adapter in PEFT's "
                         "layout), or an imported checkpoint as a run");
  command
      ->add_option("checkpoint", options->checkpoint,
                   "a step folder, or a run (its newest step); with --merge also an adapter in "
                   "PEFT's layout; with --run, a folder of scripts/import_checkpoint.py")
      ->required();
  command->add_option("--model", options->model,
                      "the model folder that training began from (config and tokenizer; default: "
                      "the one that run.json or import.json names)");
  command->add_option("--out", options->out, "the model folder to write");
  command->add_option("--to", options->format,
                      "hf: a model folder; for gguf see scripts/export_gguf.py");
  command->add_flag("--merge", options->merge,
                    "add the adapter to the model it was trained on, in fp32");
  command->add_option(
      "--quantization", options->quantization,
      "with --merge, if the adapter's file does not say it: the quantization of the base model "
      "during training (nf4, int8, or the config's section as JSON)");
  command->add_option("--run", options->run,
                      "the run folder to make: its first checkpoint is the imported one");
  command
      ->add_option("--dtype", options->dtype,
                   "dtype of the weights; auto: the model's own, or fp32 for an adapter")
      ->check(CLI::IsMember(std::vector<std::string>(EnumNames<ExportDtype>::kNames.begin(),
                                                     EnumNames<ExportDtype>::kNames.end())));
  JsonOutput::add_option(*command);
  return [options, &output] {
    const int code = convert_command(*options);
    output.add("from", options->checkpoint);
    output.add("to", options->out.empty() ? options->run : options->out);
    return code;
  };
}

}  // namespace ftrun
