#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "build_info.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_export.h"
#include "checkpoint/import.h"
#include "checkpoint/inspect.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/save.h"
#include "commands.h"
#include "model/families.h"
#include "model/tensors.h"
#include "report/manifest.h"
#include "report/run_folder.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

struct ConvertOptions {
  std::string checkpoint;
  std::string model;
  std::string out;
  std::string run;
  std::string dtype = "auto";
};

/// The newest checkpoint of a run or checkpoints/ folder; a step folder stands for itself.
std::string step_folder(const std::string& path) {
  if (posix_files().exists(path + "/checkpoint.json")) return path;
  for (const std::string& root : {path + "/checkpoints", path})
    for (const CheckpointEntry& entry : list_checkpoints(root))
      if (entry.problem.empty()) return entry.folder;
  throw Error(ExitCode::kBadInput, cat(path, ": holds no checkpoint"),
              "give a run folder or a step folder");
}

/// The model folder that run.json names: it lies two folders above a step's.
std::string recorded_model(const std::string& step) {
  const fs::path run = fs::absolute(step + "/.").parent_path().parent_path().parent_path();
  const std::string manifest = (run / "run.json").string();
  const char* remedy = "give the folder that training began from with --model";
  if (!posix_files().exists(manifest))
    throw Error(ExitCode::kBadInput,
                cat(manifest, ": not there, so nothing says which model was trained"), remedy);
  const std::string model = read_manifest(manifest).model.path;
  if (model.empty() || !posix_files().exists(model + "/config.json"))
    throw Error(ExitCode::kBadInput,
                cat(manifest, ": the model folder that it names, \"", model, "\", is not there"),
                remedy);
  std::cout << "model: " << model << " (from " << manifest << ")\n";
  return model;
}

/// A config.json of another model would make a folder that nothing loads.
void require_same_model(const std::string& step, const std::vector<std::pair<std::string, Dims>>& found,
                        const ModelConfig& model, const std::string& folder) {
  const auto problems = check_tensors(build_model(model, {}, Mode::kEvaluate), found);
  if (problems.empty()) return;
  throw Error(ExitCode::kBadInput,
              cat(step, ": its weights are not those of ", folder, "/config.json:\n  ",
                  tensor_problems_text(problems)),
              "give the model folder that training began from (--model)");
}

/// The checkpoint that is read, and a run's others beside it.
std::vector<std::string> kept_folders(const std::string& step) {
  const fs::path beside = fs::absolute(step + "/.").parent_path().parent_path();
  std::vector<std::string> kept{step};
  if (beside.filename() == "checkpoints") kept.push_back(beside.string());
  return kept;
}

DType dtype_of(const std::string& name, const ModelConfig& model) {
  const bool models_own = name == "auto" && model.dtype == DType::kBF16;
  return name == "bf16" || models_own ? DType::kBF16 : DType::kF32;
}

/// Takes the folder of a run that has nothing yet, or what a convert that was killed left of one.
RunFolder new_run(const std::string& path) {
  RunFolder run(path, RunStart::kResume);
  const std::string root = run.paths().checkpoints();
  if (run.has_earlier_run() || !list_checkpoints(root).empty())
    throw Error(ExitCode::kUsage, cat(path, ": holds a run already"),
                "give --run a folder that is not there yet, and take it as output_dir");
  clean_checkpoints(posix_files(), root);
  return run;
}

std::string import_text(const ImportedState& imported) {
  const std::vector<std::string>& unknown = imported.record().unknown;
  return cat("imported from ", printable(imported.record().source), ": step ", step_text(imported.meta()),
             unknown.empty() ? "" : cat("; not known: ", printable(join(unknown, ", "))), "\n");
}

/// What scripts/import_checkpoint.py wrote becomes the first checkpoint of a run.
int convert_import(const ConvertOptions& options) {
  const ImportedState imported(options.checkpoint);
  const std::string model = options.model.empty() ? imported.model() : options.model;
  const std::string config = model + "/config.json";
  if (!posix_files().exists(config))
    throw Error(ExitCode::kBadInput, cat(config, ": not there; the import was made for the model in ", model),
                "give the folder of the model with --model");
  require_same_model(imported.folder(), imported.tensors(),
                     parse_model_config(read_file(config, kLargestModelConfig), config), model);
  const RunFolder run = new_run(options.run);
  CheckpointMeta meta = imported.meta();
  meta.ftrun_version = build_info().version;
  const SaveResult saved =
      save_checkpoint(posix_files(), SaveOptions{run.paths().checkpoints()}, meta, imported.slices(), CheckpointGroup{});
  std::cout << import_text(imported) << options.checkpoint << " -> " << saved.folder << '\n'
            << "go on with: ftrun --config CONFIG --resume auto (output_dir: " << options.run << ")\n";
  return 0;
}

int export_step(const ConvertOptions& options) {
  const std::string step = step_folder(options.checkpoint);
  ExportOptions target;
  target.folder = options.out;
  target.source_folder = options.model.empty() ? recorded_model(step) : options.model;
  const std::string config = target.source_folder + "/config.json";
  target.config_json = read_file(config, kLargestModelConfig);
  const ModelConfig model = parse_model_config(target.config_json, config);
  target.dtype = dtype_of(options.dtype, model);
  target.kept_folders = kept_folders(step);
  std::vector<std::pair<std::string, Dims>> found;
  for (const ExportTensor& tensor : checkpoint_weights(step)) found.emplace_back(tensor.name, tensor.shape);
  require_same_model(step, found, model, target.source_folder);
  export_checkpoint(umask_files(), step, target);
  std::cout << step << " -> " << options.out << '\n';
  return 0;
}

int convert_command(const ConvertOptions& options) {
  if (options.out.empty() == options.run.empty())
    throw Error(ExitCode::kUsage, options.out.empty() ? "neither --out nor --run is given" : "both --out and --run are given",
                "--out writes a model folder; --run makes the first checkpoint of a run from what import_checkpoint.py wrote");
  return options.run.empty() ? export_step(options) : convert_import(options);
}

}  // namespace

Command add_convert(CLI::App& app) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command =
      app.add_subcommand("convert", "write a checkpoint as a Hugging Face model folder, or an imported one as a run's");
  command
      ->add_option("checkpoint", options->checkpoint, "a step folder, or a run (its newest step); with --run, a folder of scripts/import_checkpoint.py")
      ->required();
  command->add_option("--model", options->model,
                      "the model folder training began from (config and tokenizer); without it "
                      "the one that run.json or import.json names");
  command->add_option("--out", options->out, "the model folder to write");
  command->add_option("--run", options->run, "the run folder to make: its first checkpoint is the imported one");
  command
      ->add_option("--dtype", options->dtype,
                   "dtype of the weights; auto: bf16 when the model's own is, else fp32")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}));
  return [options] { return convert_command(*options); };
}

}  // namespace ftrun
