#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/detachable_thread.h"
#include "data/sidecar.h"
#include "data/token_dataset.h"

namespace ftrun {

/// DataFingerprint identifies the content of a data set, regardless of the names and folders of its
/// files.
struct DataFingerprint {
  /// The XXH3 of a text with one line "role bytes xxh3" for each file, as 16 hexadecimal digits.
  std::string digest;
  DataStatistics statistics;
  std::vector<FileRecord> files;
  /// The source of the fingerprint: "recorded by prepare_data.py", "cached" or "computed".
  std::string origin;
};

/// Computes the digest of files whose hashes are known.
std::string fingerprint_digest(const std::vector<FileRecord>& files);

/// Reads the fingerprint that prepare_data.py recorded, if every file has a sidecar and still has
/// the recorded size and modification time. Reads no data. Warns about a sidecar that describes
/// other files.
std::optional<DataFingerprint> recorded_fingerprint(const TokenDataset& data);

/// Reads every file once and computes the fingerprint. Returns nothing if `stop` is set meanwhile.
std::optional<DataFingerprint> compute_fingerprint(const TokenDataset& data,
                                                   const std::atomic<bool>& stop);

/// Throws Error(kBadInput) for data whose recorded largest id is outside the model's `vocab_rows`
/// rows: before the first step and without reading the data.
void check_recorded_ids(const TokenDataset& data, int64_t vocab_rows);

/// FingerprintJob finds the fingerprint without delaying training: the recorded one, else the
/// cached one, else it computes one on a thread of the lowest priority. That thread also verifies
/// the data of a sidecar whose files have other modification times.
class FingerprintJob {
 public:
  /// Starts the job. `data` must outlive it, and a thread that it leaves behind. `cache_file` (""
  /// for none) keeps a computed result for the next run. `patience` is the longest wait for the end
  /// of the thread.
  FingerprintJob(const TokenDataset& data, std::string cache_file,
                 std::chrono::milliseconds patience = DetachableThread::kStopTimeout);
  /// Abandons unfinished work; returns once the current chunk is hashed. If the data do not answer,
  /// the thread is left behind after `patience`, and uses `data` until the process ends.
  ~FingerprintJob();
  FingerprintJob(const FingerprintJob&) = delete;
  FingerprintJob& operator=(const FingerprintJob&) = delete;

  /// Tells the thread to abandon its work, and does not wait until it has.
  void stop();
  /// Returns the fingerprint if it is known; never waits. Rethrows the error of the reading thread.
  std::optional<DataFingerprint> result();
  /// Waits until the fingerprint is known.
  DataFingerprint wait();

 private:
  struct Work;

  /// The objects that the thread uses; a thread that is left behind keeps them.
  const std::shared_ptr<Work> work_;
  std::optional<DetachableThread> thread_;
};

}  // namespace ftrun
