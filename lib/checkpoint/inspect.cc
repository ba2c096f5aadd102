#include "checkpoint/inspect.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>

#include "base/amount_text.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/import.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/model_folder.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

bool is_step_folder(const std::string& folder) {
  std::error_code error;
  return fs::exists(fs::path(folder) / kCheckpointFile, error) ||
         step_of_folder(fs::path(folder).filename().string()).has_value();
}

void check_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw Error(ExitCode::kBadInput, cat(folder, ": is not a folder"),
                "give a run folder or a step folder");
}

[[noreturn]] void refuse_without_checkpoint(const std::string& folder, const char* remedy) {
  throw Error(ExitCode::kBadInput, cat(folder, ": holds no checkpoint"), remedy);
}

std::vector<std::string> list_step_problems(const std::string& folder) {
  std::vector<std::string> problems;
  try {
    Checkpoint checkpoint(folder);
    std::set<std::string> known{kCheckpointFile};
    for (size_t i = 0; i < checkpoint.manifest().files.size(); ++i) {
      known.insert(checkpoint.manifest().files[i].file);
      try {
        checkpoint.verify_file(i);
      } catch (const Error& error) {
        problems.push_back(error.message());
      }
    }
    checkpoint.check_complete();
    for (const std::string& name : posix_files().list(folder))
      if (known.count(name) == 0)
        problems.push_back(cat((fs::path(folder) / name).string(), ": is not in the manifest"));
  } catch (const Error& error) {
    problems.push_back(error.message());
  }
  return problems;
}

std::vector<std::string> list_latest_problems(const std::string& root) {
  const std::string path = (fs::path(root) / kLatestFile).string();
  const auto entries = list_checkpoints(root);
  std::error_code error;
  if (entries.empty())
    refuse_without_checkpoint(root, "give a run folder with a checkpoint, or a step folder");
  if (!fs::exists(path, error)) return {cat(path, ": is missing")};
  const std::string newest = fs::path(entries.front().folder).filename().string();
  const std::string recorded = read_file(path);
  if (recorded == newest) return {};
  return {
      cat(path, ": names \"", printable_text(recorded), "\", the newest checkpoint is ", newest)};
}

/// Formats two columns, the first as wide as its longest text.
std::string table(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& [left, right] : rows) width = std::max(width, left.size());
  std::ostringstream out;
  for (const auto& [left, right] : rows)
    out << std::left << std::setw(right.empty() && !left.empty() ? 0 : static_cast<int>(width) + 2)
        << left << right << "\n";
  return out.str();
}

std::string topology_text(const CheckpointMeta& meta) {
  std::vector<std::string> parts;
  for (const auto& [name, degree] : meta.topology) parts.push_back(cat(name, " ", degree));
  return join(parts, ", ");
}

struct Amount {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
};

std::string amount_text(const Amount& amount) {
  return cat(count_text(amount.tensors, "tensor"), ", ", human_count(amount.elements),
             " elements, ", human_bytes(amount.bytes));
}

void add(Amount& amount, DType dtype, const std::vector<int64_t>& shape) {
  const int64_t elements = checked_elements(shape, "shape");
  ++amount.tensors;
  amount.elements += elements;
  amount.bytes += elements * dtype_bytes(dtype);
}

using NamedValues = FolderDescription::NamedValues;

void add_import_rows(const ImportRecord& record, NamedValues& rows) {
  rows.emplace_back("imported from", printable_text(record.source));
  if (!record.unknown_settings.empty())
    rows.emplace_back("not known", printable_text(join(record.unknown_settings, ", ")));
  for (const auto& [name, value] : record.known_settings)
    rows.emplace_back(cat("had ", printable_text(name)), printable_text(value));
}

std::string value_text(const nlohmann::json& value) {
  return printable_text(value.is_string() ? value.get<std::string>() : value.dump());
}

/// Adds a row for each of `keys` that has a value in `object`.
void add_key_rows(const nlohmann::json& object, std::initializer_list<const char*> keys,
                  NamedValues& rows) {
  if (!object.is_object()) return;
  for (const char* key : keys)
    if (const auto found = object.find(key);
        found != object.end() && !found->is_null() && !(found->is_structured() && found->empty()))
      rows.emplace_back(key, value_text(*found));
}

/// Adds rows about an adapter, from the config of the run that wrote a checkpoint: which model the
/// adapter belongs to.
void add_adapter_rows(const std::string& config, const std::string& where, NamedValues& rows) {
  const auto json = parse_json_strict(config, where);
  const auto section = [&](const char* name) {
    const auto found = json.is_object() ? json.find(name) : json.end();
    const bool is_set = json.is_object() && found != json.end() && found->is_object() &&
                        found->value("type", nlohmann::json()) != "none";
    return is_set ? *found : nlohmann::json();
  };
  if (const auto adapter = section("adapter"); adapter.is_object()) {
    rows.emplace_back("adapter", value_text(adapter.value("type", nlohmann::json("lora"))));
    add_key_rows(adapter, {"r", "lora_alpha", "use_dora", "target_modules", "target_pattern"},
                 rows);
  }
  if (const auto quantization = section("quantization"); quantization.is_object())
    rows.emplace_back("base quantized as", value_text(quantization));
}

FolderDescription describe_step(const std::string& folder) {
  const Checkpoint checkpoint(folder);
  const CheckpointMeta& meta = checkpoint.meta();
  int64_t bytes = 0;
  for (const RankRecord& file : checkpoint.manifest().files) bytes += file.bytes;
  std::vector<std::pair<std::string, std::string>> rows{
      {"checkpoint", folder},
      {"written by", cat("ftrun ", printable_text(meta.ftrun_version), ", format ",
                         checkpoint.manifest().format)},
      {"step", step_text(meta)},
      {"seen", cat(human_count(meta.samples), " sequences, ", human_count(meta.tokens), " tokens")},
      {"seed", std::to_string(meta.seed)},
      {"topology", topology_text(meta)},
      {"files", cat(checkpoint.manifest().files.size(), ", ", human_bytes(bytes))}};
  std::map<std::string, Amount> kinds;
  for (const StateInfo& state : checkpoint.states())
    add(kinds[cat(state.kind, " ", dtype_name(state.dtype))], state.dtype, state.shape);
  for (const auto& [name, amount] : kinds)
    rows.emplace_back(printable_text(name), amount_text(amount));
  if (const auto config = meta.extra.find(kConfigRecord); config != meta.extra.end())
    add_adapter_rows(config->second, checkpoint_manifest_path(folder) + ": \"config\"", rows);
  if (meta.loss_scaler) rows.emplace_back("loss scale", number_text(meta.loss_scaler->scale));
  for (const auto& [name, value] : meta.scheduler)
    rows.emplace_back(cat("scheduler ", printable_text(name)), number_text(value));
  if (const auto record = meta.extra.find(kImportRecord); record != meta.extra.end())
    add_import_rows(
        parse_import_record(record->second, checkpoint_manifest_path(folder) + ": \"imported\""),
        rows);
  return {rows};
}

FolderDescription describe_checkpoints_folder(const std::string& root) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const CheckpointEntry& entry : list_checkpoints(root)) {
    const std::string name = fs::path(entry.folder).filename().string();
    if (!entry.problem.empty()) {
      rows.emplace_back(name, cat("damaged: ", entry.problem));
      continue;
    }
    const Checkpoint checkpoint(entry.folder);
    int64_t bytes = 0;
    for (const RankRecord& file : checkpoint.manifest().files) bytes += file.bytes;
    const auto ranks = static_cast<int64_t>(checkpoint.manifest().files.size());
    rows.emplace_back(name, cat(count_text(ranks, "rank"), ", ", human_bytes(bytes), ", ",
                                human_count(checkpoint.meta().tokens), " tokens seen"));
  }
  if (!rows.empty()) return {rows};
  if (fs::path(root).filename() == "checkpoints")
    return {{{cat(root, ": holds no checkpoint"), ""}}};  // the run has saved none yet
  refuse_without_checkpoint(root,
                            "give the folder of a run, a checkpoint, a model or an adapter; of a "
                            "data set its file or prefix");
}

/// Adds rows for the keys of config.json that describe the model; absent ones are left out.
void add_config_rows(const ModelFolder& model,
                     std::vector<std::pair<std::string, std::string>>& rows) {
  const auto config = parse_json_strict(model.config_json(), model.path() + "/config.json");
  add_key_rows(
      config,
      {"model_type", "architectures", "num_hidden_layers", "hidden_size", "intermediate_size",
       "num_attention_heads", "num_key_value_heads", "vocab_size", "tie_word_embeddings"},
      rows);
}

}  // namespace

std::vector<std::string> verify_checkpoint(const std::string& folder) {
  check_folder(folder);
  if (is_step_folder(folder)) return list_step_problems(folder);
  std::vector<std::string> problems = list_latest_problems(folder);
  for (const CheckpointEntry& entry : list_checkpoints(folder)) {
    const auto more = list_step_problems(entry.folder);
    problems.insert(problems.end(), more.begin(), more.end());
  }
  return problems;
}

std::string FolderDescription::text() const {
  if (tensors.empty()) return table(facts);
  NamedValues first = facts;
  first.emplace_back("", "");
  return table(first) + table(tensors);
}

std::string step_text(const CheckpointMeta& meta) {
  return cat(meta.step, meta.skipped_steps > 0 ? cat(" (", meta.skipped_steps, " skipped)") : "");
}

FolderDescription describe_checkpoint(const std::string& folder) {
  check_folder(folder);
  return is_step_folder(folder) ? describe_step(folder) : describe_checkpoints_folder(folder);
}

FolderDescription describe_import(const std::string& folder) {
  const ImportedState imported(folder);
  NamedValues rows{{"import", folder},
                   {"step", step_text(imported.meta())},
                   {"tensors", cat(imported.tensors().size(), ", ", human_bytes(imported.bytes()))},
                   {"model", printable_text(imported.model())}};
  if (const auto& scaler = imported.meta().loss_scaler)
    rows.emplace_back("loss scale", number_text(scaler->scale));
  add_import_rows(imported.record(), rows);
  return {rows};
}

FolderDescription describe_adapter(const std::string& folder) {
  const AdapterFolder adapter(folder);
  const std::string file = folder + "/adapter_config.json";
  NamedValues rows{{"adapter", folder}};
  add_key_rows(parse_json_strict(read_file(file, kMaxManifestBytes), file),
               {"base_model_name_or_path", "peft_type", "r", "lora_alpha", "lora_dropout",
                "use_rslora", "use_dora", "target_modules", "exclude_modules",
                "layers_to_transform", "rank_pattern", "alpha_pattern", "modules_to_save", "bias"},
               rows);
  const auto quantization = adapter.metadata().find(kBaseQuantization);
  rows.emplace_back("base quantized as", quantization == adapter.metadata().end()
                                             ? "(the file does not say)"
                                             : printable_text(quantization->second));
  std::map<std::string, Amount> dtypes;
  for (const StoredTensor& tensor : adapter.tensors())
    add(dtypes[std::string(dtype_name(tensor.dtype))], tensor.dtype, tensor.shape);
  for (const auto& [name, amount] : dtypes) rows.emplace_back(name, amount_text(amount));
  NamedValues tensors;
  for (const StoredTensor& tensor : adapter.tensors())
    tensors.emplace_back(printable_text(tensor.name),
                         cat(dtype_name(tensor.dtype), " ", shape_text(tensor.shape)));
  return {rows, tensors};
}

FolderDescription describe_model(const std::string& folder) {
  const ModelFolder model(folder);
  std::vector<std::pair<std::string, std::string>> rows{{"model", folder}};
  add_config_rows(model, rows);
  std::map<std::string, Amount> dtypes;
  int64_t parameters = 0;
  for (const std::string& name : model.names()) {
    const StoredTensor& tensor = model.at(name);
    parameters += tensor.elements;
    add(dtypes[std::string(dtype_name(tensor.dtype))], tensor.dtype, tensor.shape);
  }
  rows.emplace_back("parameters", human_count(parameters));
  for (const auto& [name, amount] : dtypes) rows.emplace_back(name, amount_text(amount));
  rows.emplace_back("files", join(model.weight_files(), ", "));
  rows.emplace_back("fingerprint", model.fingerprint());
  std::vector<std::pair<std::string, std::string>> tensors;
  for (const std::string& name : model.names())
    tensors.emplace_back(printable_text(name), cat(dtype_name(model.at(name).dtype), " ",
                                                   shape_text(model.at(name).shape)));
  return {rows, tensors};
}

}  // namespace ftrun
