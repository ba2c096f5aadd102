#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.h"
#include "base/dtype.h"

namespace ftrun {

/// The number of the checkpoint format (docs/checkpoint.md). Checkpoints record it, so a number
/// never gets another meaning.
inline constexpr int kCheckpointFormat = 2;

/// The name of the file in a checkpoint's folder that describes the checkpoint.
inline constexpr const char* kCheckpointFile = "checkpoint.json";
/// Returns the path of that file.
inline std::string checkpoint_manifest_path(const std::string& folder) {
  return folder + "/" + kCheckpointFile;
}

/// The name of the file next to the checkpoints that holds the name of the newest one.
inline constexpr const char* kLatestFile = "latest";

/// The name under which the "extra" of a checkpoint keeps the effective config of the run that
/// saved it.
inline constexpr const char* kConfigRecord = "config";

/// The maximum number of dimensions of a state tensor.
inline constexpr size_t kMaxStateDimensions = 8;

/// The maximum size of a checkpoint.json in bytes: a larger file is neither written nor read.
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

/// StateSlice is the part of one state tensor that this rank's memory holds.
struct StateSlice {
  /// The name of the model's tensor, as in its safetensors files.
  std::string tensor;
  /// The kind of state: "param" (master weights), "exp_avg", "exp_avg_sq", "momentum", ...
  std::string kind;
  DType dtype = DType::kF32;
  /// The shape of the whole tensor, equal on every rank and in every layout.
  std::vector<int64_t> tensor_shape;
  /// The part of the tensor that this rank holds; it is not empty.
  Box box;
  /// The elements of the box in row-major order, which a save reads and a load writes.
  void* data = nullptr;
  /// Fills `out` with elements [first, last) of the box, counted in row-major order. It replaces
  /// `data` in a save of values that are not in memory, and is called piece by piece.
  std::function<void(int64_t first, int64_t last, void* out)> read;
};

/// StateSliceRecord is a part of one state tensor in a file.
struct StateSliceRecord {
  std::string tensor;
  std::string kind;
  DType dtype = DType::kF32;
  std::vector<int64_t> tensor_shape;
  /// The box that the slice holds, row by row.
  Box box;
  /// The entry's name and shape in the safetensors file.
  std::string entry;
  std::vector<int64_t> entry_shape;
  /// The XXH3 of the slice's bytes.
  uint64_t xxh3 = 0;
};

/// Returns the record of a box, without a checksum. Its entry has the box's shape and is named
/// "tensor.kind", followed by "[begin:end,begin:end]" if the box is not the whole tensor.
StateSliceRecord slice_record(std::string tensor, std::string kind, DType dtype,
                              std::vector<int64_t> tensor_shape, Box box);
/// Returns the text in brackets at the end of the entry's name, "" for a whole tensor.
std::string part_text(const StateSliceRecord& slice);

/// The value of RankRecord::read_back for a file whose bytes came from the disk when it was read
/// back. Checkpoints record this text: do not change it.
inline constexpr const char* kReadFromDisk = "disk";
inline constexpr const char* kReadFromMemory = "memory";

/// RankRecord lists the slices that one rank wrote.
struct RankRecord {
  int rank = 0;
  /// The name of the rank's file: "rank-00000.safetensors".
  std::string file;
  int64_t bytes = 0;
  uint64_t header_xxh3 = 0;
  uint64_t xxh3 = 0;
  /// The source of the bytes when the file was read back: kReadFromDisk, kReadFromMemory (the
  /// kernel's page cache), or "" if it was not read back.
  std::string read_back;
  std::vector<StateSliceRecord> slices;
};

/// LossScalerState is the state of dynamic loss scaling, with DeepSpeed's counters.
struct LossScalerState {
  double scale = 1;
  int64_t iteration = 0;
  int64_t last_overflow = -1;
  int64_t hysteresis = 1;
};

/// CheckpointMeta holds what a run needs to resume, apart from tensors.
struct CheckpointMeta {
  std::string ftrun_version;
  /// The number of optimizer steps done, skipped ones included.
  int64_t step = 0;
  int64_t skipped_steps = 0;
  int64_t samples = 0;
  int64_t tokens = 0;
  uint64_t seed = 0;
  /// The schedule's own numbers ("last_batch_iteration", ...), which are finite.
  std::map<std::string, double> scheduler;
  std::optional<LossScalerState> loss_scaler;
  std::string data_fingerprint;
  std::string model_fingerprint;
  std::string config_hash;
  /// The degrees of the mesh and the world size ("world_size", "data", "tensor", ...).
  std::map<std::string, int64_t> topology;
  /// Other records by name, which are kept unchanged: kConfigRecord, kImportRecord (import.h),
  /// kBaseRecord, kEvaluationRecord and kNonfiniteRecord (inputs/checkpoint_fields.h).
  std::map<std::string, std::string> extra;
};

/// CheckpointManifest is the content of checkpoint.json: which states the checkpoint has, and
/// where.
struct CheckpointManifest {
  CheckpointMeta meta;
  /// The number of the commit in its run. The newest checkpoint has the highest number, even when
  /// the run went back to an earlier step.
  int64_t serial = 0;
  std::vector<RankRecord> files;
  /// The format of the text from which it was read.
  int format = kCheckpointFormat;
};

std::string rank_record_text(const RankRecord& record);
/// Reads a record from its text. The message of its Error(kBadInput) begins with `where`.
RankRecord parse_rank_record(std::string_view text, const std::string& where);

/// Returns the text of checkpoint.json. The text begins with a checksum of the rest.
std::string manifest_text(const CheckpointManifest& manifest);
/// Verifies the checksum, then every field. The message of its Error(kBadInput) begins with `path`.
CheckpointManifest parse_manifest(std::string_view text, const std::string& path);

/// Returns the name of a step's folder: "step-00000100".
std::string step_folder_name(int64_t step);
/// Returns the step in the name of a step's folder; nothing for any other name.
std::optional<int64_t> step_of_folder(std::string_view name);
/// Returns the name of a rank's file: "rank-00003.safetensors".
std::string rank_file_name(int rank);

}  // namespace ftrun
