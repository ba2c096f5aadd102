#include "report/run_manifest.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "report/environment.h"
#include "report/json_depth.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFormat = 1;
constexpr int64_t kMaxRunManifest = int64_t{16} << 20;  // bytes
constexpr const char* kDamaged =
    "restore this file, which ftrun wrote, from a copy, or move it away; a resume then "
    "compares the run with what its checkpoint records";

/// Returns `config` as run.json stores it: a JSON object if it is one, else a string. Secrets are
/// hidden.
Json redacted_config(const std::string& config) {
  const std::string redacted = without_secrets(config);
  Json json = Json::parse(redacted, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json(redacted);
}

Json input_json(const InputRecord& input) {
  Json json{{"path", input.path}, {"bytes", input.bytes}, {"fingerprint", input.fingerprint}};
  json["details"] = input.details;
  if (!input.commit.empty()) json["commit"] = input.commit;
  return json;
}

Json machine_json(const RunManifest& manifest) {
  const MachineInfo& machine = manifest.machine;
  return {{"hostname", machine.hostname},
          {"kernel", machine.kernel},
          {"cpu_model", machine.cpu_model},
          {"cores", machine.cores},
          {"threads", manifest.threads},
          {"memory_bytes", machine.memory_bytes},
          {"memory_available_bytes", machine.memory_available_bytes},
          {"gpus", manifest.gpus},
          {"gpu_driver", manifest.gpu_driver}};
}

Json build_json(const BuildInfo& build) {
  return {{"version", build.version},   {"git_commit", build.git_commit},
          {"compiler", build.compiler}, {"libtorch", build.libtorch},
          {"cuda", build.cuda},         {"nccl", build.nccl}};
}

Json restarts_json(const std::vector<RestartRecord>& restarts) {
  Json list = Json::array();
  for (const RestartRecord& restart : restarts) {
    Json json{{"time", restart.time},
              {"reason", restart.reason},
              {"rank", restart.rank},
              {"from_step", restart.from_step},
              {"to_step", restart.to_step}};
    if (restart.ranks.count > 0) json["ranks"] = restart.ranks.count;
    if (!restart.ranks.removed_ranks.empty()) {
      json["left_ranks"] = restart.ranks.removed_ranks;
      json["left_reason"] = restart.ranks.removed_reason;
    }
    list.push_back(std::move(json));
  }
  return list;
}

/// Converts the evaluations to JSON; a number that is not finite becomes null.
Json evaluations_json(const std::map<std::string, std::map<std::string, double>>& evaluations) {
  Json json = Json::object();
  for (const auto& [set, figures] : evaluations)
    for (const auto& [name, value] : figures)
      json[set][name] =
          name == "step" || name == "tokens" ? Json(static_cast<int64_t>(value)) : Json(value);
  return json;
}

Json manifest_json(const RunManifest& manifest) {
  Json json;
  json["format"] = kFormat;
  json["started"] = manifest.start_time;
  json["start"] = manifest.start_state;
  json["ended"] = manifest.end_time;
  json["exit_code"] = manifest.exit_code ? Json(*manifest.exit_code) : Json(nullptr);
  json["exit_reason"] = manifest.exit_reason;
  json["exit_rank"] = manifest.exit_rank;
  json["build"] = build_json(manifest.build);
  json["machine"] = machine_json(manifest);
  json["products"] = manifest.matmul_libraries;
  json["sums"] = manifest.reduction;
  if (!manifest.attention.empty()) json["attention"] = manifest.attention;
  json["seed"] = manifest.seed;
  json["topology"] = Json::object();
  for (const auto& [axis, ranks] : manifest.topology) json["topology"][axis] = ranks;
  json["model"] = input_json(manifest.model);
  json["data"] = Json::object();
  for (const auto& [role, input] : manifest.data) json["data"][role] = input_json(input);
  json["environment"] = manifest.environment;
  json["restarts"] = restarts_json(manifest.restarts);
  if (!manifest.evaluations.empty()) json["evaluations"] = evaluations_json(manifest.evaluations);
  if (manifest.best)
    json["best"] = {{"metric", manifest.best->metric},
                    {"value", manifest.best->value},
                    {"step", manifest.best->step}};
  json["counters"] = manifest.counters;
  json["memory"] = manifest.memory;
  json["traffic"] = manifest.traffic;
  if (!manifest.pipeline.empty()) json["pipeline"] = manifest.pipeline;
  if (!manifest.time.empty()) json["time"] = manifest.time;
  json["config_xxh3"] = config_hash(manifest);
  json["config"] = redacted_config(manifest.config);
  return json;
}

/// Fields is a JSON object in a file, with the dotted name of the object for error messages.
class Fields {
 public:
  Fields(const Json& json, std::string path, std::string prefix)
      : json_(json), path_(std::move(path)), prefix_(std::move(prefix)) {
    if (!json_.is_object()) refuse_value(prefix_.empty() ? "the file" : prefix_, "an object");
  }

  void get(const char* key, std::string& out) const {
    if (const Json* value = find(key)) {
      if (!value->is_string()) refuse_value(name(key), "a string");
      out = value->get<std::string>();
    }
  }
  template <typename Integer>
  requires std::is_integral_v<Integer>
  void get(const char* key, Integer& out) const {
    if (const Json* value = find(key)) {
      if (!value->is_number_integer()) refuse_value(name(key), "an integer");
      const bool fits = value->is_number_unsigned() ? std::in_range<Integer>(value->get<uint64_t>())
                                                    : std::in_range<Integer>(value->get<int64_t>());
      if (!fits)
        refuse_value(name(key),
                     cat("an integer of at most ", std::numeric_limits<Integer>::max()).c_str());
      out = value->get<Integer>();
    }
  }
  /// Reads a number; null is NaN, because a number that is not finite is written as null.
  void get(const char* key, double& out) const {
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    if (!found->is_null() && !found->is_number()) refuse_value(name(key), "a number");
    out = found->is_null() ? std::numeric_limits<double>::quiet_NaN() : found->get<double>();
  }
  void get(const char* key, std::vector<std::string>& out) const {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array()) refuse_value(name(key), "a list");
    for (const Json& item : *value) {
      if (!item.is_string()) refuse_value(name(key), "a list of strings");
      out.push_back(item.get<std::string>());
    }
  }
  void get(const char* key, std::vector<int64_t>& out) const {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array()) refuse_value(name(key), "a list");
    for (const Json& item : *value) {
      if (!item.is_number_integer()) refuse_value(name(key), "a list of integers");
      out.push_back(item.get<int64_t>());
    }
  }
  /// Calls `use` with the fields of the object at `key`, if there is one.
  template <typename Use>
  void with_object(const char* key, Use use) const {
    if (const Json* value = find(key)) use(Fields(*value, path_, name(key)));
  }
  template <typename Use>
  void each_object(const char* key, Use use) const {
    const Json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_array()) refuse_value(name(key), "a list");
    for (size_t i = 0; i < value->size(); ++i)
      use(Fields((*value)[i], path_, cat(name(key), "[", i, "]")));
  }
  std::vector<std::string> keys() const {
    std::vector<std::string> names;
    for (const auto& item : json_.items()) names.push_back(item.key());
    return names;
  }
  /// Returns the value at `key`; nullptr if it is absent or null.
  const Json* find(const std::string& key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

 private:
  std::string name(const std::string& key) const {
    return prefix_.empty() ? key : prefix_ + "." + key;
  }
  [[noreturn]] void refuse_value(const std::string& what, const char* expected) const {
    throw Error(ExitCode::kBadInput, cat(path_, ": ", what, " should be ", expected), kDamaged);
  }

  const Json& json_;
  std::string path_;
  std::string prefix_;
};

template <typename Value>
void read_map(const Fields& fields, std::map<std::string, Value>& out) {
  for (const std::string& key : fields.keys()) fields.get(key.c_str(), out[key]);
}

InputRecord read_input(const Fields& fields) {
  InputRecord input;
  fields.get("path", input.path);
  fields.get("commit", input.commit);
  fields.get("bytes", input.bytes);
  fields.get("fingerprint", input.fingerprint);
  fields.with_object("details", [&](const Fields& details) { read_map(details, input.details); });
  return input;
}

void read_build(const Fields& fields, BuildInfo& build) {
  fields.get("version", build.version);
  fields.get("git_commit", build.git_commit);
  fields.get("compiler", build.compiler);
  fields.get("libtorch", build.libtorch);
  fields.get("cuda", build.cuda);
  fields.get("nccl", build.nccl);
}

void read_machine_part(const Fields& fields, RunManifest& manifest) {
  fields.get("hostname", manifest.machine.hostname);
  fields.get("kernel", manifest.machine.kernel);
  fields.get("cpu_model", manifest.machine.cpu_model);
  fields.get("cores", manifest.machine.cores);
  fields.get("threads", manifest.threads);
  fields.get("memory_bytes", manifest.machine.memory_bytes);
  fields.get("memory_available_bytes", manifest.machine.memory_available_bytes);
  fields.get("gpus", manifest.gpus);
  fields.get("gpu_driver", manifest.gpu_driver);
}

RestartRecord read_restart(const Fields& fields) {
  RestartRecord restart;
  fields.get("time", restart.time);
  fields.get("reason", restart.reason);
  fields.get("rank", restart.rank);
  fields.get("from_step", restart.from_step);
  fields.get("to_step", restart.to_step);
  fields.get("ranks", restart.ranks.count);
  fields.get("left_ranks", restart.ranks.removed_ranks);
  fields.get("left_reason", restart.ranks.removed_reason);
  return restart;
}

void read_run_part(const Fields& fields, RunManifest& manifest) {
  fields.get("started", manifest.start_time);
  fields.get("start", manifest.start_state);
  fields.get("ended", manifest.end_time);
  if (fields.find("exit_code") != nullptr) fields.get("exit_code", manifest.exit_code.emplace());
  fields.get("exit_reason", manifest.exit_reason);
  fields.get("exit_rank", manifest.exit_rank);
  fields.get("sums", manifest.reduction);
  fields.get("attention", manifest.attention);
  fields.get("seed", manifest.seed);
  fields.with_object("environment", [&](const Fields& f) { read_map(f, manifest.environment); });
  fields.with_object("products", [&](const Fields& f) { read_map(f, manifest.matmul_libraries); });
  fields.with_object("counters", [&](const Fields& f) { read_map(f, manifest.counters); });
  const auto read_figures = [&](const char* name, auto& out) {
    fields.with_object(name, [&](const Fields& f) {
      for (const std::string& key : f.keys())
        f.with_object(key.c_str(), [&](const Fields& part) { read_map(part, out[key]); });
    });
  };
  read_figures("evaluations", manifest.evaluations);
  fields.with_object("best", [&](const Fields& f) {
    RunManifest::BestRecord& best = manifest.best.emplace();
    f.get("metric", best.metric);
    f.get("value", best.value);
    f.get("step", best.step);
  });
  read_figures("memory", manifest.memory);
  read_figures("traffic", manifest.traffic);
  read_figures("pipeline", manifest.pipeline);
  read_figures("time", manifest.time);
  fields.each_object("restarts",
                     [&](const Fields& f) { manifest.restarts.push_back(read_restart(f)); });
  if (const Json* config = fields.find("config"))
    manifest.config = config->is_string() ? config->get<std::string>() : config->dump(2);
}

void refuse_other_format(const std::string& path, const Fields& fields) {
  int64_t format = kFormat;
  fields.get("format", format);
  if (format != kFormat)
    throw Error(ExitCode::kBadInput,
                cat(path, ": its format is ", format, ", but this ftrun reads format ", kFormat),
                "use the ftrun that wrote it, or start a new run in another output_dir");
}

}  // namespace

std::string config_hash(const RunManifest& manifest) {
  const std::string text = redacted_config(manifest.config).dump();
  return hex64(xxh3(text.data(), text.size()));
}

std::string manifest_text(const RunManifest& manifest) {
  return manifest_json(manifest).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

RunManifest read_manifest(const std::string& path) {
  const std::string text = read_file(path, kMaxRunManifest);
  const Json json = nests_deeper_than(text, kMaxJsonDepth)
                        ? Json(Json::value_t::discarded)
                        : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    throw Error(ExitCode::kBadInput, cat(path, ": it is not JSON"), kDamaged);
  const Fields fields(json, path, "");
  refuse_other_format(path, fields);
  RunManifest manifest;
  read_run_part(fields, manifest);
  fields.with_object("build", [&](const Fields& f) { read_build(f, manifest.build); });
  fields.with_object("machine", [&](const Fields& f) { read_machine_part(f, manifest); });
  fields.with_object("model", [&](const Fields& f) { manifest.model = read_input(f); });
  fields.with_object("topology", [&](const Fields& f) {
    for (const std::string& axis : f.keys())
      f.get(axis.c_str(), manifest.topology.emplace_back(axis, 0).second);
  });
  fields.with_object("data", [&](const Fields& f) {
    for (const std::string& role : f.keys())
      f.with_object(role.c_str(),
                    [&](const Fields& input) { manifest.data[role] = read_input(input); });
  });
  return manifest;
}

ManifestFile::ManifestFile(std::string path, RunManifest manifest, FileSystem& files)
    : path_(std::move(path)), files_(files), manifest_(std::move(manifest)) {
  write_file_atomic(files_, path_, manifest_text(manifest_));
}

void ManifestFile::update(const std::function<void(RunManifest&)>& change) {
  const std::lock_guard lock(mutex_);
  change(manifest_);
  write_file_atomic(files_, path_, manifest_text(manifest_));
}

RunManifest ManifestFile::manifest() const {
  const std::lock_guard lock(mutex_);
  return manifest_;
}

}  // namespace ftrun
