#include "report/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"
#include "report/json_depth.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHidden = "(hidden)";

constexpr std::array<std::string_view, 9> kShownPrefixes{
    "OMP_", "GOMP_", "KMP_", "MKL_", "NCCL_", "GLOO_", "CUBLAS_", "TORCH_NCCL_", "FTRUN_"};

constexpr std::array<std::string_view, 31> kShownNames{"CUDA_VISIBLE_DEVICES",
                                                       "CUDA_DEVICE_MAX_CONNECTIONS",
                                                       "CUDA_LAUNCH_BLOCKING",
                                                       "CUDA_MODULE_LOADING",
                                                       "PYTORCH_CUDA_ALLOC_CONF",
                                                       "LD_LIBRARY_PATH",
                                                       "LD_PRELOAD",
                                                       "MALLOC_ARENA_MAX",
                                                       "RANK",
                                                       "LOCAL_RANK",
                                                       "WORLD_SIZE",
                                                       "LOCAL_WORLD_SIZE",
                                                       "GROUP_RANK",
                                                       "MASTER_ADDR",
                                                       "MASTER_PORT",
                                                       "TORCHELASTIC_RESTART_COUNT",
                                                       "TORCHELASTIC_RUN_ID",
                                                       "OMPI_COMM_WORLD_RANK",
                                                       "OMPI_COMM_WORLD_SIZE",
                                                       "SLURM_JOB_ID",
                                                       "SLURM_JOB_NAME",
                                                       "SLURM_JOB_NODELIST",
                                                       "SLURM_JOB_PARTITION",
                                                       "SLURM_NNODES",
                                                       "SLURM_NTASKS",
                                                       "SLURM_PROCID",
                                                       "SLURM_LOCALID",
                                                       "SLURM_NODEID",
                                                       "SLURM_CPUS_PER_TASK",
                                                       "SLURM_RESTART_COUNT",
                                                       "SLURM_ARRAY_TASK_ID"};

constexpr std::array<std::string_view, 8> kSecretWords{
    "password", "passwd", "passphrase", "secret", "credential", "credentials", "token", "auth"};

/// Lower-case words of a name: "wandbApi_KEY" is wandb, api, key.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  bool after_lower = false;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool upper = std::isupper(byte) != 0;
    if (std::isalnum(byte) == 0 || (upper && after_lower)) words.emplace_back();
    if (std::isalnum(byte) != 0) words.back() += static_cast<char>(std::tolower(byte));
    after_lower = std::islower(byte) != 0;
  }
  std::erase(words, "");
  return words;
}

void hide_in(Json& value) {
  if (value.is_array()) {
    for (Json& item : value) hide_in(item);
  } else if (value.is_object()) {
    for (auto& [key, item] : value.items()) {
      const bool holds_something = item.is_string() && !item.get_ref<const std::string&>().empty();
      if (holds_something && is_secret_name(key))
        item = kHidden;
      else
        hide_in(item);
    }
  }
}

std::string hide_in_line(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return line;
  const bool empty = line.find_first_not_of(" \t\r", colon + 1) == std::string::npos;
  if (empty || !is_secret_name(std::string_view(line).substr(0, colon))) return line;
  return line.substr(0, colon + 1) + " " + std::string(kHidden);
}

}  // namespace

bool is_secret_name(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  // A dtype is no secret, whatever it is the type of: "token_dtype".
  if (!words.empty() && words.back() == "dtype") return false;
  for (const std::string& word : words)
    if (std::find(kSecretWords.begin(), kSecretWords.end(), word) != kSecretWords.end())
      return true;
  return (words.size() > 1 && words.back() == "key") ||
         (!words.empty() && words.back().size() > 3 && words.back().ends_with("apikey"));
}

bool is_shown_variable(std::string_view name) {
  if (is_secret_name(name)) return false;
  if (std::find(kShownNames.begin(), kShownNames.end(), name) != kShownNames.end()) return true;
  return std::any_of(kShownPrefixes.begin(), kShownPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::map<std::string, std::string> shown_environment(char** environment) {
  std::map<std::string, std::string> shown;
  for (char** at = environment != nullptr ? environment : environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (is_shown_variable(name)) shown.emplace(name, entry.substr(equals + 1));
  }
  return shown;
}

std::string without_secrets(const std::string& text) {
  Json json;
  if (!nests_deeper_than(text, kDeepestJson))
    json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    hide_in(json);
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
  }
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) line = hide_in_line(line);
  return join(lines, "\n");
}

}  // namespace ftrun
