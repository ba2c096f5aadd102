#pragma once

#include <map>
#include <string>
#include <string_view>

namespace ftrun {

/// Returns whether a manifest may show an environment variable: one that changes how a run
/// behaves (OMP_*, NCCL_*, CUDA_VISIBLE_DEVICES, ...) or says where it ran (SLURM_JOB_ID, RANK,
/// ...). A name that sounds like a secret (is_secret_name) is never among them.
bool is_recorded_variable(std::string_view name);

/// Returns the recorded variables in `environment`, an array of "NAME=value" strings that ends in a
/// null pointer. With a null `environment`, reads the environment of this process.
std::map<std::string, std::string> recorded_environment(char** environment = nullptr);

/// Returns `text` with the values of secret keys replaced by "(hidden)". A JSON object is searched
/// at any depth and returned with its formatting lost; other text is read as YAML, one "key: value"
/// per line.
std::string without_secrets(const std::string& text);

}  // namespace ftrun
