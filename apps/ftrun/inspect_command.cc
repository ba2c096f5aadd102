#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/hub_cache.h"
#include "base/utf8.h"
#include "checkpoint/import.h"
#include "checkpoint/inspect.h"
#include "checkpoints_folder.h"
#include "commands.h"
#include "data/dataset_report.h"
#include "json_output.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

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
  if (!is_in_hub_cache(path))
    return is_in_hub_cache(path, HubKind::kDataset) ? find_data_set(path).folder + "/train" : path;
  try {
    return find_adapter_folder(path).folder;
  } catch (const Error&) {
    return find_model_folder(path).folder;
  }
}

nlohmann::ordered_json rows_json(const FolderDescription::NamedValues& rows) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& [name, value] : rows) json.push_back({{"name", name}, {"value", value}});
  return json;
}

/// Prints a description as text, and adds it to the output for --json.
void show_description(const char* kind, const std::string& path,
                      const FolderDescription& description, JsonOutput& output) {
  std::cout << terminal_text(description.text());
  output.add("kind", kind);
  output.add("path", path);
  output.add("facts", rows_json(description.facts));
  if (!description.tensors.empty()) output.add("tensors", rows_json(description.tensors));
}

void show_data(const std::string& path, JsonOutput& output) {
  const DatasetFacts facts = dataset_facts(path);
  std::cout << terminal_text(dataset_text(facts));
  output.add("kind", "data");
  output.add("path", path);
  output.add("facts", rows_json(facts));
}

int inspect(const std::string& given_path, JsonOutput& output) {
  const std::string path = resolve_input_path(given_path);
  std::error_code error;
  if (is_import_folder(path))
    show_description("import", path, describe_import(path), output);
  else if (!fs::is_directory(path, error))
    show_data(path, output);
  else if (holds_adapter(path))  // first: some also hold a config.json
    show_description("adapter", path, describe_adapter(path), output);
  else if (holds_model(path))
    show_description("model", path, describe_model(path), output);
  else
    show_description("checkpoint", path, describe_checkpoint(checkpoints_folder(path)), output);
  return 0;
}

}  // namespace

Command add_inspect(CLI::App& app, JsonOutput& output) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "inspect", "show what a data set, model folder, adapter, checkpoint or run holds");
  command->add_option("path", *path, "file, prefix or folder")->required();
  JsonOutput::add_option(*command);
  return [path, &output] { return inspect(*path, output); };
}

}  // namespace ftrun
