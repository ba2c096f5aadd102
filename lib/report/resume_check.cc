#include "report/resume_check.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/plain_json.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;
using ValuesByField = std::map<std::string, std::string>;

const std::string kNone(kNotRecorded);

void add_flat_differences(const ValuesByField& earlier, const ValuesByField& current,
                          bool affects_results, std::vector<ManifestDifference>& out) {
  ValuesByField names = earlier;
  names.insert(current.begin(), current.end());
  for (const auto& [name, unused] : names) {
    const auto a = earlier.find(name);
    const auto b = current.find(name);
    const std::string earlier_value = a == earlier.end() ? kNone : a->second;
    const std::string current_value = b == current.end() ? kNone : b->second;
    if (earlier_value != current_value)
      out.push_back({name, earlier_value, current_value, affects_results});
  }
}

ValuesByField flatten_section(const Json& manifest, const char* section) {
  ValuesByField flat;
  const Json& json = manifest.at(section);
  if (!json.empty())
    flatten(json, section,
            [&](const std::string& name, const std::string& text) { flat[name] = text; });
  return flat;
}

void add_config_differences(const Json& earlier, const Json& current,
                            std::vector<ManifestDifference>& out) {
  const bool by_key = earlier.at("config").is_object() && current.at("config").is_object();
  if (by_key)
    add_flat_differences(flatten_section(earlier, "config"), flatten_section(current, "config"),
                         true, out);
  else if (earlier.at("config") != current.at("config"))
    out.push_back({"config", "text with xxh3 " + earlier.at("config_xxh3").get<std::string>(),
                   "text with xxh3 " + current.at("config_xxh3").get<std::string>()});
}

/// Lists the fields that identify an input when it is compared with `other`: its details, and its
/// fingerprint if both have one, else path and size.
ValuesByField identifying_fields(const std::string& name, const InputRecord& input,
                                 const InputRecord& other) {
  ValuesByField flat;
  for (const auto& [key, value] : input.details) flat[name + "." + key] = value;
  if (!input.fingerprint.empty() && !other.fingerprint.empty()) {
    flat[name + ".fingerprint"] = input.fingerprint;
  } else {
    flat[name + ".path"] = input.path;
    flat[name + ".bytes"] = std::to_string(input.bytes);
  }
  return flat;
}

void add_input_differences(const std::string& name, const InputRecord& earlier,
                           const InputRecord& current, std::vector<ManifestDifference>& out) {
  add_flat_differences(identifying_fields(name, earlier, current),
                       identifying_fields(name, current, earlier), true, out);
}

void add_data_differences(const RunManifest& earlier, const RunManifest& current,
                          std::vector<ManifestDifference>& out) {
  std::map<std::string, InputRecord> roles = earlier.data;
  roles.insert(current.data.begin(), current.data.end());
  for (const auto& [role, unused] : roles) {
    const auto a = earlier.data.find(role);
    const auto b = current.data.find(role);
    if (a == earlier.data.end())
      out.push_back({"data." + role, kNone, b->second.path});
    else if (b == current.data.end())
      out.push_back({"data." + role, a->second.path, kNone});
    else
      add_input_differences("data." + role, a->second, b->second, out);
  }
}

/// Adds the differences between machines. They do not matter: a run may resume on another node.
void add_machine_differences(const RunManifest& earlier, const RunManifest& current,
                             std::vector<ManifestDifference>& out) {
  const auto flat = [](const RunManifest& m) {
    return ValuesByField{{"machine.cpu_model", m.machine.cpu_model},
                         {"machine.gpu_driver", m.gpu_driver},
                         {"machine.gpus", Json(m.gpus).dump()}};
  };
  add_flat_differences(flat(earlier), flat(current), false, out);
}

bool is_allowed(const std::string& field, const std::vector<std::string>& allowed) {
  return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& entry) {
    return field == entry || field.starts_with(entry + ".");
  });
}

}  // namespace

std::vector<ManifestDifference> compare_manifests(const RunManifest& earlier,
                                                  const RunManifest& current) {
  // The manifests are compared as the texts that are written to disk, so that hidden secrets are
  // equal, and numbers are equal if their texts are.
  const Json a = Json::parse(manifest_text(earlier));
  const Json b = Json::parse(manifest_text(current));
  std::vector<ManifestDifference> out;
  add_config_differences(a, b, out);
  add_input_differences("model", earlier.model, current.model, out);
  add_data_differences(earlier, current, out);
  if (earlier.seed != current.seed)
    out.push_back({"seed", std::to_string(earlier.seed), std::to_string(current.seed)});
  add_flat_differences(flatten_section(a, "topology"), flatten_section(b, "topology"), true, out);
  // The libraries of matrix multiplication (`products`) are empty on GPUs, and are then not
  // compared.
  if (!earlier.matmul_libraries.empty() && !current.matmul_libraries.empty())
    add_flat_differences(flatten_section(a, "products"), flatten_section(b, "products"), true, out);
  if (!earlier.reduction.empty() && !current.reduction.empty() &&
      earlier.reduction != current.reduction)
    out.push_back({"sums", earlier.reduction, current.reduction});
  if (!earlier.attention.empty() && !current.attention.empty() &&
      earlier.attention != current.attention)
    out.push_back({"attention", earlier.attention, current.attention});
  add_flat_differences(flatten_section(a, "build"), flatten_section(b, "build"), false, out);
  add_machine_differences(earlier, current, out);
  return out;
}

void refuse_other_run(const std::string& path, const std::vector<ManifestDifference>& differences,
                      const std::vector<std::string>& allowed) {
  std::string list, first;
  int count = 0;
  for (const ManifestDifference& difference : differences) {
    if (!difference.affects_results || is_allowed(difference.field, allowed)) continue;
    list += cat("\n  ", difference.field, ": was ", difference.earlier_value, ", is now ",
                difference.current_value);
    if (count++ == 0) first = difference.field;
  }
  if (count == 0) return;
  throw Error(
      ExitCode::kUsage,
      cat(path, ": this is not the run that was started there; ", count,
          count == 1 ? " thing differs:" : " things differ:", list),
      cat("undo the change to continue that run, or admit it with --allow ", first,
          count == 1 ? "" : " (once for each field; --allow config.train admits all of train)",
          ", or start a new one in another output_dir"));
}

}  // namespace ftrun
