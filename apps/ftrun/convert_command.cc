#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_export.h"
#include "checkpoint/model_folder.h"
#include "commands.h"
#include "model/families.h"
#include "model/tensors.h"
#include "report/manifest.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

struct ConvertOptions {
  std::string checkpoint;
  std::string model;
  std::string out;
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
void require_same_model(const std::string& step, const std::vector<ExportTensor>& weights,
                        const ModelConfig& model, const std::string& folder) {
  std::vector<std::pair<std::string, Dims>> found;
  for (const ExportTensor& tensor : weights) found.emplace_back(tensor.name, tensor.shape);
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

int convert_command(const ConvertOptions& options) {
  const std::string step = step_folder(options.checkpoint);
  ExportOptions target;
  target.folder = options.out;
  target.source_folder = options.model.empty() ? recorded_model(step) : options.model;
  const std::string config = target.source_folder + "/config.json";
  target.config_json = read_file(config, kLargestModelConfig);
  const ModelConfig model = parse_model_config(target.config_json, config);
  target.dtype = dtype_of(options.dtype, model);
  target.kept_folders = kept_folders(step);
  const std::vector<ExportTensor> weights = checkpoint_weights(step);
  require_same_model(step, weights, model, target.source_folder);
  export_checkpoint(umask_files(), step, target);
  std::cout << step << " -> " << options.out << '\n';
  return 0;
}

}  // namespace

Command add_convert(CLI::App& app) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command =
      app.add_subcommand("convert", "write a checkpoint as a Hugging Face model folder");
  command
      ->add_option("checkpoint", options->checkpoint, "a step folder, or a run (its newest step)")
      ->required();
  command->add_option("--model", options->model,
                      "the model folder training began from (config and tokenizer); without it "
                      "the one that run.json names");
  command->add_option("--out", options->out, "the folder to write")->required();
  command
      ->add_option("--dtype", options->dtype,
                   "dtype of the weights; auto: bf16 when the model's own is, else fp32")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}));
  return [options] { return convert_command(*options); };
}

}  // namespace ftrun
