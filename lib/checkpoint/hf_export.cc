#include "checkpoint/hf_export.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "base/checksum.h"
#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

struct Shard {
  std::string file;
  std::vector<TensorSpec> tensors;  // in stored order
};

int64_t elements_of(const TensorSpec& tensor) {
  return checked_elements(tensor.shape, cat("tensor \"", tensor.name, "\": shape"));
}

std::string shard_name(size_t number, size_t count) {
  if (count == 1) return "model.safetensors";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors", number, count);
  return text.data();
}

// As transformers does it: in model order, a new file when the next tensor would not fit.
std::vector<Shard> make_shards(const ExportOptions& options,
                               const std::vector<ExportTensor>& tensors) {
  std::vector<Shard> shards(1);
  int64_t filled = 0;
  for (const ExportTensor& tensor : tensors) {
    TensorSpec spec{tensor.name, options.dtype, tensor.shape};
    const int64_t bytes = elements_of(spec) * dtype_bytes(options.dtype);
    if (filled > 0 && filled + bytes > options.shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().tensors.push_back(std::move(spec));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shard_name(i + 1, shards.size());
    sort_as_stored(shards[i].tensors);
  }
  return shards;
}

template <typename Visit>
void each_piece(const Shard& shard, int64_t piece_elements, Visit visit) {
  for (const TensorSpec& tensor : shard.tensors) {
    const int64_t elements = elements_of(tensor);
    for (int64_t begin = 0; begin < elements; begin += piece_elements)
      visit(
          ExportPiece{shard.file, tensor.name, begin, std::min(elements, begin + piece_elements)});
  }
}

void write_shard(FileSystem& files, const std::string& folder, const ExportOptions& options,
                 const Shard& shard, const ReadPiece& read) {
  SafetensorsWriter writer(files, (fs::path(folder) / shard.file).string(), shard.tensors);
  std::vector<float> values;
  std::vector<uint16_t> halves;
  each_piece(shard, options.piece_elements, [&](const ExportPiece& piece) {
    values.resize(static_cast<size_t>(piece.end - piece.begin));
    read(piece, values);
    if (options.dtype == DType::kF32) {
      writer.append(piece.tensor, std::as_bytes(std::span(values)));
    } else {
      halves.resize(values.size());
      std::transform(values.begin(), values.end(), halves.begin(), bf16_from_f32);
      writer.append(piece.tensor, std::as_bytes(std::span(halves)));
    }
  });
  writer.finish();
}

void write_text(FileSystem& files, const std::string& path, const std::string& text) {
  auto file = files.create(path);
  file->write(text.data(), text.size());
  file->sync();
  file->close();
}

void write_index(FileSystem& files, const std::string& folder, const std::vector<Shard>& shards) {
  int64_t elements = 0;
  int64_t bytes = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const Shard& shard : shards)
    for (const TensorSpec& tensor : shard.tensors) {
      elements += elements_of(tensor);
      bytes += elements_of(tensor) * dtype_bytes(tensor.dtype);
      weight_map[tensor.name] = shard.file;
    }
  const nlohmann::json index{{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
                             {"weight_map", weight_map}};
  write_text(files, (fs::path(folder) / "model.safetensors.index.json").string(),
             index.dump(2) + "\n");
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

// Weights in any format and what this export writes itself; the model card describes the base
// model.
bool is_copied(std::string_view name) {
  if (name.starts_with(".") || name == "config.json" || name == "README.md") return false;
  return !ends_with_any(name, {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5",
                               ".msgpack", ".onnx", ".index.json"});
}

void copy_file(FileSystem& files, const std::string& from, const std::string& to) {
  const MappedFile source(from);
  auto file = files.create(to);
  file->write(source.bytes().data(), source.bytes().size());
  file->sync();
  file->close();
}

void copy_others(FileSystem& files, const std::string& source, const std::string& folder) {
  std::error_code error;
  for (const std::string& name : files.list(source)) {
    if (!is_copied(name) || fs::is_directory(fs::path(source) / name, error)) continue;
    copy_file(files, confined_path(source, name), (fs::path(folder) / name).string());
  }
}

void check_target(FileSystem& files, const std::string& folder) {
  if (!files.exists(folder)) return;
  std::error_code error;
  const bool is_model = fs::is_directory(folder, error) &&
                        (files.list(folder).empty() || files.exists(folder + "/config.json"));
  if (!is_model)
    throw Error(ExitCode::kBadInput,
                cat(folder, ": exists and is not a model folder, so it is not replaced"),
                "choose another folder, or remove this one");
}

std::string temporary_name(const std::string& folder, const char* what) {
  std::random_device random;
  return cat(folder, ".", what, "-", hex64(uint64_t{random()} << 32 | random()).substr(0, 8));
}

std::string parent_of(const std::string& folder) {
  const std::string parent = fs::path(folder).parent_path().string();
  return parent.empty() ? "." : parent;
}

// What an export that was killed left behind.
void remove_leftovers(FileSystem& files, const std::string& folder) {
  const std::string parent = parent_of(folder);
  if (!files.exists(parent)) return;
  const std::string start = fs::path(folder).filename().string() + ".tmp-";
  for (const std::string& name : files.list(parent))
    if (name.starts_with(start)) files.remove_all((fs::path(parent) / name).string());
}

void put_in_place(FileSystem& files, const std::string& made, const std::string& folder) {
  const std::string old = temporary_name(folder, "old");
  const bool replaces = files.exists(folder);
  if (replaces) files.rename(folder, old);
  files.rename(made, folder);
  files.sync_folder(parent_of(folder));
  if (replaces) files.remove_all(old);
}

std::string without_trailing_slash(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

void write_all(FileSystem& files, const std::string& folder, const ExportOptions& options,
               const std::vector<ExportTensor>& tensors, const ReadPiece& read) {
  files.make_folder(folder);
  if (!options.source_folder.empty()) copy_others(files, options.source_folder, folder);
  const std::vector<Shard> shards = make_shards(options, tensors);
  for (const Shard& shard : shards) write_shard(files, folder, options, shard, read);
  if (shards.size() > 1) write_index(files, folder, shards);
  write_text(files, folder + "/config.json",
             exported_config(options.config_json, options.dtype, "config.json"));
  files.sync_folder(folder);
}

// transformers 5 keeps rope settings in one object, transformers 4 in two keys.
void spell_rope_both_ways(nlohmann::ordered_json& config) {
  const bool has_new = config.contains("rope_parameters") && config["rope_parameters"].is_object();
  if (has_new && config["rope_parameters"].contains("rope_theta") &&
      !config.contains("rope_theta")) {
    nlohmann::ordered_json scaling = config["rope_parameters"];
    config["rope_theta"] = scaling["rope_theta"];
    scaling.erase("rope_theta");
    const bool plain = !scaling.contains("rope_type") || scaling["rope_type"] == "default";
    if (!config.contains("rope_scaling"))
      config["rope_scaling"] = plain ? nlohmann::ordered_json(nullptr) : scaling;
  } else if (!has_new && config.contains("rope_theta")) {
    nlohmann::ordered_json rope{{"rope_type", "default"}};
    if (config.contains("rope_scaling") && config["rope_scaling"].is_object())
      rope = config["rope_scaling"];
    rope["rope_theta"] = config["rope_theta"];
    if (rope.contains("type") && !rope.contains("rope_type")) rope["rope_type"] = rope["type"];
    config["rope_parameters"] = rope;
  }
}

}  // namespace

std::vector<ExportPiece> export_pieces(const ExportOptions& options,
                                       const std::vector<ExportTensor>& tensors) {
  std::vector<ExportPiece> pieces;
  for (const Shard& shard : make_shards(options, tensors))
    each_piece(shard, options.piece_elements,
               [&](ExportPiece piece) { pieces.push_back(std::move(piece)); });
  return pieces;
}

std::string exported_config(const std::string& config_json, DType dtype, const std::string& where) {
  if (!parse_json_strict(config_json, where).is_object())
    throw Error(ExitCode::kBadInput, cat(where, ": must be a JSON object"),
                "use the config.json of the model that was trained");
  auto config = nlohmann::ordered_json::parse(config_json);
  const char* name = dtype == DType::kF32 ? "float32" : "bfloat16";
  config["dtype"] = name;
  config["torch_dtype"] = name;
  spell_rope_both_ways(config);
  return config.dump(2) + "\n";
}

void export_model(FileSystem& files, const ExportOptions& options,
                  const std::vector<ExportTensor>& tensors, const ReadPiece& read) {
  require(options.dtype == DType::kF32 || options.dtype == DType::kBF16, "export is F32 or BF16");
  const std::string folder = without_trailing_slash(options.folder);
  check_target(files, folder);
  remove_leftovers(files, folder);
  const std::string made = temporary_name(folder, "tmp");
  try {
    write_all(files, made, options, tensors, read);
  } catch (...) {
    try {
      files.remove_all(made);
    } catch (const Error&) {  // the first failure is the one to tell
    }
    throw;
  }
  put_in_place(files, made, folder);
}

}  // namespace ftrun
