#include "fault_storage.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "temporary_folder.h"

namespace ftrun::testing {
namespace {

constexpr char kMark = 0x5a;

/// FaultQueue passes blocks on to a real queue, with the faults of its FaultStorage.
class FaultQueue : public BlockQueue {
 public:
  FaultQueue(FaultStorage& storage, std::unique_ptr<BlockQueue> real)
      : storage_(storage), real_(std::move(real)) {}

  void submit(std::span<const IoBlock> blocks) override {
    storage_.batches.push_back(blocks.size());
    for (const IoBlock& block : blocks) submit_one(block);
  }

  size_t reap(std::span<BlockResult> results, double seconds) override {
    if (storage_.stall_seconds > 0) {
      const double passed = std::min(seconds, storage_.stall_seconds);
      storage_.stall_seconds -= passed;
      storage_.clock_seconds += passed;
      return 0;
    }
    size_t count = 0;
    while (count < results.size() && !made_.empty()) {
      results[count++] = made_.back();
      made_.pop_back();
    }
    if (count > 0) return count;
    count = real_->reap(results, std::min(seconds, 1.0));
    for (BlockResult& result : results.first(count)) replace(result);
    return count;
  }


 private:
  void submit_one(IoBlock block) {
    storage_.calls.push_back(
        cat(block.is_write ? "write " : "read ", block.bytes, "@", block.offset));
    const int64_t injected = storage_.fault ? storage_.fault(block) : 0;
    const int64_t moved = injected / kSwapAlignment * kSwapAlignment;
    if (injected < 0 || (injected > 0 && moved == 0)) {
      made_.push_back({block.slot, injected == FaultStorage::kNothing ? 0 : injected});
      return;
    }
    if (injected > 0) {
      reported_[block.slot] = injected;
      block.bytes = moved;
    }
    real_->submit({&block, 1});
  }

  void replace(BlockResult& result) {
    const auto known = reported_.find(result.slot);
    if (known == reported_.end()) return;
    if (result.result > 0) result.result = known->second;
    reported_.erase(known);
  }

  FaultStorage& storage_;
  std::unique_ptr<BlockQueue> real_;
  std::vector<BlockResult> made_;
  std::map<uint32_t, int64_t> reported_;
};

}  // namespace

int FaultStorage::make_folder(const std::string& path) {
  return folder_status != 0 ? folder_status : machine_storage().make_folder(path);
}
int FaultStorage::open_new(const std::string& path) {
  return open_status != 0 ? open_status : machine_storage().open_new(path);
}
int FaultStorage::remove(const std::string& path) {
  ++removed;
  return remove_status != 0 ? remove_status : machine_storage().remove(path);
}
int FaultStorage::reserve(int fd, int64_t bytes) {
  return reserve_status != 0 ? reserve_status : machine_storage().reserve(fd, bytes);
}
int FaultStorage::use_direct(int fd) {
  return direct_status != 0 ? direct_status : machine_storage().use_direct(fd);
}
int FaultStorage::use_page_cache(int fd) {
  return page_cache_status != 0 ? page_cache_status : machine_storage().use_page_cache(fd);
}
int64_t FaultStorage::free_bytes(const std::string& folder) {
  return reported_free_bytes >= 0 ? reported_free_bytes : machine_storage().free_bytes(folder);
}
QueueOrErrno FaultStorage::open_ring_queue(int fd, int depth, bool single_submit) {
  if (ring_errno != 0) return {nullptr, ring_errno};
  QueueOrErrno opened = machine_storage().open_ring_queue(fd, depth, single_submit);
  if (opened.queue) opened.queue = std::make_unique<FaultQueue>(*this, std::move(opened.queue));
  return opened;
}
std::unique_ptr<BlockQueue> FaultStorage::open_thread_queue(int fd, int depth) {
  return std::make_unique<FaultQueue>(*this, machine_storage().open_thread_queue(fd, depth));
}
void FaultStorage::sleep(double seconds) {
  ++sleeps;
  clock_seconds += seconds;
}

AlignedBytes::AlignedBytes(int64_t bytes) : bytes_(bytes) {
  const auto all = static_cast<size_t>(round_up_to_sector(bytes) + kSwapAlignment);
  data_ = static_cast<char*>(std::aligned_alloc(kSwapAlignment, all));
  std::memset(data_, kMark, all);
}
AlignedBytes::~AlignedBytes() {
  std::free(data_);
}

void AlignedBytes::fill(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int64_t at = 0; at < bytes_; at += 8) {
    const uint64_t word = random();
    std::memcpy(data_ + at, &word, static_cast<size_t>(std::min<int64_t>(8, bytes_ - at)));
  }
}

bool AlignedBytes::equals(const AlignedBytes& other) const {
  return bytes_ == other.bytes_ &&
         std::memcmp(data_, other.data_, static_cast<size_t>(bytes_)) == 0;
}

bool AlignedBytes::end_is_unchanged() const {
  return std::all_of(data_ + bytes_, data_ + round_up_to_sector(bytes_) + kSwapAlignment,
                     [](char c) { return c == kMark; });
}

std::vector<std::string> capture_log_lines(const std::function<void()>& body) {
  const TemporaryFolder folder;
  const std::string file = folder / "log";
  start_log({.file = file, .to_stderr = false});
  body();
  flush_log();
  start_log({});
  std::vector<std::string> lines;
  for (const std::string& line : split(read_file(file), '\n'))
    if (const size_t space = line.find(' '); space != std::string::npos)
      lines.push_back(line.substr(space + 1));
  return lines;
}

std::string ring_refusal() {
  const TemporaryFolder folder;
  const int fd = machine_storage().open_new(folder / "probe");
  const QueueOrErrno opened = machine_storage().open_ring_queue(fd, 2, false);
  ::close(fd);
  return opened.queue ? ""
                      : cat("this machine refuses io_uring: ", errno_text(opened.error_number));
}

}  // namespace ftrun::testing
