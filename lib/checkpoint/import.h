#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/safetensors.h"

namespace ftrun {

/// The name of the file that scripts/import_checkpoint.py writes next to the safetensors of another
/// program's checkpoint (docs/checkpoint.md has the format).
inline constexpr const char* kImportFile = "import.json";

/// The name under which the "extra" of a checkpoint keeps the known facts about the run from which
/// it was imported: a JSON object with "source", "known" (settings by their names in a config),
/// "unknown" and "zero_moments".
inline constexpr const char* kImportRecord = "imported";

/// ImportRecord is the record of an imported checkpoint. On disk, as JSON.
struct ImportRecord {
  /// The other program and its run: "DeepSpeed ZeRO stage 2, 8 ranks (0.19.8)".
  std::string source;
  /// The settings of that run by their names in a config ("train_batch_size"), with their values as
  /// JSON.
  std::vector<std::pair<std::string, std::string>> known_settings;
  /// The settings that the checkpoint did not contain ("tokens", "seed", ...).
  std::vector<std::string> unknown_settings;
};

/// Reads a record from JSON. The message of its Error(kBadInput) begins with `where`.
ImportRecord parse_import_record(const std::string& text, const std::string& where);

/// Returns whether a folder holds an import.json.
bool is_import_folder(const std::string& folder);

class ImportedState {
 public:
  /// Reads and verifies the whole folder: every file must agree with the list in the folder's mark,
  /// and every tensor must have "param", "exp_avg" and "exp_avg_sq" in fp32. Throws
  /// Error(kBadInput) naming file and tensor.
  explicit ImportedState(std::string folder);

  const std::string& folder() const { return folder_; }
  /// Returns the model folder that has the import's names and shapes.
  const std::string& model() const { return model_; }
  const ImportRecord& record() const { return record_; }
  /// Returns the meta of the checkpoint, without ftrun's version.
  const CheckpointMeta& meta() const { return meta_; }
  /// Lists name and shape of every tensor.
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors() const;
  /// Returns the slices for save_checkpoint(), which reads them piece by piece; they refer to this
  /// object.
  std::vector<StateSlice> slices() const;
  int64_t bytes() const;

 private:
  struct StateInFile {
    std::string tensor;
    std::string kind;
    size_t file;
  };

  void read_import_json();
  void add_file(const std::string& name);
  void check_all_kinds() const;

  std::string folder_;
  std::string model_;
  ImportRecord record_;
  CheckpointMeta meta_;
  std::vector<SafetensorsFile> files_;
  std::vector<StateInFile> states_;
};

}  // namespace ftrun
