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
    for (const ProgressBoard* board : boards().all) text += board->describe() + "\n";
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
  CollectiveRecord now = record;
  now.state = CollectiveState::kEntered;
  now.unix_ns = unix_time_ns();
  cell_.record.write(now);
}

void ProgressBoard::CommunicatorSlot::set_state(CollectiveState state) {
  CollectiveRecord now = cell_.record.read();
  now.state = state;
  now.unix_ns = unix_time_ns();
  cell_.record.write(now);
}

ProgressBoard::ProgressBoard(int rank, BoardTable* table)
    : rank_(rank),
      own_(table == nullptr ? std::make_unique<BoardTable>() : nullptr),
      table_(table == nullptr ? *own_ : *table) {
  table_.rank.store(rank, std::memory_order_relaxed);
  table_.pid.store(::getpid(), std::memory_order_release);
  const std::lock_guard lock(boards().mutex);
  boards().all.push_back(this);
}

ProgressBoard::~ProgressBoard() {
  const std::lock_guard lock(boards().mutex);
  std::erase(boards().all, this);
}

/// Frees the cells of groups of this name that were left, because a group of this name is opened
/// again.
void ProgressBoard::forget_left(const std::string& group) {
  for (BoardTable::GroupCell& cell : table_.groups) {
    const BoardGroup shown = cell.group.read();
    const bool same = group.compare(0, sizeof shown.name - 1, std::string_view(shown.name)) == 0;
    if (same && cell.used.load() == BoardTable::GroupCell::kLeft)
      cell.used.store(BoardTable::GroupCell::kFree);
  }
}

/// Finds a free cell. If there is none, takes the cell of a group that was left; such groups are
/// shown only as long as there is room.
ProgressBoard::Cells::iterator ProgressBoard::free_cell() {
  for (const uint32_t use : {BoardTable::GroupCell::kFree, BoardTable::GroupCell::kLeft}) {
    const auto found = std::ranges::find_if(
        table_.groups, [&](const auto& cell) { return cell.used.load() == use; });
    if (found != table_.groups.end()) return found;
  }
  return table_.groups.end();
}

ProgressBoard::CommunicatorSlot* ProgressBoard::open(const std::string& group,
                                                     const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  forget_left(group);
  const auto free = free_cell();
  std::unique_ptr<BoardTable::GroupCell> own;
  if (free == table_.groups.end()) own = std::make_unique<BoardTable::GroupCell>();
  BoardTable::GroupCell& cell = own ? *own : *free;
  BoardGroup shown{.members = encode_members(members)};
  group.copy(shown.name, sizeof shown.name - 1);
  cell.group.write(shown);
  cell.record.write({});
  cell.used.store(BoardTable::GroupCell::kOpen, std::memory_order_release);
  CommunicatorSlot* slot = slots_.emplace_back(std::make_unique<CommunicatorSlot>(cell)).get();
  slot->own_ = std::move(own);
  return slot;
}

void ProgressBoard::close(CommunicatorSlot* slot) {
  const std::lock_guard lock(mutex_);
  if (slot->read().state != CollectiveState::kAborted) slot->set_state(CollectiveState::kLeft);
  slot->cell_.used.store(BoardTable::GroupCell::kLeft, std::memory_order_release);
  std::erase_if(slots_, [slot](const auto& owned) { return owned.get() == slot; });
}

void ProgressBoard::show_phase(std::string_view what) {
  table_.phase.write(activity(ActivityKind::kOwnWork, what));
}

void ProgressBoard::enter_lane(int lane, const Activity& what) {
  if (lane >= BoardTable::kLanes) return;
  Activity now = what;
  now.unix_ns = unix_time_ns();
  table_.lanes[static_cast<size_t>(lane)].write(now);
}

void ProgressBoard::leave_lane(int lane) {
  if (lane < BoardTable::kLanes) table_.lanes[static_cast<size_t>(lane)].write({});
}

void ProgressBoard::show_text_exchange(std::string_view what) {
  table_.text_exchange.write(what.empty() ? Activity{}
                                          : activity(ActivityKind::kCommunication, what));
}

CollectiveRecord ProgressBoard::find(const RankState& state, const std::string& group) {
  const RankState::GroupState* found = state.find(group);
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

Activity activity(ActivityKind kind, std::string_view what) {
  Activity made{.unix_ns = unix_time_ns(), .kind = kind};
  what.copy(made.what, sizeof made.what - 1);
  return made;
}

void install_crash_handler() {
  std::set_terminate(on_terminate);
}

}  // namespace ftrun
