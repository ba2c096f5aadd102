#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/model_folder.h"
#include "data/fingerprint.h"
#include "data/sample_set.h"
#include "model/description.h"
#include "report/manifest.h"

namespace ftrun {

/// A data set for the manifest: where it is, how large, the commit of one that lies in the Hugging
/// Face cache, and its fingerprint when that is recorded beside the files.
InputRecord describe_data(const SampleSet& samples);
/// The manifest's record of a model folder, as `named` in the config; with the commit of one that
/// lies in the Hugging Face cache.
InputRecord describe_model(const std::string& named, const ModelFolder& folder,
                           const ModelDescription& model);

/// Finds the fingerprints of a run's data sets in the background.
class DataFingerprints {
 public:
  /// Begins to read `samples`, which must outlive this; what is computed is kept in `cache_file`.
  void start(const std::string& role, const SampleSet& samples, const std::string& cache_file);

  /// (role, digest) of those that have become known since the last call. Never waits.
  std::vector<std::pair<std::string, std::string>> take();
  /// Says whether none is left to be found.
  bool all_taken() const { return unknown_.empty(); }

 private:
  std::map<std::string, std::unique_ptr<FingerprintJob>> unknown_;
};

}  // namespace ftrun
