#include "training/run_data_identity.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "checkpoint/checkpoint_manifest.h"
#include "report/resume_check.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void RunDataIdentity::set_checkpoint(const std::string& folder, const std::string& fingerprint) {
  checkpoint_folder_ = folder;
  checkpoint_fingerprint_ = fingerprint;
}

void RunDataIdentity::start(const RunData& data) {
  if (!session_.is_first()) return;
  keep_recorded_fingerprints();
  const RunPaths paths(request_.config.output_dir);
  fingerprints_.start("train", *data.train, paths.fingerprint("train"));
  for (const ValidationSet& set : data.validation)
    fingerprints_.start(set.role(), *set.sequences, paths.fingerprint(set.role()));
}

/// Keeps the fingerprints of the run that is resumed in run.json until the fingerprints of the data
/// are computed. So a start that is refused later does not remove them.
void RunDataIdentity::keep_recorded_fingerprints() {
  const auto& earlier_manifest = journal_.folder_writer()->earlier_manifest();
  if (checkpoint_folder_.empty() || !earlier_manifest) return;
  journal_.update_manifest([&](RunManifest& manifest) {
    for (const auto& [role, data] : earlier_manifest->data)
      if (const auto new_record = manifest.data.find(role); new_record != manifest.data.end())
        new_record->second.fingerprint = data.fingerprint;
  });
}

void RunDataIdentity::record_known_fingerprints() {
  for (const auto& [role, digest] : fingerprints_.take_found()) record_fingerprint(role, digest);
}

/// Records a fingerprint. Only now is the content of the data known, so a resumed run is refused
/// here if its data differ.
void RunDataIdentity::record_fingerprint(const std::string& role, const std::string& digest) {
  if (!checkpoint_folder_.empty() && role == "train") {
    const RunFolderWriter& folder_writer = *journal_.folder_writer();
    if (folder_writer.earlier_manifest())
      if (const auto earlier_record = folder_writer.earlier_manifest()->data.find(role);
          earlier_record != folder_writer.earlier_manifest()->data.end())
        refuse_other_data(folder_writer.paths().manifest(), earlier_record->second.fingerprint,
                          digest);
    refuse_other_data(checkpoint_manifest_path(checkpoint_folder_), checkpoint_fingerprint_,
                      digest);
  }
  if (role == "train") train_fingerprint_ = digest;
  journal_.update_manifest(
      [&](RunManifest& manifest) { manifest.data[role].fingerprint = digest; });
}

void RunDataIdentity::refuse_other_data(const std::string& path, const std::string& recorded,
                                        const std::string& current) const {
  if (recorded.empty() || recorded == current) return;
  refuse_other_run(path, {{"data.train.fingerprint", recorded, current}}, request_.resume.allowed);
}

/// Waits on rank 0 for 100 ms and records the fingerprints that become known. Returns true when all
/// are known.
bool RunDataIdentity::await_briefly() {
  for (const auto end = Clock::now() + std::chrono::milliseconds(100);;) {
    record_known_fingerprints();
    if (fingerprints_.all_found()) return true;
    if (Clock::now() >= end || stop_signal() != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void RunDataIdentity::await_fingerprints_before_saving(StopAgreement& stop) {
  if (!checkpoint_folder_.empty() && !std::exchange(has_awaited_, true)) await_fingerprints(stop);
}

void RunDataIdentity::await_fingerprints(StopAgreement& stop) {
  constexpr int64_t kNoticeSeconds = 1;
  constexpr int64_t kLongestSeconds = 60;
  const auto start = Clock::now();
  bool reported = false;
  const auto must_wait = [&] {
    if (await_briefly()) return false;
    const double seconds = seconds_since(start);
    if (seconds >= kNoticeSeconds && !std::exchange(reported, true))
      journal_.print(cat("reading the rest of the data for its fingerprint, for ", kLongestSeconds,
                         " s at most"));
    return seconds < kLongestSeconds;
  };
  while (!stop.reached() && session_.broadcast_decision("reading the data", must_wait))
    stop.decide_outside_step();
}

}  // namespace ftrun
