#include "storage/swap_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/uninterrupted.h"
#include "storage/open_swap.h"
#include "storage/swap_folder.h"

namespace ftrun {
namespace {

constexpr int kTries = 200;         // tries of one block without progress before it fails
constexpr int kTriesAtOnce = 8;     // tries before the first pause
constexpr double kPause = 0.001;    // seconds of a pause between tries
constexpr double kLongWait = 3600;  // seconds that one call waits once slowness was reported

bool on_sector(int64_t number) {
  return number % kSwapAlignment == 0;
}

bool on_sector(const void* address) {
  return on_sector(static_cast<int64_t>(reinterpret_cast<intptr_t>(address)));
}

char* aligned_memory(int64_t bytes) {
  void* memory = std::aligned_alloc(kSwapAlignment, static_cast<size_t>(bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<char*>(memory);
}

}  // namespace

void SwapFile::FreeAligned::operator()(char* memory) const {
  std::free(memory);
}

SwapFile::SwapFile(const SwapOptions& options, StorageSystem& system)
    : system_(system),
      aio_(options.aio),
      slow_seconds_(options.slow_seconds),
      folder_(options.folder),
      bytes_(round_up_to_sector(options.bytes)) {
  OpenSwapFile opened = open_swap(options, system);
  const auto depth = static_cast<size_t>(aio_.blocks_in_flight());
  slots_.resize(depth);
  for (size_t i = depth; i-- > 0;) free_slots_.push_back(static_cast<uint32_t>(i));
  batch_.reserve(depth);
  results_.resize(depth);
  bounce_.reset(aligned_memory(aio_.staging_bytes()));
  path_ = std::move(opened.path);
  is_direct_ = opened.is_direct;
  uses_ring_ = opened.uses_ring;
  fd_ = std::move(opened.fd);
  queue_ = std::move(opened.queue);
}

SwapFile::~SwapFile() = default;

int64_t SwapFile::reserved_on_disk() const {
  struct stat status {};
  return ::fstat(fd_.get(), &status) == 0 ? int64_t{status.st_blocks} * 512 : 0;
}

SwapFile::Ticket SwapFile::read(void* data, int64_t bytes, int64_t offset) {
  return start_request(static_cast<char*>(data), bytes, offset, false);
}

SwapFile::Ticket SwapFile::write(const void* data, int64_t bytes, int64_t offset) {
  return start_request(static_cast<char*>(const_cast<void*>(data)), bytes, offset, true);
}

SwapFile::Ticket SwapFile::start_request(char* data, int64_t bytes, int64_t offset, bool is_write) {
  require(on_sector(data), "memory of a swap request must lie on a multiple of 4096");
  require(on_sector(offset), "a swap request must begin on a multiple of 4096 in the file");
  require(bytes >= 0 && offset >= 0 && offset <= bytes_ && bytes <= bytes_ - offset,
          "a swap request stays inside the reserved file");
  const uint32_t index = acquire_request();
  SwapRequest& request = requests_[index];
  const uint32_t generation = request.generation;
  request = {.data = data,
             .bytes = bytes,
             .offset = offset,
             .is_write = is_write,
             .is_open = true,
             .generation = generation,
             .next = kNone};
  ++counters_.requests;
  if (requests_.size() - free_requests_.size() > 1) ++counters_.overlapped_requests;
  if (bytes > 0) {
    (first_waiting_ == kNone ? first_waiting_ : requests_[last_waiting_].next) = index;
    last_waiting_ = index;
  }
  issue_blocks();
  return {index, generation};
}

uint32_t SwapFile::acquire_request() {
  if (free_requests_.empty()) {
    requests_.emplace_back();
    free_requests_.reserve(requests_.capacity());
    return static_cast<uint32_t>(requests_.size() - 1);
  }
  const uint32_t index = free_requests_.back();
  free_requests_.pop_back();
  return index;
}

SwapFile::SwapRequest& SwapFile::request_of(Ticket ticket) {
  require(ticket.index < requests_.size() && requests_[ticket.index].is_open &&
              requests_[ticket.index].generation == ticket.generation,
          "a swap ticket is known and was not waited for yet");
  return requests_[ticket.index];
}

/// Fills the free slots with blocks of waiting requests, and submits them together with the blocks
/// that batch_ already holds (retries and remainders).
void SwapFile::issue_blocks() {
  const bool may_start = aio_.overlap_events || free_slots_.size() == slots_.size();
  while (first_waiting_ != kNone) {
    SwapRequest& request = requests_[first_waiting_];
    if (request.issued < request.bytes) {
      if (!may_start || free_slots_.empty()) break;
      batch_.push_back(next_block(request, first_waiting_));
    }
    // A request leaves the list even if a failure ended it early, because it must not be in the
    // list when it is used again.
    if (request.issued == request.bytes) first_waiting_ = request.next;
  }
  if (!batch_.empty()) queue_->submit(batch_);
  batch_.clear();
}

/// Returns the next whole sectors of a request, or its last partial sector, which is copied through
/// a bounce sector so that no byte beyond the caller's memory is accessed.
IoBlock SwapFile::next_block(SwapRequest& request, uint32_t index) {
  BlockInFlight& in_flight = slots_[free_slots_.back()];
  const uint32_t slot_index = free_slots_.back();
  free_slots_.pop_back();
  const int64_t remaining = request.bytes - request.issued;
  char* data = request.data + request.issued;
  int64_t bytes = std::min(aio_.block_size, remaining / kSwapAlignment * kSwapAlignment);
  in_flight.payload = bytes;
  if (bytes == 0) {
    in_flight.payload = remaining;
    bytes = kSwapAlignment;
    char* sector = bounce_sector(slot_index);
    if (request.is_write) {
      std::memcpy(sector, data, static_cast<size_t>(remaining));
      std::memset(sector + remaining, 0, static_cast<size_t>(kSwapAlignment - remaining));
    }
    data = sector;
  }
  in_flight.block = {data, bytes, request.offset + request.issued, request.is_write, slot_index};
  in_flight.request = index;
  in_flight.tries = 0;
  request.issued += in_flight.payload;
  ++request.in_flight;
  return in_flight.block;
}

/// Collects the blocks that the kernel has finished, waiting up to `seconds` for the first one, and
/// issues more blocks.
void SwapFile::collect_and_issue(double seconds) {
  const size_t count = queue_->reap(results_, seconds);
  for (size_t i = 0; i < count; ++i) handle_result(results_[i]);
  issue_blocks();
}

void SwapFile::handle_result(const BlockResult& result) {
  BlockInFlight& in_flight = slots_[result.slot];
  const int64_t moved = result.result;
  if (moved == in_flight.block.bytes) return finish_block(in_flight);
  if (moved == -EINTR || moved == -EAGAIN) return retry_block(in_flight, static_cast<int>(-moved));
  if (moved < 0)
    return fail_block(in_flight, errno_text(static_cast<int>(-moved)),
                      moved == -ENOSPC || moved == -EDQUOT);
  if (moved == 0 && !in_flight.block.is_write)
    return fail_block(in_flight, "the file ends before it", false);
  continue_block(in_flight, moved);
}

/// Continues a block of which only a part was moved. The rest begins at the last whole sector,
/// because direct I/O needs aligned offsets.
void SwapFile::continue_block(BlockInFlight& in_flight, int64_t moved) {
  const int64_t step = moved / kSwapAlignment * kSwapAlignment;
  if (step == 0) return retry_block(in_flight, 0);
  in_flight.block.data += step;
  in_flight.block.offset += step;
  in_flight.block.bytes -= step;
  in_flight.payload -= step;
  in_flight.tries = 0;
  (in_flight.block.is_write ? counters_.bytes_written : counters_.bytes_read) += step;
  batch_.push_back(in_flight.block);
}

void SwapFile::retry_block(BlockInFlight& in_flight, int error_number) {
  if (++in_flight.tries >= kTries)
    return fail_block(in_flight,
                      cat("no progress in ", kTries, " tries",
                          error_number == 0 ? "" : cat(" (", errno_text(error_number), ")")),
                      false);
  if (in_flight.tries > kTriesAtOnce) system_.sleep(kPause);
  batch_.push_back(in_flight.block);
}

void SwapFile::finish_block(BlockInFlight& in_flight) {
  SwapRequest& request = requests_[in_flight.request];
  const bool tail = in_flight.payload < in_flight.block.bytes;
  if (tail && !request.is_write)
    std::memcpy(request.data + (in_flight.block.offset - request.offset), in_flight.block.data,
                static_cast<size_t>(in_flight.payload));
  (request.is_write ? counters_.bytes_written : counters_.bytes_read) += in_flight.payload;
  --request.in_flight;
  free_slots_.push_back(in_flight.block.slot);
}

void SwapFile::fail_block(BlockInFlight& in_flight, const std::string& reason, bool disk_full) {
  SwapRequest& request = requests_[in_flight.request];
  if (request.failure.empty()) {
    const std::string size_text = human_bytes(in_flight.payload);
    request.failure = cat(path_, ": ", request.is_write ? "write" : "read", " of ", size_text,
                          " at offset ", in_flight.block.offset, " failed: ", reason);
    if (disk_full)
      request.failure +=
          cat(" (", size_text, " wanted, ", human_bytes(system_.free_bytes(folder_)), " free)");
    request.disk_full = disk_full;
  }
  request.issued = request.bytes;  // no further block of the request is started
  --request.in_flight;
  free_slots_.push_back(in_flight.block.slot);
}

void SwapFile::read_synchronously(void* data, int64_t bytes, int64_t offset) const {
  require(on_sector(data) && on_sector(bytes) && on_sector(offset),
          "whole sectors are read beside requests");
  require(bytes >= 0 && offset >= 0 && offset <= bytes_ && bytes <= bytes_ - offset,
          "a swap request stays inside the reserved file");
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = uninterrupted([&] {
      return ::pread(fd_.get(), static_cast<char*>(data) + done, static_cast<size_t>(bytes - done),
                     offset + done);
    });
    if (n <= 0)
      throw Error(ExitCode::kEnvironment,
                  cat(path_, ": reading ", human_bytes(bytes - done), " at ", offset + done,
                      " failed: ", n < 0 ? errno_text(errno) : "the file ends there"),
                  "check that disk (dmesg, smartctl)");
    done += n;
  }
}

void SwapFile::wait(Ticket ticket) {
  SwapRequest& request = request_of(ticket);
  block_until_finished(request);
  const bool disk_full = request.disk_full;
  const std::string failure = std::move(request.failure);
  release_request(request, ticket.index);
  if (!failure.empty())
    throw Error(ExitCode::kEnvironment, failure,
                disk_full
                    ? full_disk_remedy()
                    : "look for disk errors in the kernel's log (dmesg), or point nvme_path at "
                      "another disk");
}

void SwapFile::block_until_finished(const SwapRequest& request) {
  if (request.is_finished()) return;
  const double start = system_.now_seconds();
  const int64_t before = counters_.bytes_read + counters_.bytes_written;
  double waited = 0;
  while (!request.is_finished()) {
    collect_and_issue(reported_slow_ ? kLongWait : std::max(0.0, slow_seconds_ - waited));
    waited = system_.now_seconds() - start;
    if (!reported_slow_ && waited >= slow_seconds_)
      report_slow(waited, counters_.bytes_read + counters_.bytes_written - before);
  }
  counters_.wait_seconds += waited;
}

void SwapFile::report_slow(double waited, int64_t moved) {
  reported_slow_ = true;
  const auto rate = static_cast<int64_t>(static_cast<double>(moved) / std::max(waited, 1e-9));
  log_notice(cat(path_, ": the disk is slow: ", human_seconds(waited), " in one wait, ",
                 human_bytes(moved), " moved in it (", human_bytes(rate), "/s)"));
}

void SwapFile::release_request(SwapRequest& request, uint32_t index) {
  request.is_open = false;
  ++request.generation;
  free_requests_.push_back(index);
}

}  // namespace ftrun
