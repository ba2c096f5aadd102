#include "report/resume_check.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/plain_json.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;
using Flat = std::map<std::string, std::string>;

const std::string kNone(kNotRecorded);

void add_flat_differences(const Flat& before, const Flat& now, bool affects_results,
                          std::vector<ManifestDifference>& out) {
  Flat names = before;
  names.insert(now.begin(), now.end());
  for (const auto& [name, unused] : names) {
    const auto a = before.find(name);
    const auto b = now.find(name);
    const std::string was = a == before.end() ? kNone : a->second;
    const std::string is = b == now.end() ? kNone : b->second;
    if (was != is) out.push_back({name, was, is, affects_results});
  }
}

Flat flat_section(const Json& manifest, const char* section) {
  Flat flat;
  const Json& json = manifest.at(section);
  if (!json.empty())
    flatten(json, section,
            [&](const std::string& name, const std::string& text) { flat[name] = text; });
  return flat;
}

void add_config_differences(const Json& before, const Json& now,
                            std::vector<ManifestDifference>& out) {
  const bool by_key = before.at("config").is_object() && now.at("config").is_object();
  if (by_key)
    add_flat_differences(flat_section(before, "config"), flat_section(now, "config"), true, out);
  else if (before.at("config") != now.at("config"))
    out.push_back({"config", "text with xxh3 " + before.at("config_xxh3").get<std::string>(),
                   "text with xxh3 " + now.at("config_xxh3").get<std::string>()});
}

/// Lists the fields that identify an input when it is compared with `other`: its details, and its
/// fingerprint if both have one, else path and size.
Flat identity(const std::string& name, const InputRecord& input, const InputRecord& other) {
  Flat flat;
  for (const auto& [key, value] : input.details) flat[name + "." + key] = value;
  if (!input.fingerprint.empty() && !other.fingerprint.empty()) {
    flat[name + ".fingerprint"] = input.fingerprint;
  } else {
    flat[name + ".path"] = input.path;
    flat[name + ".bytes"] = std::to_string(input.bytes);
  }
  return flat;
}

void add_input_differences(const std::string& name, const InputRecord& before,
                           const InputRecord& now, std::vector<ManifestDifference>& out) {
  add_flat_differences(identity(name, before, now), identity(name, now, before), true, out);
}

void add_data_differences(const RunManifest& before, const RunManifest& now,
                          std::vector<ManifestDifference>& out) {
  std::map<std::string, InputRecord> roles = before.data;
  roles.insert(now.data.begin(), now.data.end());
  for (const auto& [role, unused] : roles) {
    const auto a = before.data.find(role);
    const auto b = now.data.find(role);
    if (a == before.data.end())
      out.push_back({"data." + role, kNone, b->second.path});
    else if (b == now.data.end())
      out.push_back({"data." + role, a->second.path, kNone});
    else
      add_input_differences("data." + role, a->second, b->second, out);
  }
}

/// Adds the differences between machines. They do not matter: a run may resume on another node.
void add_machine_differences(const RunManifest& before, const RunManifest& now,
                             std::vector<ManifestDifference>& out) {
  const auto flat = [](const RunManifest& m) {
    return Flat{{"machine.cpu_model", m.machine.cpu_model},
                {"machine.gpu_driver", m.gpu_driver},
                {"machine.gpus", Json(m.gpus).dump()}};
  };
  add_flat_differences(flat(before), flat(now), false, out);
}

bool is_allowed(const std::string& field, const std::vector<std::string>& allowed) {
  return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& entry) {
    return field == entry || field.starts_with(entry + ".");
  });
}

}  // namespace

std::vector<ManifestDifference> compare_manifests(const RunManifest& before,
                                                  const RunManifest& now) {
  // The manifests are compared as the texts that are written to disk, so that hidden secrets are
  // equal, and numbers are equal if their texts are.
  const Json a = Json::parse(manifest_text(before));
  const Json b = Json::parse(manifest_text(now));
  std::vector<ManifestDifference> out;
  add_config_differences(a, b, out);
  add_input_differences("model", before.model, now.model, out);
  add_data_differences(before, now, out);
  if (before.seed != now.seed)
    out.push_back({"seed", std::to_string(before.seed), std::to_string(now.seed)});
  add_flat_differences(flat_section(a, "topology"), flat_section(b, "topology"), true, out);
  // The libraries of matrix multiplication (`products`) are empty on GPUs, and are then not
  // compared.
  if (!before.matmul_libraries.empty() && !now.matmul_libraries.empty())
    add_flat_differences(flat_section(a, "products"), flat_section(b, "products"), true, out);
  if (!before.reduction.empty() && !now.reduction.empty() && before.reduction != now.reduction)
    out.push_back({"sums", before.reduction, now.reduction});
  if (!before.attention.empty() && !now.attention.empty() && before.attention != now.attention)
    out.push_back({"attention", before.attention, now.attention});
  add_flat_differences(flat_section(a, "build"), flat_section(b, "build"), false, out);
  add_machine_differences(before, now, out);
  return out;
}

void refuse_other_run(const std::string& path, const std::vector<ManifestDifference>& differences,
                      const std::vector<std::string>& allowed) {
  std::string list, first;
  int count = 0;
  for (const ManifestDifference& difference : differences) {
    if (!difference.affects_results || is_allowed(difference.field, allowed)) continue;
    list += cat("\n  ", difference.field, ": was ", difference.before, ", is now ", difference.now);
    if (count++ == 0) first = difference.field;
  }
  if (count == 0) return;
  throw Error(
      ExitCode::kUsage,
      cat(path, ": this is not the run that was started there; ", count,
          count == 1 ? " thing differs:" : " things differ:", list),
      cat("undo the change to continue that run, or admit it with --allow ", first,
          count == 1 ? "" : " (again for each field; the start of a name admits all below it)",
          ", or start a new one in another output_dir"));
}

}  // namespace ftrun
