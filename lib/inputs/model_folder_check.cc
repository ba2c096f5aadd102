#include "inputs/model_folder_check.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/env_lookup.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/text.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/model_folder.h"
#include "config/model_name.h"
#include "inputs/config_problem.h"
#include "inputs/weights_check.h"
#include "model/families.h"

namespace ftrun {
namespace {

/// Reads the name of the base model from an adapter's file; "" if the file does not name it.
std::string read_base_name(const std::string& folder) {
  const std::string file = folder + "/adapter_config.json";
  const nlohmann::json adapter_config =
      nlohmann::json::parse(read_file(file, kMaxModelConfig), nullptr, false);
  if (!adapter_config.is_object() || !adapter_config.contains("base_model_name_or_path")) return "";
  const auto& base = adapter_config["base_model_name_or_path"];
  return base.is_string() ? printable_text(base.get<std::string>()) : "";
}

/// Refuses a folder without config.json. If it is the folder of a run, the remedy names the model
/// or adapter that the run exported.
[[noreturn]] void refuse_without_config(const std::string& folder,
                                        const std::string& rename_advice) {
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
              cat("give the path of a Hugging Face model folder", rename_advice));
}

/// Refuses a path that is not the folder of a model: a missing path, a file, an adapter, or a
/// folder without config.json.
void check_model_folder(const ResolvedFolder& resolved) {
  namespace fs = std::filesystem;
  const std::string& folder = resolved.folder;
  const std::string rename_advice =
      resolved.hides_cached
          ? "; or rename this one to use the model of that name in the Hugging Face cache"
          : "";
  std::error_code error;
  if (!fs::exists(folder, error))
    throw Error(ExitCode::kBadInput,
                cat(folder, ": there is no such folder",
                    did_you_mean(find_similar_hub_name(folder, process_environment()))),
                "name a model folder on this machine, relative to the working directory, or a "
                "model of the Hugging Face Hub that was downloaded, as owner/name; ftrun downloads "
                "nothing (hf "
                "download owner/name does)");
  if (!fs::is_directory(folder, error)) {
    const fs::path file = folder;
    const bool is_of_model = file.filename() == "config.json" || file.extension() == ".safetensors";
    const std::string parent = file.parent_path().empty() ? "." : file.parent_path().string();
    throw Error(ExitCode::kBadInput, cat(folder, ": is a file, expected a model folder"),
                is_of_model
                    ? cat("name the folder that contains it, ", parent)
                    : cat("name a Hugging Face model folder (config.json and *.safetensors)",
                          rename_advice));
  }
  if (fs::exists(folder + "/config.json", error)) return;
  if (fs::exists(folder + "/adapter_config.json", error)) {
    const std::string base = read_base_name(folder);
    throw Error(
        ExitCode::kBadInput, cat(folder, ": is an adapter (adapter_config.json), not a model"),
        cat("write adapter: ", folder, " to continue from it, and its base model as model.path",
            base.empty() ? "" : cat(" (its file says ", base, ")")));
  }
  refuse_without_config(folder, rename_advice);
}

}  // namespace

CheckedModelFolder find_model_folder_of(const WrittenConfig& config) {
  const auto path = config.get<std::string>("model.path");
  const ResolvedFolder resolved =
      find_model_folder(pinned_name({.path = path, .commit = config.model_commit}));
  check_model_folder(resolved);
  CheckedModelFolder checked{resolved.folder, {}};
  if (resolved.hides_cached)
    checked.notices.push_back(notice_about(
        config.origins, "model.path",
        cat("model.path: the folder ", path,
            " is read; the Hugging Face cache also has a model of that name"),
        cat("write ", std::filesystem::absolute(path).lexically_normal().string(),
            " if you mean the folder; else rename it")));
  if (std::filesystem::exists(resolved.folder + "/adapter_config.json"))
    checked.notices.push_back(
        notice_about(config.origins, "model.path",
                     cat("model.path: ", resolved.folder,
                         " also contains an adapter (adapter_config.json), which is not read"),
                     cat("to continue from it, write adapter: ", resolved.folder)));
  return checked;
}

std::optional<Problem> find_weights_problem(const Config& config, const ModelConfig& model) {
  try {
    const ModelDescription evaluated_model = build_model(model, {}, GraphMode::kEvaluate);
    check_model_weights(evaluated_model,
                        open_model_folder(folder_of(config.model), evaluated_model));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadInput) throw;
    return problem_at(config.origins.position("model.path"), error);
  }
  return std::nullopt;
}

}  // namespace ftrun
