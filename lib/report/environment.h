#pragma once

#include <map>
#include <string>
#include <string_view>

namespace ftrun {

/// True for the environment variables that a manifest may show: those that change how a run
/// behaves (OMP_*, NCCL_*, CUDA_VISIBLE_DEVICES, ...) or say where it ran (SLURM_JOB_ID, RANK,
/// ...). A name that sounds like a secret (is_secret_name) is never among them.
bool is_shown_variable(std::string_view name);

/// The shown variables among `environment`, an array of "NAME=value" that ends in a null pointer;
/// without one, this process's own.
std::map<std::string, std::string> shown_environment(char** environment = nullptr);

/// True when a name speaks of a secret: one of its words (split at '_', '-' and capitals) is
/// password, passwd, secret, credential(s), token or auth, or it ends in "key" after another word
/// ("api_key"). Of "token" only the singular: total_tokens and tokenizer hold no secret, and neither
/// does a dtype (token_dtype).
bool is_secret_name(std::string_view name);

/// `text` with the values of secret keys replaced by "(hidden)". A JSON object is searched at any
/// depth and returned with its formatting lost; other text is taken as YAML, "key: value" a line.
std::string without_secrets(const std::string& text);

}  // namespace ftrun
