#include "data/fingerprint.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// The number of tokens that are counted at a time. It is small, because the thread that counts
/// them runs during training steps, whose memory is planned.
constexpr int64_t kCountedTokens = int64_t{1} << 14;
/// The maximum size of a cache file in bytes, which suffices to record some hundred thousand data
/// files.
constexpr int64_t kMaxCacheBytes = int64_t{64} << 20;

std::string absolute_path(const std::string& path) {
  return fs::absolute(path).lexically_normal().string();
}

/// Lists role, path, size and modification time of each file; the hashes are not computed.
std::vector<FileRecord> stat_files(const TokenFile& file) {
  std::vector<FileRecord> records;
  for (const DataSetFile& listed : file.list_files()) {
    struct stat info {};
    if (::stat(listed.path.c_str(), &info) != 0)
      throw Error(ExitCode::kBadInput, cat(listed.path, ": was removed while in use"),
                  "restore the file and resume the run");
    records.push_back({listed.role, absolute_path(listed.path), info.st_size,
                       info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec, 0});
  }
  return records;
}

enum class FileMatch { kSame, kTouched, kOther };

/// Compares the recorded files with the present ones. kTouched means the same names and sizes but
/// other times: a copy, or new content of the same size.
FileMatch compare_files(const std::vector<FileRecord>& recorded,
                        const std::vector<FileRecord>& present) {
  if (recorded.size() != present.size()) return FileMatch::kOther;
  FileMatch match = FileMatch::kSame;
  for (size_t i = 0; i < recorded.size(); ++i) {
    const FileRecord &a = recorded[i], &b = present[i];
    if (a.role != b.role || absolute_path(a.path) != b.path || a.bytes != b.bytes)
      return FileMatch::kOther;
    if (a.modified_ns != b.modified_ns) match = FileMatch::kTouched;
  }
  return match;
}

void merge_statistics(DataStatistics& total, const DataStatistics& more) {
  if (more.tokens == 0) return;
  total.min_id = total.tokens == 0 ? more.min_id : std::min(total.min_id, more.min_id);
  total.max_id = std::max(total.max_id, more.max_id);
  total.tokens += more.tokens;
  total.documents += more.documents;
  total.trained_tokens += more.trained_tokens;
}

void add_statistics(DataStatistics& s, std::span<const int32_t> ids,
                    std::span<const int32_t> labels) {
  for (const int32_t id : ids) {
    s.min_id = std::min<int64_t>(s.min_id, id);
    s.max_id = std::max<int64_t>(s.max_id, id);
  }
  for (const int32_t label : labels) s.max_id = std::max<int64_t>(s.max_id, label);
}

bool count_ids(const TokenFile& file, DataStatistics& s, const std::atomic<bool>& stop) {
  std::vector<int32_t> ids, labels;
  ReadScratch scratch;
  s.tokens = file.tokens();
  s.documents = file.documents();
  s.trained_tokens = file.loss_mask().count_trained(0, s.tokens);
  s.min_id = s.tokens > 0 ? INT32_MAX : 0;
  for (int64_t at = 0; at < s.tokens; at += kCountedTokens) {
    if (stop) return false;
    const auto n = static_cast<size_t>(std::min(kCountedTokens, s.tokens - at));
    ids.resize(n);
    labels.resize(n);
    file.read(at, ids, labels, scratch);
    add_statistics(s, ids, labels);
  }
  return true;
}

void warn_about_changed_files(const TokenFile& file, const std::vector<FileRecord>& computed) {
  const auto side = read_sidecar(file.path());
  if (!side || compare_files(side->files, computed) != FileMatch::kTouched) return;
  for (size_t i = 0; i < computed.size(); ++i)
    if (side->files[i].xxh3 != computed[i].xxh3)
      log_warning(cat(computed[i].path, ": its content differs from the checksum in ", side->path,
                      ", so the file was changed after it was prepared; the run records "
                      "the checksum of the present content"));
}

std::vector<FileRecord> stat_all_files(const TokenDataset& data) {
  std::vector<FileRecord> all;
  for (const auto& file : data.files())
    for (FileRecord& record : stat_files(*file)) all.push_back(std::move(record));
  return all;
}

std::optional<DataFingerprint> cached_fingerprint(const TokenDataset& data,
                                                  const std::string& cache_file) {
  if (cache_file.empty()) return std::nullopt;
  try {
    const auto cached = read_sidecar_file(cache_file, kMaxCacheBytes);
    if (!cached || compare_files(cached->files, stat_all_files(data)) != FileMatch::kSame)
      return std::nullopt;
    return DataFingerprint{fingerprint_digest(cached->files), cached->statistics, cached->files,
                           "cached"};
  } catch (const Error&) {
    return std::nullopt;  // a damaged cache is ignored
  }
}

void write_cache(const std::string& cache_file, const DataFingerprint& fingerprint) {
  if (cache_file.empty()) return;
  Sidecar cached;
  cached.statistics = fingerprint.statistics;
  cached.files = fingerprint.files;
  try {
    write_file_atomic(posix_files(), cache_file, sidecar_text(cached));
  } catch (const Error& error) {
    log_warning(cat("the data's fingerprint is not kept for the next run: ", error.message()));
  }
}

}  // namespace

std::string fingerprint_digest(const std::vector<FileRecord>& files) {
  std::string text;
  for (const FileRecord& file : files)
    text += cat(file.role, " ", file.bytes, " ", hex64(file.xxh3), "\n");
  return hex64(xxh3(text.data(), text.size()));
}

std::optional<DataFingerprint> recorded_fingerprint(const TokenDataset& data) {
  DataFingerprint fingerprint;
  bool complete = true;
  for (const auto& file : data.files()) {
    const auto side = read_sidecar(file->path());
    if (!side) {
      complete = false;
      continue;
    }
    const FileMatch match = compare_files(side->files, stat_files(*file));
    if (match == FileMatch::kOther)
      log_warning(cat(side->path, ": describes other files than ", file->path(),
                      " (names or sizes differ); it is ignored"));
    if (match != FileMatch::kSame) complete = false;
    merge_statistics(fingerprint.statistics, side->statistics);
    fingerprint.files.insert(fingerprint.files.end(), side->files.begin(), side->files.end());
  }
  if (!complete) return std::nullopt;
  fingerprint.digest = fingerprint_digest(fingerprint.files);
  fingerprint.origin = "recorded by prepare_data.py";
  return fingerprint;
}

std::optional<DataFingerprint> compute_fingerprint(const TokenDataset& data,
                                                   const std::atomic<bool>& stop) {
  DataFingerprint fingerprint;
  for (const auto& file : data.files()) {
    std::vector<FileRecord> records = stat_files(*file);
    for (FileRecord& record : records) {
      const auto hash = xxh3_of_file(record.path, &stop);
      if (!hash) return std::nullopt;
      record.xxh3 = *hash;
    }
    DataStatistics statistics;
    if (!count_ids(*file, statistics, stop)) return std::nullopt;
    warn_about_changed_files(*file, records);
    merge_statistics(fingerprint.statistics, statistics);
    fingerprint.files.insert(fingerprint.files.end(), records.begin(), records.end());
  }
  fingerprint.digest = fingerprint_digest(fingerprint.files);
  fingerprint.origin = "computed";
  return fingerprint;
}

void check_recorded_ids(const TokenDataset& data, int64_t vocab_rows) {
  for (const auto& file : data.files()) {
    const auto side = read_sidecar(file->path());
    if (!side || compare_files(side->files, stat_files(*file)) != FileMatch::kSame) continue;
    if (side->statistics.max_id < vocab_rows) continue;
    throw Error(
        ExitCode::kBadInput,
        cat(file->path(), ": its largest token id is ", side->statistics.max_id, " (as ",
            side->path, " recorded), outside the model's vocabulary of ", vocab_rows, " ids"),
        "prepare the data with this model's own tokenizer");
  }
}

/// Work computes a fingerprint. The job and its thread share it.
struct FingerprintJob::Work {
  Work(const TokenDataset& dataset, std::string cache)
      : data(dataset), cache_file(std::move(cache)) {}

  void run();

  const TokenDataset& data;
  const std::string cache_file;
  std::atomic<bool> stop = false;
  std::mutex mutex;
  std::optional<DataFingerprint> result;
  std::exception_ptr error;
};

FingerprintJob::FingerprintJob(const TokenDataset& data, std::string cache_file,
                               std::chrono::milliseconds patience)
    : work_(std::make_shared<Work>(data, std::move(cache_file))) {
  work_->result = recorded_fingerprint(data);
  if (!work_->result) work_->result = cached_fingerprint(data, work_->cache_file);
  if (!work_->result) thread_.emplace([work = work_] { work->run(); }, patience);
}

FingerprintJob::~FingerprintJob() {
  stop();
}

void FingerprintJob::stop() {
  work_->stop = true;
}

void FingerprintJob::Work::run() {
  // On Linux each thread has its own priority: this thread leaves the cores to the training step.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
  try {
    auto fingerprint = compute_fingerprint(data, stop);
    if (!fingerprint) return;
    write_cache(cache_file, *fingerprint);
    const std::lock_guard lock(mutex);
    result = std::move(fingerprint);
  } catch (...) {
    const std::lock_guard lock(mutex);
    error = std::current_exception();
  }
}

std::optional<DataFingerprint> FingerprintJob::result() {
  const std::lock_guard lock(work_->mutex);
  if (work_->error) std::rethrow_exception(work_->error);
  return work_->result;
}

DataFingerprint FingerprintJob::wait() {
  if (thread_) thread_->join();
  const auto found = result();
  require(found.has_value(), "a fingerprint job has a result");
  return *found;
}

}  // namespace ftrun
