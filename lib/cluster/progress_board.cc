#include "cluster/progress_board.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "base/as_error.h"
#include "base/error.h"
#include "cluster/failure_report.h"

namespace ftrun {
namespace {

struct BoardRegistry {
  std::mutex mutex;
  std::vector<const ProgressBoard*> boards;
};
BoardRegistry& board_registry() {
  static BoardRegistry instance;
  return instance;
}

std::string terminate_text() {
  std::string text;
  std::unique_lock lock(board_registry().mutex, std::try_to_lock);
  if (lock.owns_lock()) {
    for (const ProgressBoard* board : board_registry().boards) text += board->describe() + "\n";
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
  if (is_out_of_memory(std::current_exception())) {
    constexpr std::string_view kText =
        "error: out of memory, in a thread that cannot continue without it\n";
    [[maybe_unused]] const ssize_t written = ::write(2, kText.data(), kText.size());
    ::_exit(static_cast<int>(ExitCode::kEnvironment));
  }
  const std::string text =
      cat("error: the process must end: an error in a thread of the transport\n", terminate_text());
  [[maybe_unused]] const ssize_t done = ::write(2, text.data(), text.size());
  ::_exit(static_cast<int>(ExitCode::kPeerLost));
}

}  // namespace

void ProgressBoard::CommunicatorSlot::enter(const CollectiveRecord& record) {
  CollectiveRecord entered = record;
  entered.state = CollectiveState::kEntered;
  entered.unix_ns = unix_time_ns();
  cell_.record.write(entered);
}

void ProgressBoard::CommunicatorSlot::set_state(CollectiveState state) {
  CollectiveRecord record = cell_.record.read();
  record.state = state;
  record.unix_ns = unix_time_ns();
  cell_.record.write(record);
}

ProgressBoard::ProgressBoard(int rank, BoardTable* table)
    : rank_(rank),
      own_table_(table == nullptr ? std::make_unique<BoardTable>() : nullptr),
      table_(table == nullptr ? *own_table_ : *table) {
  table_.rank.store(rank, std::memory_order_relaxed);
  table_.pid.store(::getpid(), std::memory_order_release);
  const std::lock_guard lock(board_registry().mutex);
  board_registry().boards.push_back(this);
}

ProgressBoard::~ProgressBoard() {
  const std::lock_guard lock(board_registry().mutex);
  std::erase(board_registry().boards, this);
}

/// Frees the cells of groups of this name that were left, because a group of this name is opened
/// again.
void ProgressBoard::free_left_cells(const std::string& group) {
  for (BoardTable::GroupCell& cell : table_.groups) {
    const BoardGroup shown = cell.group.read();
    const bool same = group.compare(0, sizeof shown.name - 1, std::string_view(shown.name)) == 0;
    if (same && cell.state.load() == BoardTable::GroupCell::kLeft)
      cell.state.store(BoardTable::GroupCell::kFree);
  }
}

/// Finds a free cell. If there is none, takes the cell of a group that was left; such groups are
/// shown only as long as there is room.
ProgressBoard::GroupCells::iterator ProgressBoard::find_free_cell() {
  for (const uint32_t state : {BoardTable::GroupCell::kFree, BoardTable::GroupCell::kLeft}) {
    const auto found = std::ranges::find_if(
        table_.groups, [&](const auto& cell) { return cell.state.load() == state; });
    if (found != table_.groups.end()) return found;
  }
  return table_.groups.end();
}

ProgressBoard::CommunicatorSlot* ProgressBoard::open(const std::string& group,
                                                     const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  free_left_cells(group);
  const auto free = find_free_cell();
  std::unique_ptr<BoardTable::GroupCell> own;
  if (free == table_.groups.end()) own = std::make_unique<BoardTable::GroupCell>();
  BoardTable::GroupCell& cell = own ? *own : *free;
  BoardGroup shown{.members = encode_members(members)};
  group.copy(shown.name, sizeof shown.name - 1);
  cell.group.write(shown);
  cell.record.write({});
  cell.state.store(BoardTable::GroupCell::kOpen, std::memory_order_release);
  CommunicatorSlot* slot = slots_.emplace_back(std::make_unique<CommunicatorSlot>(cell)).get();
  slot->own_cell_ = std::move(own);
  return slot;
}

void ProgressBoard::close(CommunicatorSlot* slot) {
  const std::lock_guard lock(mutex_);
  if (slot->read().state != CollectiveState::kAborted) slot->set_state(CollectiveState::kLeft);
  slot->cell_.state.store(BoardTable::GroupCell::kLeft, std::memory_order_release);
  std::erase_if(slots_, [slot](const auto& owned) { return owned.get() == slot; });
}

void ProgressBoard::show_phase(std::string_view what) {
  table_.phase.write(make_activity(ActivityKind::kOwnWork, what));
}

void ProgressBoard::enter_lane(int lane, const Activity& what) {
  if (lane >= BoardTable::kLanes) return;
  Activity shown = what;
  shown.unix_ns = unix_time_ns();
  table_.lanes[static_cast<size_t>(lane)].write(shown);
}

void ProgressBoard::leave_lane(int lane) {
  if (lane < BoardTable::kLanes) table_.lanes[static_cast<size_t>(lane)].write({});
}

void ProgressBoard::show_text_exchange(std::string_view what) {
  table_.text_exchange.write(what.empty() ? Activity{}
                                          : make_activity(ActivityKind::kCommunication, what));
}

CollectiveRecord ProgressBoard::find_record(const RankState& state, const std::string& group) {
  const RankState::GroupState* found = state.find_group(group);
  return found == nullptr ? CollectiveRecord{} : found->record;
}

void ProgressBoard::blame(int rank) {
  int nobody = -1;
  blamed_rank_.compare_exchange_strong(nobody, rank);
}

std::string ProgressBoard::describe() const {
  std::string text = cat("  rank ", rank_, " is in no collective");
  for (const RankState::GroupState& group : state().groups)
    if (group.record.state == CollectiveState::kEntered)
      text =
          cat("  rank ", rank_, " is in ", ftrun::describe(group.record), " of group ", group.name);
  return text;
}

Activity make_activity(ActivityKind kind, std::string_view what) {
  Activity result{.unix_ns = unix_time_ns(), .kind = kind};
  what.copy(result.what, sizeof result.what - 1);
  return result;
}

void install_crash_handler() {
  std::set_terminate(on_terminate);
}

}  // namespace ftrun
