#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_export.h"
#include "commands.h"

namespace ftrun {
namespace {

struct ConvertOptions {
  std::string checkpoint;
  std::string model;
  std::string out;
  std::string dtype = "fp32";
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

int convert(const ConvertOptions& options) {
  ExportOptions target;
  target.folder = options.out;
  target.source_folder = options.model;
  target.config_json = read_file(options.model + "/config.json");
  target.dtype = options.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const std::string folder = step_folder(options.checkpoint);
  export_checkpoint(posix_files(), folder, target);
  std::cout << folder << " -> " << options.out << '\n';
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
  command
      ->add_option("--model", options->model,
                   "the model folder training began from (config and tokenizer)")
      ->required();
  command->add_option("--out", options->out, "the folder to write")->required();
  command->add_option("--dtype", options->dtype, "dtype of the weights")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  return [options] { return convert(*options); };
}

}  // namespace ftrun
