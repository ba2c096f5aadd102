#include "inputs/run_inputs.h"

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/hub_cache.h"
#include "model/size.h"

namespace ftrun {
namespace {

int64_t file_bytes(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

}  // namespace

InputRecord describe_data(const SequenceSet& sequences) {
  InputRecord record;
  record.path = sequences.data().name();
  for (const auto& file : sequences.data().files())
    for (const DataSetFile& listed : file->list_files()) record.bytes += file_bytes(listed.path);
  const std::string& first = sequences.data().files().front()->path();
  if (const auto from = parse_snapshot_path(std::filesystem::path(first).parent_path().string()))
    record.commit = from->commit;
  if (const auto known = recorded_fingerprint(sequences.data())) record.fingerprint = known->digest;
  record.details = {{"rows", std::to_string(sequences.size())},
                    {"tokens", std::to_string(sequences.data().tokens())}};
  return record;
}

InputRecord describe_model(const std::string& name, const ModelFolder& folder,
                           const ModelDescription& model) {
  InputRecord record;
  record.path = name;
  if (const auto snapshot = parse_snapshot_path(folder.path())) record.commit = snapshot->commit;
  for (const std::string& file : folder.weight_files())
    record.bytes += file_bytes(cat(folder.path(), "/", file));
  record.fingerprint = folder.fingerprint();
  record.details = {{"family", model.family},
                    {"parameters", std::to_string(count_parameters(model).total)}};
  return record;
}

DataFingerprints::~DataFingerprints() {
  for (const auto& [role, job] : running_jobs_) job->stop();
}

void DataFingerprints::start(const std::string& role, const SequenceSet& sequences,
                             const std::string& cache_file) {
  running_jobs_[role] = std::make_unique<FingerprintJob>(sequences.data(), cache_file);
}

std::vector<std::pair<std::string, std::string>> DataFingerprints::take_found() {
  std::vector<std::pair<std::string, std::string>> known;
  for (auto job = running_jobs_.begin(); job != running_jobs_.end();) {
    const std::optional<DataFingerprint> found = job->second->result();
    if (!found) {
      ++job;
      continue;
    }
    known.emplace_back(job->first, found->digest);
    job = running_jobs_.erase(job);
  }
  return known;
}

}  // namespace ftrun
