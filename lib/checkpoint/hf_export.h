#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace ftrun {

struct ExportOptions {
  /// The folder to make. One that exists is replaced only if it is empty or holds a config.json.
  std::string folder;
  /// Hugging Face folder whose other files (tokenizer, generation, licence, ...) are copied through
  /// byte for byte; "" for none.
  std::string source_folder;
  /// Text of the config.json to write; its unknown keys are kept.
  std::string config_json;
  /// Dtype of the weights: kF32 or kBF16.
  DType dtype = DType::kF32;
  /// A file of weights is closed when the next tensor would make it larger, in bytes.
  int64_t shard_bytes = 50'000'000'000;
  /// Elements asked for at once: what the export holds in memory.
  int64_t piece_elements = 4 << 20;
};

/// A tensor of the model, in the order of its state dict.
struct ExportTensor {
  std::string name;
  std::vector<int64_t> shape;
};

/// Elements [begin, end) of a flattened tensor.
struct ExportPiece {
  std::string file;
  std::string tensor;
  int64_t begin = 0;
  int64_t end = 0;
};

/// The pieces in the order in which export_model asks for them, so that ranks which only help to
/// gather can follow.
std::vector<ExportPiece> export_pieces(const ExportOptions& options,
                                       const std::vector<ExportTensor>& tensors);

/// Fills `out` with the piece's elements in fp32.
using ReadPiece = std::function<void(const ExportPiece& piece, std::span<float> out)>;

/// Writes a folder that transformers (4 and 5) loads: config.json, model.safetensors (or shards and
/// their index), and the source folder's other files. It appears under its name complete and synced
/// or not at all. Error(kEnvironment) from the disk, Error(kBadInput) for a target or source that
/// must not be used.
void export_model(FileSystem& files, const ExportOptions& options,
                  const std::vector<ExportTensor>& tensors, const ReadPiece& read);

/// config.json for weights of `dtype`: both spellings of the dtype and of the rope settings, so
/// that old and new readers agree; everything else unchanged. `where` names the text in errors.
std::string exported_config(const std::string& config_json, DType dtype, const std::string& where);

}  // namespace ftrun
