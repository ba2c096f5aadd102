#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/model_folder.h"
#include "data/fingerprint.h"
#include "data/sequence_set.h"
#include "model/description.h"
#include "report/run_manifest.h"

namespace ftrun {

/// Describes a data set for the manifest: its path, its size, its commit if it is in the Hugging
/// Face cache, and its fingerprint if that is recorded next to the files.
InputRecord describe_data(const SequenceSet& sequences);
/// Describes a model folder for the manifest. `name` is its name in the config. The record has its
/// commit if it is in the Hugging Face cache.
InputRecord describe_model(const std::string& name, const ModelFolder& folder,
                           const ModelDescription& model);

/// DataFingerprints finds the fingerprints of a run's data sets in the background.
class DataFingerprints {
 public:
  DataFingerprints() = default;
  /// Stops all threads before it waits for any of them, so that they end at the same time.
  ~DataFingerprints();
  DataFingerprints(const DataFingerprints&) = delete;
  DataFingerprints& operator=(const DataFingerprints&) = delete;

  /// Starts to read `sequences`, which must outlive this object; `cache_file` keeps a computed
  /// fingerprint.
  void start(const std::string& role, const SequenceSet& sequences, const std::string& cache_file);

  /// Returns (role, digest) of the fingerprints that have become known since the last call. Never
  /// waits.
  std::vector<std::pair<std::string, std::string>> take_found();
  /// Returns whether all fingerprints have been found.
  bool all_found() const { return running_jobs_.empty(); }

 private:
  std::map<std::string, std::unique_ptr<FingerprintJob>> running_jobs_;
};

}  // namespace ftrun
