#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ftrun {

/// RunPaths holds the paths of a run's files. Every rank makes its own copy from output_dir.
class RunPaths {
 public:
  explicit RunPaths(std::string output_dir) : root_(std::move(output_dir)) {}

  const std::string& root() const { return root_; }
  std::string lock() const { return root_ + "/.lock"; }
  std::string manifest() const { return in_root(kManifest); }
  std::string config() const { return in_root(kConfig); }
  std::string metrics() const { return in_root(kMetrics); }
  std::string samples() const { return in_root(kSamples); }
  std::string trace() const { return in_root(kTrace); }
  std::string report() const { return in_root(kReport); }
  std::string follower_log() const { return root_ + "/follow_run.log"; }
  std::string tensorboard() const { return root_ + "/tensorboard"; }
  std::string logs() const { return root_ + "/logs"; }
  std::string log(int rank) const { return logs() + "/rank-" + std::to_string(rank) + ".log"; }
  std::string checkpoints() const { return root_ + "/checkpoints"; }
  std::string exported() const { return root_ + "/export"; }
  /// Returns the path of the file that caches the fingerprint of the data set with this role.
  std::string fingerprint(const std::string& role) const {
    return in_root(fingerprint_name(role));
  }
  /// Lists the names of the files in the root that are replaced as a whole (write_file_atomic).
  static std::vector<std::string> replaced_files() {
    return {kManifest, kConfig, kMetrics, kSamples, kTrace, kReport, fingerprint_name("train"),
            fingerprint_name("validation")};
  }

 private:
  static constexpr const char* kManifest = "run.json";
  static constexpr const char* kConfig = "config.yaml";
  static constexpr const char* kMetrics = "metrics.jsonl";
  static constexpr const char* kSamples = "samples.jsonl";
  static constexpr const char* kTrace = "trace.json";
  static constexpr const char* kReport = "report.html";

  static std::string fingerprint_name(const std::string& role) {
    return (role == "train" ? "data" : role) + "-fingerprint.json";
  }
  std::string in_root(const std::string& name) const { return root_ + "/" + name; }

  std::string root_;
};

enum class RunStart {
  /// The folder must be absent or empty (except for a lock and empty folders of ours).
  kFresh,
  /// The folder may hold an earlier run; if it is absent or empty, a new run is started.
  kResume,
  /// The folder must hold an earlier run, because one of its steps is requested.
  kResumeStep,
};

/// Returns the reason why a run cannot start in the folder, as the Error(kUsage) with a remedy that
/// RunFolder would throw; nothing if it can. It does not check whether another process holds the
/// folder, and changes nothing.
std::optional<Error> run_folder_problem(const std::string& output_dir, RunStart start);

/// Throws Error(kUsage) for an output_dir that is empty, or that exists and is not a folder.
void refuse_non_folder(const std::string& output_dir);

/// RunFolder is the output folder of a run, held by one process until this object is destroyed. It
/// is held by a kernel lock on `.lock`, so the lock never outlives the process, even if the process
/// is killed.
class RunFolder {
 public:
  /// Makes the folder (mode 0700; an existing folder keeps its mode, parents follow the umask) and
  /// its subfolders, takes the lock, and removes files that a killed run left half written.
  /// Error(kUsage) for a path that is not a folder or a folder with files that must not be touched;
  /// Error(kEnvironment) when another process holds it or the disk fails.
  RunFolder(const std::string& output_dir, RunStart start);
  ~RunFolder();
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&& other) noexcept;
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const RunPaths& paths() const { return paths_; }
  /// Returns whether the folder held a run (its run.json) before this one.
  bool has_earlier_run() const { return has_earlier_run_; }
  /// Finds a folder next to this one that holds a run and has a similar name; "" for none.
  std::string similar_run() const;
  /// Returns whether the folder was removed while this run used it, and was made again by another
  /// run: `.lock` is then another file.
  bool belongs_to_another_run() const;
  /// Throws Error(kEnvironment) if belongs_to_another_run().
  void check_still_owned() const;

 private:
  RunPaths paths_;
  bool has_earlier_run_ = false;
  int lock_fd_ = -1;
};

}  // namespace ftrun
