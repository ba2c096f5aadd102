#include "report/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/launch_variables.h"
#include "base/secret.h"
#include "base/text.h"
#include "report/json_depth.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 9> kShownPrefixes{
    "OMP_",    "GOMP_",       "KMP_",
    "MKL_",    "NCCL_",       "GLOO_",
    "CUBLAS_", "TORCH_NCCL_", launch_variables::kPrefix};

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

void hide_secrets(Json& value) {
  if (value.is_array()) {
    for (Json& item : value) hide_secrets(item);
  } else if (value.is_object()) {
    for (auto& [key, item] : value.items()) {
      const bool empty =
          item.is_null() || (item.is_string() && item.get_ref<const std::string&>().empty());
      if (item.is_primitive() && !empty && is_secret_name(key))
        item = kHiddenSecret;
      else
        hide_secrets(item);
    }
  }
}

std::string hide_secret_in_line(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return line;
  const bool empty = line.find_first_not_of(" \t\r", colon + 1) == std::string::npos;
  if (empty || !is_secret_name(std::string_view(line).substr(0, colon))) return line;
  return line.substr(0, colon + 1) + " " + std::string(kHiddenSecret);
}

}  // namespace

bool is_recorded_variable(std::string_view name) {
  if (is_secret_name(name)) return false;
  if (std::find(kShownNames.begin(), kShownNames.end(), name) != kShownNames.end()) return true;
  return std::any_of(kShownPrefixes.begin(), kShownPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::map<std::string, std::string> recorded_environment(char** environment) {
  std::map<std::string, std::string> recorded;
  for (char** at = environment != nullptr ? environment : environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (is_recorded_variable(name)) recorded.emplace(name, entry.substr(equals + 1));
  }
  return recorded;
}

std::string without_secrets(const std::string& text) {
  Json json;
  if (!nests_deeper_than(text, kMaxJsonDepth))
    json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    hide_secrets(json);
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
  }
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) line = hide_secret_in_line(line);
  return join(lines, "\n");
}

}  // namespace ftrun
