#include "checkpoint/import.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/output_mark.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kImportedKinds{"param", "exp_avg", "exp_avg_sq"};
constexpr int64_t kMaxImportJson = int64_t{64} << 20;

[[noreturn]] void refuse_import(const std::string& message) {
  throw Error(ExitCode::kBadInput, message, "import it again with scripts/import_checkpoint.py");
}

std::vector<std::string> texts_of(const nlohmann::json& object, const char* key,
                                  const std::string& where) {
  std::vector<std::string> texts;
  for (const nlohmann::json& text : json_array(object, key, where)) {
    if (!text.is_string())
      refuse_import(cat(where, ": field \"", key, "\" must be a list of strings"));
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

/// Returns the field's integer; 0 if the field is null.
int64_t count_or_zero(const nlohmann::json& object, const char* key, const std::string& where) {
  return object.contains(key) && object[key].is_null() ? 0 : json_int(object, key, where);
}

std::optional<LossScalerState> scaler_of(const nlohmann::json& import, const std::string& where) {
  if (!import.contains("loss_scaler") || import["loss_scaler"].is_null()) return std::nullopt;
  const nlohmann::json& scaler = json_object(import, "loss_scaler", where);
  return LossScalerState{json_number(scaler, "scale", where), json_int(scaler, "iteration", where),
                         json_int(scaler, "last_overflow", where, -1),
                         json_int(scaler, "hysteresis", where)};
}

}  // namespace

ImportRecord parse_import_record(const std::string& text, const std::string& where) {
  const nlohmann::json record = parse_json_strict(text, where);
  if (!record.is_object()) refuse_import(cat(where, ": is not an object"));
  ImportRecord import_record{
      json_text(record, "source", where), {}, texts_of(record, "unknown", where)};
  for (const auto& [key, value] : json_object(record, "known", where).items())
    import_record.known_settings.emplace_back(key, value.dump());
  return import_record;
}

bool is_import_folder(const std::string& folder) {
  return posix_files().exists((fs::path(folder) / kImportFile).string());
}

ImportedState::ImportedState(std::string folder) : folder_(std::move(folder)) {
  if (!is_import_folder(folder_))
    throw Error(ExitCode::kBadInput, cat(folder_, ": holds no ", kImportFile),
                "give a folder that scripts/import_checkpoint.py wrote");
  const std::vector<std::string> names = check_complete_output(posix_files(), folder_);
  read_import_json();
  for (const std::string& name : names)
    if (name.ends_with(".safetensors")) add_file(name);
  check_all_kinds();
}

void ImportedState::read_import_json() {
  const std::string path = (fs::path(folder_) / kImportFile).string();
  const nlohmann::json import =
      parse_json_strict(read_file(confined_path(folder_, kImportFile), kMaxImportJson), path);
  if (!import.is_object() || import.value("format", nlohmann::json()) != "ftrun-import")
    refuse_import(cat(path, ": was not written by scripts/import_checkpoint.py"));
  if (const int64_t version = json_int(import, "version", path); version != 1)
    refuse_import(cat(path, ": has version ", version, "; this ftrun reads version 1"));
  nlohmann::ordered_json record;
  for (const char* key : {"source", "known", "unknown", "zero_moments"})
    record[key] =
        import.contains(key) ? nlohmann::ordered_json(import[key]) : nlohmann::ordered_json();
  const std::string text =
      record.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  record_ = parse_import_record(text, path);
  model_ = json_text(import, "model", path);
  meta_.extra[kImportRecord] = text;
  meta_.step = json_int(import, "step", path);
  meta_.skipped_steps = json_int(import, "skipped_steps", path);
  if (meta_.skipped_steps > meta_.step)
    refuse_import(cat(path, ": ", meta_.skipped_steps, " of ", meta_.step, " steps were skipped"));
  meta_.samples = count_or_zero(import, "samples", path);
  meta_.tokens = count_or_zero(import, "tokens", path);
  meta_.scheduler["last_batch_iteration"] =
      static_cast<double>(meta_.step - meta_.skipped_steps - 1);
  meta_.loss_scaler = scaler_of(import, path);
}

void ImportedState::add_file(const std::string& name) {
  const SafetensorsFile& file = files_.emplace_back(confined_path(folder_, name));
  for (const StoredTensor& entry : file.tensors()) {
    const std::string_view full = entry.name;
    const size_t dot = full.rfind('.');
    const std::string_view kind =
        dot == std::string_view::npos ? std::string_view() : full.substr(dot + 1);
    if (dot == 0 ||
        std::find(kImportedKinds.begin(), kImportedKinds.end(), kind) == kImportedKinds.end())
      refuse_import(cat(file.path(), ": tensor \"", printable_text(full),
                        "\" is not named TENSOR.param, TENSOR.exp_avg or TENSOR.exp_avg_sq"));
    if (entry.dtype != DType::kF32)
      refuse_import(cat(file.path(), ": tensor \"", printable_text(full), "\" is ",
                        dtype_name(entry.dtype), ", expected F32"));
    if (entry.shape.size() > kMaxStateDimensions || entry.elements == 0)
      refuse_import(cat(file.path(), ": tensor \"", printable_text(full), "\" has shape ",
                        shape_text(entry.shape), "; expected at least 1 element in at most ",
                        kMaxStateDimensions, " dimensions"));
    states_.push_back({std::string(full.substr(0, dot)), std::string(kind), files_.size() - 1});
  }
}

void ImportedState::check_all_kinds() const {
  std::map<std::string, std::set<std::string>> kinds;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const StateInFile& state : states_) {
    const std::vector<int64_t>& shape =
        files_[state.file].at(cat(state.tensor, ".", state.kind)).shape;
    if (!kinds[state.tensor].insert(state.kind).second)
      refuse_import(
          cat(folder_, ": ", printable_text(state.tensor), ".", state.kind, " occurs twice"));
    if (shapes.try_emplace(state.tensor, shape).first->second != shape)
      refuse_import(
          cat(folder_, ": the states of ", printable_text(state.tensor), " have different shapes"));
  }
  if (kinds.empty()) refuse_import(cat(folder_, ": holds no tensors"));
  for (const auto& [tensor, found] : kinds)
    for (const std::string_view kind : kImportedKinds)
      if (!found.contains(std::string(kind)))
        refuse_import(cat(folder_, ": ", printable_text(tensor), ".", kind, " is missing"));
}

std::vector<std::pair<std::string, std::vector<int64_t>>> ImportedState::tensors() const {
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
  for (const StateInFile& state : states_)
    if (state.kind == "param")
      tensors.emplace_back(state.tensor, files_[state.file].at(cat(state.tensor, ".param")).shape);
  return tensors;
}

int64_t ImportedState::bytes() const {
  int64_t bytes = 0;
  for (const SafetensorsFile& file : files_) bytes += file.file_bytes();
  return bytes;
}

std::vector<StateSlice> ImportedState::slices() const {
  std::vector<StateSlice> slices;
  for (const StateInFile& state : states_) {
    const SafetensorsFile& file = files_[state.file];
    const StoredTensor& entry = file.at(cat(state.tensor, ".", state.kind));
    StateSlice slice{state.tensor, state.kind, entry.dtype, entry.shape, whole_box(entry.shape)};
    slice.read = [&file, &entry](int64_t first, int64_t last, void* out) {
      const auto size = static_cast<size_t>(dtype_bytes(entry.dtype));
      const auto from = static_cast<size_t>(first) * size;
      const auto bytes = static_cast<size_t>(last - first) * size;
      std::memcpy(out, file.bytes(entry).subspan(from, bytes).data(), bytes);
      // Releases all elements read so far: those before `first` may have been mapped again by the
      // read.
      file.release(entry, 0, last);
    };
    slices.push_back(std::move(slice));
  }
  return slices;
}

}  // namespace ftrun
