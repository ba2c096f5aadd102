#include "checkpoint/hf_export.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/checksum.h"
#include "base/error.h"
#include "base/half_floats.h"
#include "base/log.h"
#include "base/replace_folder.h"
#include "base/text.h"
#include "checkpoint/exported_config.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/output_mark.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

struct WeightFile {
  std::string file;
  std::vector<TensorSpec> tensors;  // in stored order
  /// The exported tensor of each name; kept tensors are not in this map.
  std::map<std::string, const ExportTensor*> exported_by_name;
};

int64_t elements_of(const TensorSpec& tensor) {
  return checked_elements(tensor.shape, cat("tensor \"", tensor.name, "\": shape"));
}

int64_t bytes_of(const TensorSpec& tensor) {
  return elements_of(tensor) * dtype_bytes(tensor.dtype);
}

std::string shard_name(ExportFormat format, size_t number, size_t count) {
  if (format == ExportFormat::kAdapter) return "adapter_model.safetensors";
  if (count == 1) return "model.safetensors";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors", number, count);
  return text.data();
}

/// Distributes the tensors over files as transformers does: in the model's order, with a new file
/// if the next tensor would not fit.
std::vector<WeightFile> make_shards(const ExportOptions& options,
                                    const std::vector<ExportTensor>& tensors) {
  std::vector<WeightFile> shards(1);
  int64_t filled = 0;
  const auto add = [&](TensorSpec spec) {
    const int64_t bytes = bytes_of(spec);
    if (options.format == ExportFormat::kModel && filled > 0 &&
        filled + bytes > options.shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().tensors.push_back(std::move(spec));
  };
  for (const ExportTensor& tensor : tensors) {
    add({tensor.name, options.dtype, tensor.shape});
    shards.back().exported_by_name[tensor.name] = &tensor;
  }
  for (const TensorSpec& kept : options.kept_tensors) add(kept);
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shard_name(options.format, i + 1, shards.size());
    sort_as_stored(shards[i].tensors);
  }
  return shards;
}

std::vector<ModelTensorInFile> parts_of(const ExportTensor& tensor) {
  if (!tensor.parts.empty()) return tensor.parts;
  return {{tensor.name, tensor.shape}};
}

bool is_transposed(const ModelTensorInFile& part) {
  return part.location.transposed;
}

bool has_transposed_part(const std::vector<ModelTensorInFile>& parts) {
  return std::any_of(parts.begin(), parts.end(), is_transposed);
}

/// StoredRun says that elements [begin, end) of a model tensor are stored in the file's tensor from
/// element `stored` on.
struct StoredRun {
  const ModelTensorInFile* part;
  int64_t begin;
  int64_t end;
  int64_t stored;
};

/// Lists the runs that fill a tensor of the file, in the order of the file. A transposed part is a
/// single run.
std::vector<StoredRun> list_stored_runs(const std::vector<ModelTensorInFile>& parts) {
  const bool transposed = has_transposed_part(parts);
  std::vector<StoredRun> runs;
  for (const ModelTensorInFile& part : parts) {
    const int64_t elements = checked_elements(part.shape, part.tensor);
    if (part.end > 0) {
      runs.push_back({&part, part.begin, part.end, 0});
      continue;
    }
    if (part.location.name.empty() || transposed) {
      runs.push_back({&part, 0, elements, 0});
      continue;
    }
    visit_stored_intervals(part.location, 0, elements, [&](const StoredTensorInterval& interval) {
      runs.push_back({&part, interval.position, interval.position + interval.end - interval.begin,
                      interval.begin});
    });
  }
  if (!transposed)
    std::sort(runs.begin(), runs.end(),
              [](const StoredRun& a, const StoredRun& b) { return a.stored < b.stored; });
  return runs;
}

/// Calls `visit(piece, part)` for all pieces of the file's tensor.
template <typename Visit>
void visit_pieces_of(const std::string& file, const std::vector<ModelTensorInFile>& parts,
                     int64_t piece_elements, Visit visit) {
  for (const StoredRun& run : list_stored_runs(parts))
    for (int64_t begin = run.begin; begin < run.end; begin += piece_elements)
      visit(ExportPiece{file, run.part->tensor, begin, std::min(run.end, begin + piece_elements)},
            *run.part);
}

template <typename Visit>
void visit_pieces(const WeightFile& shard, int64_t piece_elements, Visit visit) {
  for (const TensorSpec& tensor : shard.tensors)
    if (const auto exported = shard.exported_by_name.find(tensor.name);
        exported != shard.exported_by_name.end())
      visit_pieces_of(
          shard.file, parts_of(*exported->second), piece_elements,
          [&](ExportPiece piece, const ModelTensorInFile&) { visit(std::move(piece)); });
}

/// Throws Error(kNumerical) if a finite value became infinity in fp16.
void check_representable(const std::string& tensor, std::span<const float> values,
                         std::span<const uint16_t> halves) {
  constexpr uint16_t kMagnitude = 0x7fff, kInfinity = 0x7c00;
  for (size_t i = 0; i < values.size(); ++i)
    if ((halves[i] & kMagnitude) == kInfinity && std::isfinite(values[i]))
      throw Error(
          ExitCode::kNumerical,
          cat("tensor ", tensor, " holds ", number_text(values[i]), "; fp16 holds at most 65504"),
          "write the weights in bf16 or fp32 (export.dtype; for a checkpoint: ftrun convert "
          "--dtype)");
}

/// PieceBuffer is the memory for the values of a piece, in fp32 and in 16 bits.
class PieceBuffer {
 public:
  explicit PieceBuffer(const ExportOptions& options) : piece_buffer_(options.piece_buffer) {
    const auto bytes = static_cast<size_t>(options.piece_elements * kExportedElementBytes);
    if (piece_buffer_.empty()) {
      allocated_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      piece_buffer_ = {allocated_.get(), bytes};
    }
    require(piece_buffer_.size() >= bytes, "the memory of an export has room for a piece");
    halves_at_ = static_cast<size_t>(options.piece_elements) * sizeof(float);
  }

  std::span<float> values(size_t count) const {
    return {reinterpret_cast<float*>(piece_buffer_.data()), count};
  }
  std::span<uint16_t> halves(size_t count) const {
    return {reinterpret_cast<uint16_t*>(piece_buffer_.data() + halves_at_), count};
  }

 private:
  std::span<std::byte> piece_buffer_;
  std::unique_ptr<std::byte[]> allocated_;
  size_t halves_at_ = 0;
};

/// ShardWriter writes a shard's tensors one after the other, in the dtype of the export.
class ShardWriter {
 public:
  ShardWriter(FileSystem& files, const std::string& folder, const ExportOptions& options,
              const WeightFile& shard, const ReadPiece& read)
      : options_(options),
        shard_(shard),
        read_(read),
        piece_buffer_(options),
        writer_(files, (fs::path(folder) / shard.file).string(), shard.tensors, options.metadata) {}

  OutputFile write() {
    for (const TensorSpec& tensor : shard_.tensors) {
      const auto exported = shard_.exported_by_name.find(tensor.name);
      if (exported == shard_.exported_by_name.end()) {
        write_kept_tensor(tensor);
        continue;
      }
      const std::vector<ModelTensorInFile> parts = parts_of(*exported->second);
      if (has_transposed_part(parts))
        write_transposed(tensor, parts);
      else
        visit_pieces_of(shard_.file, parts, options_.piece_elements,
                        [&](const ExportPiece& piece, const ModelTensorInFile&) {
                          append(tensor.name, read(piece));
                        });
    }
    const WrittenFile written = writer_.finish();
    return {shard_.file, written.bytes, written.xxh3};
  }

 private:
  /// Copies a tensor of the source folder. A matrix that is stored as codes is written as the bf16
  /// numbers that the codes represent.
  void write_kept_tensor(const TensorSpec& tensor) {
    if (!source_) source_.emplace(options_.source_folder);
    const StoredTensor* const stored = source_->find(tensor.name);
    if (!stored || stored->dtype != tensor.dtype || stored->shape != tensor.shape)
      throw Error(ExitCode::kBadInput,
                  cat(options_.source_folder, ": tensor ", printable_text(tensor.name),
                      " is no longer what it was when the run began"),
                  "put the base model back");
    if (tensor.dtype != DType::kBF16)
      return writer_.append(tensor.name, source_->tensor(tensor.name).bytes);
    const int64_t elements = elements_of(tensor);
    for (int64_t begin = 0; begin < elements; begin += options_.piece_elements) {
      const int64_t end = std::min(elements, begin + options_.piece_elements);
      const std::span<uint16_t> halves = piece_buffer_.halves(static_cast<size_t>(end - begin));
      source_->read_bf16(tensor.name, begin, end, halves);
      writer_.append(tensor.name, std::as_bytes(halves));
    }
  }

  std::span<const float> read(const ExportPiece& piece) {
    const std::span<float> values =
        piece_buffer_.values(static_cast<size_t>(piece.end - piece.begin));
    read_(piece, values);
    return values;
  }

  /// Writes a tensor whose parts are stored transposed. Each row of it takes one element of every
  /// row of the parts, so the tensor is first assembled in memory.
  void write_transposed(const TensorSpec& tensor, const std::vector<ModelTensorInFile>& parts) {
    whole_tensor_.resize(static_cast<size_t>(elements_of(tensor)));
    const auto place_piece = [&](const ExportPiece& piece, const ModelTensorInFile& part) {
      const std::span<const float> values = read(piece);
      visit_transposed_intervals(
          part.location, part.shape, piece.begin, piece.end, [&](const TransposedRowInterval& run) {
            for (int64_t i = 0; i < run.count; ++i)
              whole_tensor_[static_cast<size_t>(run.begin + i)] =
                  values[static_cast<size_t>(run.position + i * run.step - piece.begin)];
          });
    };
    visit_pieces_of(shard_.file, parts, options_.piece_elements, place_piece);
    const auto piece = static_cast<size_t>(options_.piece_elements);
    for (size_t begin = 0; begin < whole_tensor_.size(); begin += piece)
      append(
          tensor.name,
          std::span(whole_tensor_).subspan(begin, std::min(piece, whole_tensor_.size() - begin)));
  }

  void append(const std::string& tensor, std::span<const float> values) {
    if (options_.dtype == DType::kF32) return writer_.append(tensor, std::as_bytes(values));
    const bool is_f16 = options_.dtype == DType::kF16;
    const std::span<uint16_t> halves = piece_buffer_.halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(),
                   is_f16 ? f16_from_f32 : bf16_from_f32);
    if (is_f16) check_representable(tensor, values, halves);
    writer_.append(tensor, std::as_bytes(halves));
  }

  const ExportOptions& options_;
  const WeightFile& shard_;
  const ReadPiece& read_;
  const PieceBuffer piece_buffer_;
  SafetensorsWriter writer_;
  std::optional<ModelFolder> source_;
  std::vector<float> whole_tensor_;
};

OutputFile write_bytes(FileSystem& files, const std::string& folder, const std::string& name,
                       std::span<const std::byte> bytes) {
  write_synced(files, (fs::path(folder) / name).string(), bytes);
  return {name, static_cast<int64_t>(bytes.size()), xxh3(bytes.data(), bytes.size())};
}

OutputFile write_text(FileSystem& files, const std::string& folder, const std::string& name,
                      const std::string& text) {
  return write_bytes(files, folder, name, std::as_bytes(std::span(text)));
}

OutputFile write_index(FileSystem& files, const std::string& folder,
                       const std::vector<WeightFile>& shards) {
  int64_t elements = 0;
  int64_t bytes = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const WeightFile& shard : shards)
    for (const TensorSpec& tensor : shard.tensors) {
      elements += elements_of(tensor);
      bytes += bytes_of(tensor);
      weight_map[tensor.name] = shard.file;
    }
  const nlohmann::json index{{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
                             {"weight_map", weight_map}};
  return write_text(files, folder, kModelIndex, index.dump(2) + "\n");
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

/// Returns whether a file of the source folder is copied. Not copied are weights in any format,
/// files that this export writes itself, and the model card, which describes the base model.
bool is_copied_file(std::string_view name) {
  if (name.starts_with(".") || name == "config.json" || name == "adapter_config.json" ||
      name == "README.md" || name == kOutputMark)
    return false;
  return !ends_with_any(name, {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5",
                               ".msgpack", ".onnx", ".index.json"});
}

/// The folder where transformers keeps a tokenizer's additional chat templates. It is the only
/// subfolder of a model folder that is copied.
constexpr std::string_view kTemplates = "additional_chat_templates";

/// Lists the files of the source folder that are copied, by their paths in it.
std::vector<std::string> list_copied_files(FileSystem& files, const ExportOptions& options) {
  std::vector<std::string> names;
  if (options.source_folder.empty()) return names;
  const fs::path source = options.source_folder;
  std::error_code error;
  for (const std::string& name : files.list(options.source_folder)) {
    if (!fs::is_directory(source / name, error)) {
      if (is_copied_file(name)) names.push_back(name);
    } else if (name == kTemplates) {
      for (const std::string& file : files.list((source / name).string()))
        if (file.ends_with(".jinja") && !file.starts_with("."))
          names.push_back(cat(name, "/", file));
    }
  }
  return names;
}

void check_readable(FileSystem& files, const ExportOptions& options) {
  std::vector<std::string> problems;
  for (const std::string& name : list_copied_files(files, options)) {
    const std::string why = reading_problem((fs::path(options.source_folder) / name).string());
    if (!why.empty()) problems.push_back(cat("\n  ", printable_text(name), ": ", why));
  }
  if (problems.empty()) return;
  throw Error(ExitCode::kBadInput,
              cat(options.source_folder,
                  ": files that the exported model needs cannot be read:", join(problems, "")),
              "restore them (in the Hub's cache: download the model again), or remove them from "
              "the folder");
}

/// Returns whether `path` is `folder` or lies in it; neither path may contain links.
bool is_within(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

fs::path real_path(const std::string& path) {
  std::error_code error;
  return fs::weakly_canonical(fs::absolute(path, error), error);
}

[[noreturn]] void refuse_input(const std::string& folder, const std::string& why) {
  throw Error(ExitCode::kBadInput, cat(folder, ": the export is refused: ", why),
              "choose another folder");
}

/// Refuses an export that would touch files that must still exist at its end: the model that it
/// reads, and the kept folders.
void check_no_overlap(const std::string& folder, const ExportOptions& options) {
  if (!options.source_folder.empty() && is_within(real_path(options.source_folder), folder))
    refuse_input(folder,
                 cat("it contains the model that the export reads, ", options.source_folder));
  for (const std::string& kept : options.kept_folders)
    if (is_within(folder, real_path(kept)) || is_within(real_path(kept), folder))
      refuse_input(folder, cat("it would change ", kept));
}

void check_writable(const std::string& folder) {
  if (const std::string why = writing_problem(parent_folder(folder)); !why.empty())
    throw Error(ExitCode::kEnvironment, why,
                "give this user the right to write there, or choose another folder");
}

void check_free_space(FileSystem& files, const std::string& folder, const ExportOptions& options,
                      const std::vector<ExportTensor>& tensors) {
  const int64_t needed_bytes = export_bytes(options, tensors);
  const int64_t free_bytes =
      files.free_bytes(parent_folder(folder)) + export_leftover_bytes(files, folder);
  if (needed_bytes > free_bytes)
    throw Error(ExitCode::kEnvironment,
                cat(folder, ": the model takes ", human_bytes(needed_bytes), ", ",
                    human_bytes(free_bytes), " are free"),
                "free space on that file system, or choose another folder");
}

/// Logs a copied file that is a link, because it may lead anywhere, even to a folder of another
/// user. Links in a Hub cache are not logged, because they all lead to its blobs.
void report_link(const std::string& source, const std::string& name) {
  const fs::path folder = real_path(source), real = real_path((fs::path(source) / name).string());
  if (is_within(real, folder) || real.parent_path() == folder.parent_path().parent_path() / "blobs")
    return;
  log_notice(cat(source, "/", printable_text(name), ": is a link to ",
                 printable_text(real.string()), ", whose content is copied"));
}

std::vector<OutputFile> copy_files(FileSystem& files, const std::string& folder,
                                   const ExportOptions& options) {
  std::vector<OutputFile> copied;
  for (const std::string& name : list_copied_files(files, options)) {
    const fs::path path(name), target_folder = fs::path(folder) / path.parent_path();
    const MappedFile source(plain_file_path((options.source_folder / path.parent_path()).string(),
                                            path.filename().string()));
    report_link(options.source_folder, name);
    if (path.has_parent_path()) files.make_folder(target_folder.string());
    copied.push_back(write_bytes(files, folder, name, source.bytes()));
    if (path.has_parent_path()) files.sync_folder(target_folder.string());
  }
  return copied;
}

std::string config_file_name(const ExportOptions& options) {
  return options.format == ExportFormat::kAdapter ? "adapter_config.json" : "config.json";
}

/// Lists the names of all files that write_folder_files() makes.
std::vector<std::string> list_written_files(FileSystem& files, const ExportOptions& options,
                                            const std::vector<WeightFile>& shards) {
  std::vector<std::string> names = list_copied_files(files, options);
  for (const WeightFile& shard : shards) names.push_back(shard.file);
  if (shards.size() > 1) names.emplace_back(kModelIndex);
  names.push_back(config_file_name(options));
  return names;
}

void write_folder_files(FileSystem& files, const std::string& folder, const ExportOptions& options,
                        const std::vector<WeightFile>& shards, const ReadPiece& read) {
  std::vector<OutputFile> written = copy_files(files, folder, options);
  for (const WeightFile& shard : shards)
    written.push_back(ShardWriter(files, folder, options, shard, read).write());
  if (shards.size() > 1) written.push_back(write_index(files, folder, shards));
  const bool adapter = options.format == ExportFormat::kAdapter;
  written.push_back(write_text(files, folder, config_file_name(options),
                               adapter ? options.config_json
                                       : exported_config(options.config_json, options.dtype,
                                                         options.decoder_key, "config.json")));
  finish_output(files, folder, written);
}

IsOurs make_leftover_rule(const std::string& path, FileSystem& files) {
  return [name = fs::path(path).filename().string(), &files](const LeftoverFolder& leftover,
                                                             const std::string& path) {
    return leftover.original == name && is_unfinished_output(files, path);
  };
}

}  // namespace

int64_t export_whole_bytes(const std::vector<ExportTensor>& tensors) {
  int64_t largest = 0;
  for (const ExportTensor& tensor : tensors)
    if (has_transposed_part(tensor.parts))
      largest =
          std::max(largest, checked_elements(tensor.shape, tensor.name) * dtype_bytes(DType::kF32));
  return largest;
}

int64_t export_bytes(const ExportOptions& options, const std::vector<ExportTensor>& tensors) {
  int64_t bytes = 0;
  for (const ExportTensor& tensor : tensors)
    bytes += bytes_of({tensor.name, options.dtype, tensor.shape});
  for (const TensorSpec& kept : options.kept_tensors) bytes += bytes_of(kept);
  return bytes;
}

std::vector<ExportPiece> export_pieces(const ExportOptions& options,
                                       const std::vector<ExportTensor>& tensors) {
  std::vector<ExportPiece> pieces;
  for (const WeightFile& shard : make_shards(options, tensors))
    visit_pieces(shard, options.piece_elements,
                 [&](ExportPiece piece) { pieces.push_back(std::move(piece)); });
  return pieces;
}

void recover_export(FileSystem& files, const std::string& folder) {
  const std::string path = output_folder_path(folder);
  recover_folders(files, parent_folder(path), make_leftover_rule(path, files), kOutputMark);
}

int64_t export_leftover_bytes(FileSystem& files, const std::string& folder) {
  const std::string path = output_folder_path(folder);
  return leftover_bytes(files, parent_folder(path), make_leftover_rule(path, files));
}

void check_export_folder(FileSystem& files, const ExportOptions& options, OutputCheck check) {
  const std::string folder = output_folder_path(options.folder);
  check_no_overlap(folder, options);
  check_replaceable(files, folder, check);
  check_readable(files, options);
  check_writable(folder);
}

void check_export(FileSystem& files, const ExportOptions& options,
                  const std::vector<ExportTensor>& tensors) {
  check_export_folder(files, options, OutputCheck::kContents);
  check_free_space(files, output_folder_path(options.folder), options, tensors);
}

void export_model(FileSystem& files, const ExportOptions& options,
                  const std::vector<ExportTensor>& tensors, const ReadPiece& read) {
  require(is_weight_dtype(options.dtype), "the dtype of an export is one of weights");
  const std::string folder = output_folder_path(options.folder);
  check_no_overlap(folder, options);
  recover_export(files, folder);
  check_export(files, options, tensors);
  const std::optional<FolderId> old_folder_id = folder_id_of(folder);
  const std::string temporary_folder = make_temporary_path(folder);
  const std::vector<WeightFile> shards = make_shards(options, tensors);
  OwnedFd new_folder_lock, old_folder_lock;
  try {
    new_folder_lock =
        begin_output(files, temporary_folder, list_written_files(files, options, shards));
    write_folder_files(files, temporary_folder, options, shards, read);
    // Compares the folder's contents once more right before it is replaced: both the export and
    // this comparison may take long.
    check_replaceable(files, folder, OutputCheck::kContents);
    old_folder_lock = lock_folder(folder);
    check_replaceable(files, folder, OutputCheck::kSizes);
  } catch (...) {
    remove_quietly(files, temporary_folder);
    throw;
  }
  try {
    replace_folder(files, temporary_folder, folder, kOutputMark, old_folder_id);
  } catch (...) {
    // The new folder is not in place, so `temporary_folder` is still the unfinished export.
    remove_quietly(files, temporary_folder);
    throw;
  }
}

}  // namespace ftrun
