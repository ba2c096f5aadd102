#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/stored_place.h"
#include "checkpoint/output_mark.h"
#include "checkpoint/safetensors_writer.h"

namespace ftrun {

enum class ExportFormat : uint8_t {
  kModel,    // config.json, model.safetensors or shards
  kAdapter,  // PEFT's: adapter_config.json, adapter_model.safetensors
};

struct ExportOptions {
  ExportFormat format = ExportFormat::kModel;
  /// The folder to make. One that exists is replaced only if it is empty or holds an earlier export
  /// and nothing else.
  std::string folder;
  /// Folders in which nothing may be made, moved or removed (a run's checkpoints).
  std::vector<std::string> kept_folders;
  /// Hugging Face folder whose other files (tokenizer, generation, licence, ...) are copied through
  /// byte for byte; "" for none.
  std::string source_folder;
  /// Text of the config.json to write, whose unknown keys are kept, or of an adapter_config.json,
  /// which is written unchanged.
  std::string config_json;
  /// The key under which that config.json has the config of the model whose weights are written; ""
  /// where it is that config itself.
  std::string decoder_key;
  /// Tensors of the source folder that are written unchanged, with dtype and shape.
  std::vector<TensorSpec> kept;
  /// Metadata of the weight files, beside "format".
  std::map<std::string, std::string> metadata;
  /// Dtype of the weights: kF32 or kBF16.
  DType dtype = DType::kF32;
  /// Size limit of a weight file in bytes: it is closed when the next tensor would exceed it.
  int64_t shard_bytes = 50'000'000'000;
  /// Elements that the export requests at once. It holds no more in memory, except for a tensor
  /// that the file holds transposed, which it holds whole.
  int64_t piece_elements = 1 << 20;
};

/// ExportPart is a model tensor that a tensor of the file holds.
struct ExportPart {
  std::string tensor;
  std::vector<int64_t> shape;
  /// The place in the file's tensor; without a name the part is the whole tensor.
  StoredPlace place = {};
  /// Elements [begin, end) of the model tensor that the file's tensor holds, if other tensors hold
  /// the rest; 0, 0: the whole model tensor lies at `place`.
  int64_t begin = 0, end = 0;
};

/// ExportTensor is a tensor of the file. Lists of ExportTensor follow the model's state dict.
struct ExportTensor {
  std::string name;
  std::vector<int64_t> shape;
  /// The model tensors that it holds, which cover it; empty: the model tensor of the same name.
  std::vector<ExportPart> parts = {};
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

/// Returns the bytes of all weights.
int64_t export_bytes(const ExportOptions& options, const std::vector<ExportTensor>& tensors);

/// Finds what would keep an export from being written, as far as that can be known before:
/// Error(kBadInput) for a folder that holds anything but an earlier export, that the model is read
/// from, or that touches a kept folder, and for files of the source folder that cannot be read;
/// Error(kEnvironment) if this user may not write. Changes nothing.
void check_export_folder(FileSystem& files, const ExportOptions& options, OutputCheck check);

/// Checks as check_export_folder() does, and throws Error(kEnvironment) if the weights do not fit;
/// what recover_export() would remove counts as free.
void check_export(FileSystem& files, const ExportOptions& options,
                  const std::vector<ExportTensor>& tensors);

/// Puts back or removes what a killed export to `folder` left. Exports begin with it; a run that
/// will export calls it when it starts, so that the folder exists during the run. An export that
/// another process is writing stays.
void recover_export(FileSystem& files, const std::string& folder);
/// Returns the bytes on disk that recover_export() would free. Changes nothing.
int64_t export_leftover_bytes(FileSystem& files, const std::string& folder);

/// ReadPiece fills `out` with the piece's elements in fp32.
using ReadPiece = std::function<void(const ExportPiece& piece, std::span<float> out)>;

/// Writes a folder that transformers (4 and 5) loads: config.json, model.safetensors (or shards and
/// their index), the source folder's other files, and the mark of an output. It appears under its
/// name complete and synced or not at all. Errors of check_export(), also for what was done to the
/// folder while the new one was written, and Error(kEnvironment) from the disk.
void export_model(FileSystem& files, const ExportOptions& options,
                  const std::vector<ExportTensor>& tensors, const ReadPiece& read);

/// Returns the config.json for weights of `dtype`: both spellings of the dtype and of the rope
/// settings, so that old and new readers agree; everything else unchanged. `decoder_key` is that of
/// ExportOptions; `where` names the text in errors.
std::string exported_config(const std::string& config_json, DType dtype,
                            const std::string& decoder_key, const std::string& where);

}  // namespace ftrun
