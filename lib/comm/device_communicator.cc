#include "comm/device_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "base/text.h"
#include "cluster/failure_report.h"

namespace ftrun {
namespace {

/// Parts of an ordered sum begin at multiples of this many bytes, because kernels read 16 bytes at
/// a time.
constexpr int64_t kPartAlignment = 16;

bool is_float(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(Setup setup)
    : Communicator(std::move(setup)), exchanges_(static_cast<size_t>(size())) {}

DeviceCommunicator::~DeviceCommunicator() = default;

void DeviceCommunicator::start_watchdog() {
  WatchedCommunicator& watched = *this;
  watchdog_ = std::make_unique<CollectiveWatchdog>(watched, setup().timeout);
}

/// Stops the watchdog; the thread that closes the group no longer waits for the device.
void DeviceCommunicator::stop_watchdog() {
  {
    const std::lock_guard lock(lost_mutex_);
    loss_was_checked_ = true;
  }
  lost_changed_.notify_all();
  watchdog_.reset();
}

void DeviceCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  Communicator::set_timeout(timeout);
  if (watchdog_) watchdog_->set_limit(timeout);
}

void DeviceCommunicator::check_peers() {
  std::unique_lock lock(lost_mutex_);
  lost_changed_.wait(lock, [&] { return !loss_noticed_ || loss_error_; });
  if (!loss_error_) return;
  loss_was_checked_ = true;
  lost_changed_.notify_all();
  std::rethrow_exception(loss_error_);
}

void DeviceCommunicator::on_begin(const CollectiveRecord& record) {
  const std::lock_guard lock(shown_mutex_);
  if (board_slot() != nullptr && !has_aborted_) board_slot()->enter(record);
}

void DeviceCommunicator::on_end() {
  const std::lock_guard lock(shown_mutex_);
  if (board_slot() != nullptr && !has_aborted_) board_slot()->finish();
}

bool DeviceCommunicator::show_group_aborted() noexcept {
  const std::lock_guard lock(shown_mutex_);
  if (std::exchange(has_aborted_, true)) return false;
  if (board_slot() != nullptr) board_slot()->set_state(CollectiveState::kAborted);
  return true;
}

/// Ends the group because of a failure that the watchdog's thread found. The abort ends the
/// device's work and with it the waits for the device. The loss is recorded before, so that
/// check_peers() does not let anyone use the unfinished data as results.
void DeviceCommunicator::on_peer_lost(const CollectiveRecord& record,
                                      const CollectiveFailure& failure) {
  mark_group_lost();
  const Error error = abort_with_error(record, failure);
  publish_loss(error);
  FailureReport report = make_failure_report(own_global_rank(), error, error);
  report.culprit = setup().board == nullptr ? -1 : setup().board->blamed_rank();
  wait_until_checked_or_exit(report);
}

/// Reports to the peers that this rank aborts the group. The reported error is this rank's own and
/// names no peer.
void DeviceCommunicator::on_device_failed(const CollectiveRecord& record, const RankError& error) {
  mark_group_lost();
  const std::string text =
      cat(error.message(), " (noticed in ", describe(record), " of group ", name(), ")");
  const RankError reported({error.code(), text, error.remedy()}, error.rank(),
                           error.is_device_failure());
  abort(reported.message());
  publish_loss(reported);
  wait_until_checked_or_exit(make_failure_report(own_global_rank(), reported, reported));
}

void DeviceCommunicator::mark_group_lost() {
  const std::lock_guard lock(lost_mutex_);
  loss_noticed_ = true;
}

template <typename Failed>
void DeviceCommunicator::publish_loss(const Failed& error) {
  {
    const std::lock_guard lock(lost_mutex_);
    loss_error_ = std::make_exception_ptr(error);
  }
  lost_changed_.notify_all();
}

/// Ends the process if no thread that waits for the device calls check_peers() soon after an abort:
/// the process must not hang.
void DeviceCommunicator::wait_until_checked_or_exit(const FailureReport& report) {
  std::unique_lock lock(lost_mutex_);
  if (lost_changed_.wait_for(lock, setup().abort_timeout, [&] { return loss_was_checked_; }))
    return;
  report_failure(report);
  const std::string text = cat("error: ", report.message, "\n");
  [[maybe_unused]] const ssize_t done = ::write(2, text.data(), text.size());
  ::_exit(report.exit_code);
}

void DeviceCommunicator::begin_collective(Collective& collective) {
  check_peers();
  // An event that is captured in a CUDA graph cannot be queried, so a captured collective is not
  // watched; replays have their own events.
  call_or_report_loss(
      [&] { is_capturing() ? enqueue_by_kind(collective) : issue_watched(collective); });
}

void DeviceCommunicator::issue_watched(const Collective& collective) {
  const int64_t handle = record_begin_event();
  watchdog_->announce(collective.record, handle);
  try {
    enqueue_by_kind(collective);
  } catch (...) {
    watchdog_->withdraw();
    throw;
  }
  record_end_event(handle);
  watchdog_->confirm_issued();
}

/// Watches all collectives of a replay as if they were its first one, which then ends when all have
/// ended.
void DeviceCommunicator::on_replay_begin(const CollectiveRecord& first) {
  check_peers();
  replay_handle_ = record_begin_event();
  watchdog_->announce(first, replay_handle_);
}

void DeviceCommunicator::on_replay_end() {
  record_end_event(replay_handle_);
  watchdog_->confirm_issued();
}

void DeviceCommunicator::enqueue_by_kind(const Collective& collective) {
  if (is_exchange(collective.record.kind))
    move_blocks(collective);
  else if (!adds_in_order(collective.record))
    enqueue(collective);
  else if (collective.record.kind == CollectiveKind::kAllReduce)
    all_reduce_in_order(collective);
  else
    reduce_scatter_in_order(collective);
}

/// Puts all messages of a rank into one exchange, in which no message waits for another.
void DeviceCommunicator::move_blocks(const Collective& collective) {
  const BytesByRank moved = bytes_by_rank(collective, rank(), size());
  const auto* in = static_cast<const std::byte*>(collective.in);
  auto* out = static_cast<std::byte*>(collective.out);
  for (size_t other = 0; other < exchanges_.size(); ++other) {
    exchanges_[other] = {in, moved.sent[other], out, moved.received[other]};
    in += moved.sent[other];
    out += moved.received[other];
  }
  enqueue(exchanges_);
}

void DeviceCommunicator::complete_collective(Collective&) {
  check_peers();
}

/// Returns whether the collective has to add in rank order. Maxima, minima and sums of integers do
/// not depend on the order.
bool DeviceCommunicator::adds_in_order(const CollectiveRecord& record) const {
  const bool reduces =
      record.kind == CollectiveKind::kAllReduce || record.kind == CollectiveKind::kReduceScatter;
  return setup().sum_blocks && reduces && record.op == ReduceOp::kSum && is_float(record.dtype);
}

/// Returns the scratch memory. It is allocated only once, because work that is already in the
/// stream still uses it.
std::byte* DeviceCommunicator::scratch() {
  if (scratch_.bytes() == 0) scratch_ = allocate_memory(kScratchBytes);
  return scratch_.as<std::byte>();
}

void DeviceCommunicator::add_blocks(const std::byte* blocks, int64_t stride,
                                    const CollectiveRecord& record, int64_t count, void* out) {
  if (count == 0) return;
  setup().sum_blocks({.blocks = blocks,
                      .ranks = size(),
                      .stride = stride,
                      .dtype = record.dtype,
                      .count = count,
                      .out = out,
                      .stream = stream_});
}

void DeviceCommunicator::reduce_small(const Collective& collective) {
  const int64_t bytes = payload_bytes(collective.record),
                element_bytes = dtype_bytes(collective.record.dtype);
  const int64_t stride = round_up(bytes, kPartAlignment);
  std::byte* const blocks = scratch();
  for (int rank = 0; rank < size(); ++rank)
    exchanges_[static_cast<size_t>(rank)] = {static_cast<const std::byte*>(collective.in), bytes,
                                             blocks + rank * stride, bytes};
  enqueue(exchanges_);
  add_blocks(blocks, stride / element_bytes, collective.record, collective.record.count,
             collective.out);
}

/// Reduces the elements [first, first + size() * part) of an all-reduce that exist: rank r adds up
/// the r-th part, then each rank sends its sum to all others.
void DeviceCommunicator::reduce_window(const Collective& collective, int64_t first, int64_t part) {
  const int64_t element_bytes = dtype_bytes(collective.record.dtype);
  auto* const data = static_cast<std::byte*>(collective.out);
  const auto begin_of = [&](int rank) {
    return std::min(first + rank * part, collective.record.count);
  };
  const auto bytes_of = [&](int rank) {
    return (begin_of(rank + 1) - begin_of(rank)) * element_bytes;
  };
  std::byte* const blocks = scratch();
  std::byte* const own = data + begin_of(rank()) * element_bytes;
  for (int other = 0; other < size(); ++other)
    exchanges_[static_cast<size_t>(other)] = {
        data + begin_of(other) * element_bytes, bytes_of(other),
        blocks + other * part * element_bytes, bytes_of(rank())};
  enqueue(exchanges_);
  add_blocks(blocks, part, collective.record, bytes_of(rank()) / element_bytes, own);
  for (int other = 0; other < size(); ++other) {
    const PeerExchange gathered{own, bytes_of(rank()), data + begin_of(other) * element_bytes,
                                bytes_of(other)};
    exchanges_[static_cast<size_t>(other)] = other == rank() ? PeerExchange{} : gathered;
  }
  enqueue(exchanges_);
}

void DeviceCommunicator::all_reduce_in_order(const Collective& collective) {
  const int64_t count = collective.record.count,
                element_bytes = dtype_bytes(collective.record.dtype);
  if (count * element_bytes <=
      std::min(kMaxOneExchangeBytes, kScratchBytes / size() / kPartAlignment * kPartAlignment))
    return reduce_small(collective);
  const int64_t step = kPartAlignment / std::min(kPartAlignment, element_bytes);
  const int64_t max_part = kScratchBytes / size() / element_bytes / step * step;
  const int64_t even_part = round_up(divide_up(count, size()), step);
  const int64_t part = std::min(max_part, even_part);
  for (int64_t first = 0; first < count; first += size() * part)
    reduce_window(collective, first, part);
}

void DeviceCommunicator::reduce_scatter_in_order(const Collective& collective) {
  const int64_t count = collective.record.count,
                element_bytes = dtype_bytes(collective.record.dtype);
  const int64_t step = kPartAlignment / std::min(kPartAlignment, element_bytes);
  const int64_t part = kScratchBytes / size() / element_bytes / step * step;
  const auto* const in = static_cast<const std::byte*>(collective.in);
  std::byte* const blocks = scratch();
  for (int64_t first = 0; first < count; first += part) {
    const int64_t piece = std::min(part, count - first);
    for (int other = 0; other < size(); ++other)
      exchanges_[static_cast<size_t>(other)] = {
          in + (other * count + first) * element_bytes, piece * element_bytes,
          blocks + other * part * element_bytes, piece * element_bytes};
    enqueue(exchanges_);
    add_blocks(blocks, part, collective.record, piece,
               static_cast<std::byte*>(collective.out) + first * element_bytes);
  }
}

}  // namespace ftrun
