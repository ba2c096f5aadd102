#include "comm/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error.h"

namespace ftrun {
namespace {

/// One slot as the store carries it: ranks of one job run one binary.
struct SlotImage {
  char group[64] = {};
  CollectiveRecord record;
};

int64_t unix_now() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct Boards {
  std::mutex mutex;
  std::vector<const ProgressBoard*> all;
};
Boards& boards() {
  static Boards instance;
  return instance;
}

std::string terminate_text() {
  std::string text;
  std::unique_lock lock(boards().mutex, std::try_to_lock);
  if (lock.owns_lock()) {
    for (const ProgressBoard* board : boards().all) text += board->try_describe() + "\n";
  }
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& error) {
      const std::string what = error.what();
      text += cat("  the transport says: ", what.substr(0, what.find('\n')), "\n");
    } catch (...) {
    }
  }
  return text;
}

[[noreturn]] void on_terminate() {
  const std::string text =
      cat("error: the process must end: an error in a thread of the transport\n", terminate_text());
  [[maybe_unused]] const ssize_t done = ::write(2, text.data(), text.size());
  ::_exit(static_cast<int>(ExitCode::kPeerLost));
}

}  // namespace

void ProgressBoard::Slot::enter(const CollectiveRecord& record) {
  const std::lock_guard lock(mutex_);
  record_ = record;
  record_.state = CollectiveRecord::State::kEntered;
  record_.unix_ns = unix_now();
}

void ProgressBoard::Slot::finish() {
  mark(CollectiveRecord::State::kFinished);
}

void ProgressBoard::Slot::mark(CollectiveRecord::State state) {
  const std::lock_guard lock(mutex_);
  record_.state = state;
  record_.unix_ns = unix_now();
}

CollectiveRecord ProgressBoard::Slot::read() const {
  const std::lock_guard lock(mutex_);
  return record_;
}

ProgressBoard::ProgressBoard(int rank) : rank_(rank) {
  const std::lock_guard lock(boards().mutex);
  boards().all.push_back(this);
}

ProgressBoard::~ProgressBoard() {
  const std::lock_guard lock(boards().mutex);
  std::erase(boards().all, this);
}

ProgressBoard::Slot* ProgressBoard::open(const std::string& group) {
  const std::lock_guard lock(mutex_);
  return slots_.emplace_back(std::make_unique<Slot>(group)).get();
}

void ProgressBoard::close(Slot* slot) {
  const std::lock_guard lock(mutex_);
  std::erase_if(slots_, [slot](const auto& owned) { return owned.get() == slot; });
}

std::vector<uint8_t> ProgressBoard::image() const {
  const std::lock_guard lock(mutex_);
  std::vector<uint8_t> bytes(slots_.size() * sizeof(SlotImage));
  for (size_t i = 0; i < slots_.size(); ++i) {
    SlotImage image;
    slots_[i]->group().copy(image.group, sizeof image.group - 1);
    image.record = slots_[i]->read();
    std::memcpy(bytes.data() + i * sizeof image, &image, sizeof image);
  }
  return bytes;
}

CollectiveRecord ProgressBoard::find(const std::vector<uint8_t>& image, const std::string& group) {
  for (size_t at = 0; at + sizeof(SlotImage) <= image.size(); at += sizeof(SlotImage)) {
    SlotImage slot;
    std::memcpy(&slot, image.data() + at, sizeof slot);
    slot.record.site[sizeof slot.record.site - 1] = '\0';
    if (group.compare(0, sizeof slot.group - 1, slot.group) == 0) return slot.record;
  }
  return {};
}

std::string ProgressBoard::try_describe() const {
  std::string text = cat("  rank ", rank_, " is in no collective");
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return text;
  for (const auto& slot : slots_) {
    const std::unique_lock slot_lock(slot->mutex_, std::try_to_lock);
    if (slot_lock.owns_lock() && slot->record_.state == CollectiveRecord::State::kEntered)
      text = cat("  rank ", rank_, " is in ", describe(slot->record_), " of group ", slot->group_);
  }
  return text;
}

void install_crash_handler() {
  std::set_terminate(on_terminate);
}

}  // namespace ftrun
