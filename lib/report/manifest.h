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
#include "report/machine.h"

namespace ftrun {

/// BuildInfo says what the binary was built from.
struct BuildInfo {
  std::string version;
  std::string git_commit;
  std::string compiler;
  std::string libtorch;
  std::string cuda;
  std::string nccl;
};

/// InputRecord is a model folder or data set. `fingerprint` is "" until it is known: it may take
/// longer than the first step and is then added by an update.
struct InputRecord {
  std::string path;
  int64_t bytes = 0;
  std::string fingerprint;
  /// Further facts that must be the same on a resume: "tokenizer", "vocabulary", "samples", ...
  std::map<std::string, std::string> details;
  /// The commit of an input from the Hugging Face cache; "" for others.
  std::string commit = {};
};

/// RanksOfStart are the ranks of a start, where some that kept failing have left
/// (elastic.min_ranks).
struct RanksOfStart {
  /// 0: not known.
  int64_t count = 0;
  /// The ranks that have left, ascending, numbered as at the first start.
  std::vector<int64_t> left = {};
  /// Why: "rank 1 failed twice without a new checkpoint: killed by signal 9". "" where none has.
  std::string why_left = "";
};

struct RestartRecord {
  /// UTC, as utc_now() writes it.
  std::string time;
  std::string reason;
  /// Rank that was the cause; -1 for none.
  int64_t rank = -1;
  /// Last step that was reached, and the step that training continued from.
  int64_t from_step = 0;
  int64_t to_step = 0;
  RanksOfStart ranks = {};
};

/// RunManifest is run.json: what is needed to tell two runs apart and to repeat this one.
struct RunManifest {
  BuildInfo build;
  MachineInfo machine;
  /// The threads that rank 0 computes on; 0 in runs of older versions.
  int threads = 0;
  std::vector<std::string> gpus;
  std::string gpu_driver;
  /// The library that multiplies matrices, by dtype: {"fp32", "openblas 0.3.34"}. Empty on GPUs.
  std::map<std::string, std::string> products;
  /// The way in which sums over ranks add: "rank order, fp32" or "nccl". "" in runs of older
  /// versions.
  std::string sums;
  /// The code that computes attention on GPUs, "own" or "cudnn 9.19.0", and how it multiplies bf16
  /// on processors, "bf16 by vdpbf16ps". "" in runs of older versions.
  std::string attention;
  uint64_t seed = 0;
  /// Ranks of the mesh by axis, slowest first: {"data", 2}, ...
  std::vector<std::pair<std::string, int64_t>> topology;
  /// The effective config: a JSON object as text (then differences are reported key by key) or
  /// other text. Secrets are hidden before it is written.
  std::string config;
  InputRecord model;
  /// The data by role: "train", "validation".
  std::map<std::string, InputRecord> data;
  /// The variables of recorded_environment().
  std::map<std::string, std::string> environment;
  std::string started;
  /// The state that training started from: "the model's weights" or a checkpoint's folder.
  std::string start;
  std::string ended;
  /// Absent while the run continues.
  std::optional<int64_t> exit_code;
  std::string exit_reason;
  /// Rank that was the cause of a failure; -1 for none, or when it is not known.
  int64_t exit_rank = -1;
  std::vector<RestartRecord> restarts;
  /// The last evaluation of each set: "step", "loss", "perplexity", "accuracy", "tokens".
  std::map<std::string, std::map<std::string, double>> evaluations;
  /// The best evaluation so far by checkpoint.keep_best; absent where there is none.
  struct BestRecord {
    std::string metric;
    double value = 0;
    int64_t step = 0;
  };
  std::optional<BestRecord> best;
  std::map<std::string, int64_t> counters;
  /// Rank 0's memory, in bytes by name: "predicted", "allocated" and "touched" by tier and
  /// category, "process". With a pipeline also "stage 0", "stage 1", ...: what the first rank of
  /// each stage used.
  std::map<std::string, std::map<std::string, int64_t>> memory;
  /// Bytes that the training steps of all ranks moved, by what carries them: "program" and as
  /// observed.
  std::map<std::string, std::map<std::string, int64_t>> traffic;
  /// Waits by stage of a pipeline ("stage 0"): the share of its steps that it waited
  /// ("idle_per_million"), and the share that it would wait if only its schedule cost time
  /// ("schedule_idle_per_million").
  std::map<std::string, std::map<std::string, int64_t>> pipeline;
  /// Microseconds of a training step of rank 0, "predicted" and "measured" (the median): "step",
  /// "exposed_communication".
  std::map<std::string, std::map<std::string, int64_t>> time;
};

/// Writes the text of run.json: an object of "format": 1 and the fields above, secrets hidden.
std::string manifest_text(const RunManifest& manifest);

/// Reads what manifest_text wrote; absent fields keep their defaults, unknown ones are ignored.
/// Error(kBadInput) naming the file and the field that is wrong.
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
  /// Returns a copy of what is in the file now.
  RunManifest manifest() const;

 private:
  const std::string path_;
  FileSystem& files_;
  mutable std::mutex mutex_;
  RunManifest manifest_;
};

}  // namespace ftrun
