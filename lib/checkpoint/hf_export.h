#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/stored_location.h"
#include "checkpoint/output_mark.h"
#include "checkpoint/safetensors_writer.h"

namespace ftrun {

enum class ExportFormat : uint8_t {
  kModel,    // config.json, model.safetensors or shards
  kAdapter,  // PEFT's: adapter_config.json, adapter_model.safetensors
};

struct ExportOptions {
  ExportFormat format = ExportFormat::kModel;
  /// The folder to create. An existing folder is replaced only if it is empty or holds an earlier
  /// export and nothing else.
  std::string folder;
  /// Folders in which nothing may be created, moved or removed (a run's checkpoints).
  std::vector<std::string> kept_folders;
  /// A Hugging Face folder whose other files (tokenizer, generation, license, ...) are copied
  /// unchanged; "" for none.
  std::string source_folder;
  /// The text of the config.json to write, whose unknown keys are kept, or of an
  /// adapter_config.json, which is written unchanged.
  std::string config_json;
  /// The key of config_json that holds the config of the model whose weights are written; "" if
  /// config_json is that config itself.
  std::string decoder_key;
  /// Tensors of the source folder that are written unchanged, with dtype and shape.
  std::vector<TensorSpec> kept_tensors;
  /// Metadata of the weight files, in addition to "format".
  std::map<std::string, std::string> metadata;
  /// The dtype of the weights: kF32, kBF16 or kF16.
  DType dtype = DType::kF32;
  /// The largest size of a weight file in bytes: a file is closed if the next tensor would exceed
  /// it.
  int64_t shard_bytes = 50'000'000'000;
  /// The number of elements that the export requests at once. It keeps no more in memory, except
  /// for a tensor that the file stores transposed, which it keeps as a whole.
  int64_t piece_elements = 1 << 20;
  /// Memory for the values of a piece: kExportedElementBytes for each element, aligned for fp32. If
  /// it is empty, the export allocates the memory.
  std::span<std::byte> piece_buffer = {};
};

/// Bytes of memory for each element of a piece: its value in fp32, and the same value in the 16
/// bits that the file may store.
inline constexpr int64_t kExportedElementBytes = 6;

/// ModelTensorInFile is one of the model tensors that a tensor of the file holds.
struct ModelTensorInFile {
  std::string tensor;
  std::vector<int64_t> shape;
  /// The location in the file's tensor; without a name the part is the whole tensor.
  StoredLocation location = {};
  /// Elements [begin, end) of the model tensor that the file's tensor holds, if other tensors hold
  /// the rest; 0, 0: the whole model tensor lies at `location`.
  int64_t begin = 0, end = 0;
};

/// ExportTensor is a tensor of the file. Lists of ExportTensor are in the order of the model's
/// state dict.
struct ExportTensor {
  std::string name;
  std::vector<int64_t> shape;
  /// The model tensors that it holds, which together fill it; empty: the model tensor of the same
  /// name.
  std::vector<ModelTensorInFile> parts = {};
};

/// ExportPiece requests elements [begin, end) of a flattened model tensor, for a file.
struct ExportPiece {
  std::string file;
  std::string tensor;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Lists the pieces in the order in which export_model() requests them, so that ranks which only
/// help to gather can follow.
std::vector<ExportPiece> export_pieces(const ExportOptions& options,
                                       const std::vector<ExportTensor>& tensors);

/// Returns the bytes of the largest tensor that an export keeps in memory as a whole, in fp32. Only
/// tensors that the file stores transposed are kept as a whole. Returns 0 if there is none.
int64_t export_whole_bytes(const std::vector<ExportTensor>& tensors);

/// Returns the bytes of all weights.
int64_t export_bytes(const ExportOptions& options, const std::vector<ExportTensor>& tensors);

/// Checks before an export what can be known by then. Throws Error(kBadInput) for a folder that
/// holds anything but an earlier export, that the model is read from, or that touches a kept
/// folder, and for files of the source folder that cannot be read. Throws Error(kEnvironment) if
/// this user may not write the folder. Changes nothing.
void check_export_folder(FileSystem& files, const ExportOptions& options, OutputCheck check);

/// Checks as check_export_folder() does, and throws Error(kEnvironment) if the weights do not fit
/// on the disk; the bytes that recover_export() would free count as free.
void check_export(FileSystem& files, const ExportOptions& options,
                  const std::vector<ExportTensor>& tensors);

/// Puts back or removes what a killed export to `folder` left. Every export calls it first; a run
/// that will export calls it at its start, so that the folder exists during the run. An export that
/// another process is writing is left alone.
void recover_export(FileSystem& files, const std::string& folder);
/// Returns the bytes on disk that recover_export() would free. Changes nothing.
int64_t export_leftover_bytes(FileSystem& files, const std::string& folder);

/// ReadPiece fills `out` with the piece's elements in fp32.
using ReadPiece = std::function<void(const ExportPiece& piece, std::span<float> out)>;

/// Writes a folder that transformers (4 and 5) loads: config.json, model.safetensors (or shards and
/// their index), the source folder's other files, and the mark of an output. The folder appears
/// under its name complete and synced, or not at all. Throws the errors of check_export(), also if
/// the folder was changed while the new one was written, and Error(kEnvironment) for errors of the
/// disk.
void export_model(FileSystem& files, const ExportOptions& options,
                  const std::vector<ExportTensor>& tensors, const ReadPiece& read);

}  // namespace ftrun
