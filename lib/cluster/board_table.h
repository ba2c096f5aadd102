#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>

#include "cluster/collective_record.h"

namespace ftrun {

/// SeqLocked is a value behind a sequence lock: one process writes it, and every process that maps
/// its memory reads it without a lock or a system call. A reader that finds a write in progress
/// reads again. After a while it stops trying and returns an empty value, because the writer may
/// have been stopped in the middle of its write. Zero bytes are an empty value.
template <typename T>
class SeqLocked {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);

 public:
  void write(const T& value) {
    std::array<uint64_t, kWords> words;
    std::memcpy(words.data(), &value, sizeof value);
    uint32_t version = version_.load(std::memory_order_relaxed);
    // The loop is for the one case of two writers: another thread of this process also writes when
    // something has failed.
    do {
      version &= ~1U;
    } while (!version_.compare_exchange_weak(version, version + 1, std::memory_order_acquire));
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
    version_.store(version + 2, std::memory_order_release);
  }

  T read() const {
    std::array<uint64_t, kWords> words;
    std::chrono::steady_clock::time_point give_up;
    for (int attempt = 1;; ++attempt) {
      const uint32_t before = version_.load(std::memory_order_acquire);
      for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if ((before & 1) == 0 && version_.load(std::memory_order_relaxed) == before) break;
      if (attempt % kBeforeYield != 0) continue;
      const auto now = std::chrono::steady_clock::now();
      if (attempt == kBeforeYield)
        give_up = now + kReadTimeout;
      else if (now >= give_up)
        return T{};
      std::this_thread::yield();  // the writer may be waiting for this core
    }
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof value);
    return value;
  }

 private:
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);
  static constexpr int kBeforeYield = 256;
  static constexpr std::chrono::milliseconds kReadTimeout{50};
  std::atomic<uint32_t> version_;
  std::array<std::atomic<uint64_t>, kWords> words_;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// ActivityKind says whether an activity involves other ranks.
enum class ActivityKind : uint8_t {
  kNone,
  kOwnWork,        // work without other ranks
  kCommunication,  // something that other ranks take part in
};

/// Activity is the work that a rank, or one of its lanes, is doing.
struct Activity {
  /// The time when the activity began: nanoseconds of the system clock.
  int64_t unix_ns = 0;
  char what[79] = {};
  ActivityKind kind = ActivityKind::kNone;
};

/// BoardMembers encodes the ranks of a group in few numbers: as a list, or as first, first +
/// stride, first + 2 stride, ...
struct BoardMembers {
  static constexpr int kListed = 16;
  int32_t count = 0;
  int32_t stride = 0;  // 0: `ranks` is a list, which may hold only the first ranks
  std::array<int32_t, kListed> ranks{};
};

struct BoardGroup {
  char name[64] = {};
  BoardMembers members;
};

/// BoardTable holds the state that one rank shows to others. It lies in the rank's own memory, or
/// in memory of the supervisor that the other ranks of the machine also map. Zero bytes are a table
/// without a rank.
struct BoardTable {
  /// The number of lanes and groups that fit; further ones are not shown.
  static constexpr int kLanes = 64;
  static constexpr int kGroups = 40;
  static constexpr int64_t kBytes = 32 << 10;

  struct GroupCell {
    static constexpr uint32_t kFree = 0, kOpen = 1, kLeft = 2;
    std::atomic<uint32_t> state;
    SeqLocked<BoardGroup> group;
    SeqLocked<CollectiveRecord> record;
  };

  /// The id of the process, 0 if there is none yet, and its rank.
  std::atomic<int32_t> pid;
  std::atomic<int32_t> rank;
  /// The phase of the rank, and the exchange of texts in which it takes part.
  SeqLocked<Activity> phase;
  SeqLocked<Activity> text_exchange;
  std::array<SeqLocked<Activity>, kLanes> lanes;
  std::array<GroupCell, kGroups> groups;
};
static_assert(sizeof(BoardTable) <= BoardTable::kBytes);

}  // namespace ftrun
