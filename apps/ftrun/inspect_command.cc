#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

#include "answer.h"
#include "base/error.h"
#include "base/hub_cache.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/import.h"
#include "checkpoint/inspect.h"
#include "commands.h"
#include "data/check_data.h"
#include "refused_config.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// Returns the checkpoints folder if the path is a run folder; otherwise the path itself.
std::string checkpoints_folder(const std::string& path) {
  const std::string inside = path + "/checkpoints";
  return fs::is_directory(inside) ? inside : path;
}

bool holds_model(const std::string& path) {
  return fs::exists(path + "/config.json");
}

bool holds_adapter(const std::string& path) {
  return fs::exists(path + "/adapter_config.json");
}

/// Looks up a Hub name in the Hugging Face cache: returns the folder of a model or an adapter, or
/// the training file of a data set. Returns every other path unchanged.
std::string resolve_input_path(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return path;
  if (!hub_cache_holds(path))
    return hub_cache_holds(path, HubKind::kDataset) ? find_data_set(path).folder + "/train" : path;
  try {
    return find_adapter_folder(path).folder;
  } catch (const Error&) {
    return find_model_folder(path).folder;
  }
}

nlohmann::ordered_json rows_json(const Description::Rows& rows) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& [name, value] : rows) json.push_back({{"name", name}, {"value", value}});
  return json;
}

/// Prints a description as text, and adds it to the answer for --json.
void show_description(const char* kind, const std::string& path, const Description& description,
                      Answer& answer) {
  std::cout << terminal_text(description.text());
  answer.add("kind", kind);
  answer.add("path", path);
  answer.add("facts", rows_json(description.facts));
  if (!description.tensors.empty()) answer.add("tensors", rows_json(description.tensors));
}

void show_data(const std::string& path, Answer& answer) {
  const DatasetFacts facts = dataset_facts(path);
  std::cout << terminal_text(dataset_text(facts));
  answer.add("kind", "data");
  answer.add("path", path);
  answer.add("facts", rows_json(facts));
}

int inspect(const std::string& named, Answer& answer) {
  const std::string path = resolve_input_path(named);
  std::error_code error;
  if (is_import(path))
    show_description("import", path, describe_import(path), answer);
  else if (!fs::is_directory(path, error))
    show_data(path, answer);
  else if (holds_adapter(path))  // first: some also hold a config.json
    show_description("adapter", path, describe_adapter(path), answer);
  else if (holds_model(path))
    show_description("model", path, describe_model(path), answer);
  else
    show_description("checkpoint", path, describe_checkpoint(checkpoints_folder(path)), answer);
  return 0;
}

/// Throws an Error for a damaged checkpoint, with a separate problem for each damage.
[[noreturn]] void refuse_damaged(const std::vector<std::string>& damage) {
  std::vector<Problem> problems;
  for (const std::string& piece : damage) {
    Problem problem;
    problem.message = piece;
    problems.push_back(problem);
  }
  throw RefusedConfig(Error(ExitCode::kBadInput, join(damage, "\n"),
                            "continue from the newest undamaged checkpoint with --resume auto, or "
                            "from that of another step with --resume STEP"),
                      std::move(problems));
}

int verify(const std::string& path, Answer& answer) {
  std::vector<std::string> problems;
  if (is_import(path))
    const ImportedState whole(path);  // the constructor reads and checks everything
  else
    problems = verify_checkpoint(checkpoints_folder(path));
  if (problems.empty()) {
    std::cout << terminal_text(path) << ": every file is complete and undamaged\n";
    answer.add("path", path);
    answer.add("undamaged", true);
    return 0;
  }
  refuse_damaged(problems);
}

}  // namespace

Command add_inspect(CLI::App& app, Answer& answer) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "inspect", "show what a data set, model folder, adapter, checkpoint or run holds");
  command->add_option("path", *path, "file, prefix or folder")->required();
  Answer::add_option(*command);
  return [path, &answer] { return inspect(*path, answer); };
}

Command add_verify(CLI::App& app, Answer& answer) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("verify", "read checkpoints in full and report what is damaged");
  command->add_option("path", *path, "a checkpoint, its checkpoints/ folder, or a run")->required();
  Answer::add_option(*command);
  return [path, &answer] { return verify(*path, answer); };
}

}  // namespace ftrun
