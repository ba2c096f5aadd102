#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/collective.h"

namespace ftrun {

/// What one rank's communicators are doing, readable from other threads at any time: by the
/// heartbeat that shows it to other ranks, and by the crash handler.
class ProgressBoard {
 public:
  class Slot {
   public:
    explicit Slot(std::string group) : group_(std::move(group)) {}
    void enter(const CollectiveRecord& record);
    void finish();
    void mark(CollectiveRecord::State state);
    CollectiveRecord read() const;
    const std::string& group() const { return group_; }

   private:
    friend class ProgressBoard;
    mutable std::mutex mutex_;
    const std::string group_;
    CollectiveRecord record_;
  };

  explicit ProgressBoard(int rank);
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  int rank() const { return rank_; }
  /// One slot for a communicator; lives until close().
  Slot* open(const std::string& group);
  void close(Slot* slot);
  /// All slots as bytes, for the store.
  std::vector<uint8_t> image() const;
  /// The group's record in another rank's image; nothing known gives an empty record.
  static CollectiveRecord find(const std::vector<uint8_t>& image, const std::string& group);

  /// "rank 3 in all_reduce #12 (...) of group dp": for the crash handler, which must not wait for a
  /// lock that the crashed thread may hold.
  std::string try_describe() const;

 private:
  const int rank_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

/// Makes std::terminate print each rank of this process with the collective it is in, and exit with
/// code 6 instead of a core dump: Gloo ends so, in a thread of its own, when peers disagree about
/// sizes. Call once, when a rank starts.
void install_crash_handler();

}  // namespace ftrun
