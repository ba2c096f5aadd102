#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/machine_info.h"

namespace ftrun {

/// BuildInfo describes the sources and the tools from which the binary was built.
struct BuildInfo {
  std::string version;
  std::string git_commit;
  std::string compiler;
  std::string libtorch;
  std::string cuda;
  std::string nccl;
};

/// InputRecord describes a model folder or data set. `fingerprint` is "" until it is known:
/// computing it may take longer than the first step, so an update adds it later.
struct InputRecord {
  std::string path;
  int64_t bytes = 0;
  std::string fingerprint;
  /// Further facts that must be equal on a resume: "tokenizer", "vocabulary", "samples", ...
  std::map<std::string, std::string> details;
  /// The commit of an input from the Hugging Face cache; "" for others.
  std::string commit = {};
};

/// RanksOfStart describes the ranks of a start. Ranks that kept failing may have been removed
/// (elastic.min_ranks).
struct RanksOfStart {
  /// The number of ranks; 0: not known.
  int64_t count = 0;
  /// The ranks that were removed, ascending, with their numbers at the first start.
  std::vector<int64_t> removed_ranks = {};
  /// The reason: "rank 1 failed twice without a new checkpoint: killed by signal 9". "" if none was
  /// removed.
  std::string removed_reason = "";
};

struct RestartRecord {
  /// The time in UTC, as utc_now() writes it.
  std::string time;
  std::string reason;
  /// The rank that caused the failure; -1 if no rank did.
  int64_t rank = -1;
  /// The last step before the failure, and the step from which training continued.
  int64_t from_step = 0;
  int64_t to_step = 0;
  RanksOfStart ranks = {};
};

/// RunManifest is the content of run.json: the facts by which runs differ and that are needed to
/// repeat this run.
struct RunManifest {
  BuildInfo build;
  MachineInfo machine;
  /// The number of threads on which rank 0 computes.
  int threads = 0;
  std::vector<std::string> gpus;
  std::string gpu_driver;
  /// The library that multiplies matrices, by dtype: {"fp32", "openblas 0.3.34"}. Empty on GPUs.
  std::map<std::string, std::string> matmul_libraries;
  /// The way in which values of different ranks are summed: "rank order, fp32" or "nccl".
  std::string reduction;
  /// The implementation of attention: on GPUs "own" or "cudnn 9.19.0", on CPUs the way in which
  /// bf16 is multiplied, "bf16 by vdpbf16ps".
  std::string attention;
  uint64_t seed = 0;
  /// The degree of each axis by its name in the config: {"data", 2}, {"tensor", 1}, and "pipeline"
  /// if it is more than 1 (recorded_degrees() in config/recorded_degrees.h).
  std::vector<std::pair<std::string, int64_t>> topology;
  /// The effective config: a JSON object as text (differences are then reported key by key) or
  /// other text. Secrets are hidden before it is written.
  std::string config;
  InputRecord model;
  /// The data by role: "train", "validation", or "validation.NAME" for a set with a name.
  std::map<std::string, InputRecord> data;
  /// The variables of recorded_environment().
  std::map<std::string, std::string> environment;
  /// The time of the start in UTC, as utc_now() writes it.
  std::string start_time;
  /// The state from which training started: "the model's weights" or a checkpoint's folder.
  std::string start_state;
  /// The time of the end in UTC; "" while the run continues.
  std::string end_time;
  /// The exit code; absent while the run continues.
  std::optional<int64_t> exit_code;
  std::string exit_reason;
  /// The rank that caused a failure; -1 if there was no failure, or the rank is not known.
  int64_t exit_rank = -1;
  std::vector<RestartRecord> restarts;
  /// The last evaluation of each set: "step", "loss", "perplexity", "accuracy", "tokens".
  std::map<std::string, std::map<std::string, double>> evaluations;
  /// The best evaluation so far, by checkpoint.keep_best; absent if there is none.
  struct BestRecord {
    std::string metric;
    double value = 0;
    int64_t step = 0;
  };
  std::optional<BestRecord> best;
  std::map<std::string, int64_t> counters;
  /// Rank 0's memory, in bytes by name: "predicted", "allocated" and "touched" by tier and
  /// category, "process", and "gpu" on a GPU. With a pipeline also "stage 0", "stage 1", ...: the
  /// memory of the first rank of each stage.
  std::map<std::string, std::map<std::string, int64_t>> memory;
  /// Bytes that the training steps of all ranks moved, by kind of transport: as the program
  /// predicts ("program") and as observed.
  std::map<std::string, std::map<std::string, int64_t>> traffic;
  /// Waits of each pipeline stage ("stage 0"): the share of its steps in which it waited
  /// ("idle_per_million"), and the share that follows from the schedule alone
  /// ("schedule_idle_per_million").
  std::map<std::string, std::map<std::string, int64_t>> pipeline;
  /// The time of a training step of rank 0: "predicted" and "measured" (the median), each with the
  /// microseconds of "step" and of its parts; "load" is the share of the cores that other programs
  /// used, in millionths.
  std::map<std::string, std::map<std::string, int64_t>> time;
};

/// Returns the text of run.json: an object with "format": 1 and the fields above. Secrets are
/// hidden.
std::string manifest_text(const RunManifest& manifest);

/// Reads a file that manifest_text() wrote. Absent fields keep their defaults, unknown fields are
/// ignored. Throws Error(kBadInput) that names the file and the invalid field.
RunManifest read_manifest(const std::string& path);

/// Computes the XXH3 of the effective config as the manifest shows it (16 hexadecimal digits).
std::string config_hash(const RunManifest& manifest);

/// ManifestFile is the run.json of a run in progress; any thread may update it.
class ManifestFile {
 public:
  /// Writes the file. Error(kEnvironment).
  ManifestFile(std::string path, RunManifest manifest, FileSystem& files = posix_files());

  /// Changes the manifest and replaces the file atomically.
  void update(const std::function<void(RunManifest&)>& change);
  /// Returns a copy of the file's present content.
  RunManifest manifest() const;

 private:
  const std::string path_;
  FileSystem& files_;
  mutable std::mutex mutex_;
  RunManifest manifest_;
};

}  // namespace ftrun
