#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/import.h"
#include "checkpoint/inspect.h"
#include "commands.h"
#include "data/check_data.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// A run folder's checkpoints when it is one; the path itself otherwise.
std::string checkpoints_of(const std::string& path) {
  const std::string inside = path + "/checkpoints";
  return fs::is_directory(inside) ? inside : path;
}

bool holds_model(const std::string& path) {
  return fs::exists(path + "/config.json");
}

bool holds_adapter(const std::string& path) { return fs::exists(path + "/adapter_config.json"); }

/// A model, an adapter or a data set of the Hub is looked for in the Hugging Face cache; every other path is what it is. A data set is
/// shown by what is trained on.
std::string folder_of(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  if (!hub_cache_holds(path)) return hub_cache_holds(path, HubKind::kDataset) ? find_data_set(path).folder + "/train" : path;
  try {
    return find_adapter_folder(path).folder;
  } catch (const Error&) {
    return find_model_folder(path).folder;
  }
}

int inspect(const std::string& named) {
  const std::string path = folder_of(named);
  std::error_code error;
  if (is_import(path))
    std::cout << terminal_text(describe_import(path));
  else if (fs::is_directory(path, error))
    std::cout << terminal_text(holds_adapter(path) ? describe_adapter(path)  // as convert sees it; some have their base's config.json too
                               : holds_model(path) ? describe_model(path)
                                                   : describe_checkpoint(checkpoints_of(path)));
  else
    std::cout << terminal_text(describe_dataset(path));
  return 0;
}

int verify(const std::string& path) {
  std::vector<std::string> problems;
  if (is_import(path))
    const ImportedState whole(path);  // reads and compares everything
  else
    problems = verify_checkpoint(checkpoints_of(path));
  if (problems.empty()) {
    std::cout << terminal_text(path) << ": every file is complete and undamaged\n";
    return 0;
  }
  throw Error(ExitCode::kBadInput, join(problems, "\n"),
              "--resume auto goes on from the newest checkpoint that is undamaged, --resume STEP from that of another step");
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("inspect", "show what a data set, model folder, adapter, checkpoint or run holds");
  command->add_option("path", *path, "file, prefix or folder")->required();
  return [path] { return inspect(*path); };
}

Command add_verify(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("verify", "read checkpoints in full and say what is damaged");
  command->add_option("path", *path, "a checkpoint, its checkpoints/ folder, or a run")->required();
  return [path] { return verify(*path); };
}

}  // namespace ftrun
