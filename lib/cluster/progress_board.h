#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/board_table.h"
#include "cluster/collective_record.h"
#include "cluster/rank_state.h"

namespace ftrun {

/// ProgressBoard shows what one rank is doing. It can be read at any time by other threads (the
/// heartbeat, which sends it to other ranks, and the crash handler) and, if its table is in the
/// supervisor's memory, by the supervisor and the ranks of the machine. Writing to it needs no lock
/// and no system call except to read a clock.
class ProgressBoard {
 public:
  /// CommunicatorSlot shows the state of one communicator.
  class CommunicatorSlot {
   public:
    explicit CommunicatorSlot(BoardTable::GroupCell& cell) : cell_(cell) {}
    void enter(const CollectiveRecord& record);
    void finish() { set_state(CollectiveState::kFinished); }
    void set_state(CollectiveState state);
    CollectiveRecord read() const { return cell_.record.read(); }
    std::string group() const { return cell_.group.read().name; }

   private:
    friend class ProgressBoard;
    BoardTable::GroupCell& cell_;
    std::unique_ptr<BoardTable::GroupCell> own_cell_;  // if the table is full
  };

  /// Begins a rank's board in `table`, which is borrowed; if it is null, the board has its own
  /// memory.
  explicit ProgressBoard(int rank, BoardTable* table = nullptr);
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  int rank() const { return rank_; }
  /// Opens a slot for a communicator among these global ranks; the slot lives until close().
  /// Afterwards the board shows that the rank has left the group, or that it had aborted it.
  CommunicatorSlot* open(const std::string& group, const std::vector<int>& members = {});
  void close(CommunicatorSlot* slot);

  /// Shows what the rank is doing from now on: "step 12", "writing a checkpoint".
  void show_phase(std::string_view what);
  /// Shows an activity of a lane until leave_lane(). Only one thread at a time may call it for a
  /// lane.
  void enter_lane(int lane, const Activity& what);
  void leave_lane(int lane);
  /// Shows the exchange of texts in which the rank takes part from now on; "" when it has ended.
  void show_text_exchange(std::string_view what);

  RankState state() const { return read_state(table_); }
  /// Returns the state as bytes, for the store.
  std::vector<uint8_t> encoded_state() const { return encode_state(state()); }
  /// Finds the group's record in a rank's state; an empty record if nothing is known.
  static CollectiveRecord find_record(const RankState& state, const std::string& group);

  /// Records the rank that this rank found to be the cause of its wait; only the first call has an
  /// effect. blamed_rank() returns -1 before it.
  void blame(int rank);
  int blamed_rank() const { return blamed_rank_; }

  /// Returns the text "  rank 3 is in all_reduce #12 (...) of group dp" for the crash handler,
  /// which must not wait for a lock that the crashed thread may hold.
  std::string describe() const;

 private:
  using GroupCells = decltype(BoardTable::groups);
  void free_left_cells(const std::string& group);
  GroupCells::iterator find_free_cell();

  const int rank_;
  std::unique_ptr<BoardTable> own_table_;
  BoardTable& table_;
  std::atomic<int> blamed_rank_ = -1;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CommunicatorSlot>> slots_;
};

/// Makes an activity that begins when it is shown on the board.
Activity make_activity(ActivityKind kind, std::string_view what);

/// Makes std::terminate print each rank of this process with the collective it is in, and exit with
/// code 6 instead of dumping core: Gloo calls std::terminate in its own thread when peers disagree
/// about sizes. Call it once, when a rank starts.
void install_crash_handler();

}  // namespace ftrun
