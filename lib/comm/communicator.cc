#include "comm/communicator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "base/amount_text.h"
#include "base/as_error.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The longest chain of groups in which each waits for the next: pipeline, tensor, expert, shard
/// and data parallel ranks.
constexpr int kMaxRounds = 16;

/// Lists the collective that each rank has entered, if all ranks have entered the collective of the
/// same sequence number and their calls differ; else nothing.
std::optional<std::vector<CollectiveRecord>> differing_calls(const std::vector<PeerView>& views,
                                                             const CollectiveRecord& own_record,
                                                             int self) {
  if (is_point_to_point(own_record.kind)) return std::nullopt;
  std::vector<CollectiveRecord> calls;
  for (size_t i = 0; i < views.size(); ++i) {
    const CollectiveRecord& record = static_cast<int>(i) == self ? own_record : views[i].record;
    const bool has_entered = static_cast<int>(i) == self || record.state != CollectiveState::kNone;
    if (!has_entered || is_point_to_point(record.kind) || record.sequence != own_record.sequence)
      return std::nullopt;
    calls.push_back(record);
  }
  const bool equal = std::ranges::all_of(
      calls, [&](const CollectiveRecord& one) { return same_collective(one, own_record); });
  return equal ? std::nullopt : std::optional(calls);
}

/// CallBytes holds the bytes that a rank sends and receives in one collective.
struct CallBytes {
  int64_t sent = 0;
  int64_t received = 0;
};

/// Counts the bytes of a collective on rank `rank` of a group of `size` ranks. A rank receives as
/// many bytes as it sends, except in transfers and broadcasts, and where counts differ by rank.
CallBytes bytes_of_call(const Collective& collective, int rank, int size) {
  const CollectiveRecord& record = collective.record;
  const int64_t bytes = payload_bytes(record);
  const auto sent_of = [&](int64_t input) { return sent_bytes(record.kind, input, size); };
  switch (record.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
      return {sent_of(bytes), sent_of(bytes)};
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return {sent_of(bytes * size), sent_of(bytes * size)};
    case CollectiveKind::kCountedAllToAll:
    case CollectiveKind::kShift: {
      const BytesByRank moved = bytes_by_rank(collective, rank, size);
      const auto own = static_cast<size_t>(rank);
      return {std::reduce(moved.sent.begin(), moved.sent.end()) - moved.sent[own],
              std::reduce(moved.received.begin(), moved.received.end()) - moved.received[own]};
    }
    case CollectiveKind::kBroadcast:
      return record.peer == rank ? CallBytes{sent_of(bytes), 0} : CallBytes{0, bytes};
    case CollectiveKind::kSend:
      return {sent_of(bytes), 0};
    case CollectiveKind::kReceive:
      return {0, bytes};
    case CollectiveKind::kBarrier:
      break;
  }
  return {};
}

void free_pages(void* data, int64_t bytes) {
  ::munmap(data, static_cast<size_t>(bytes));
}

}  // namespace

BytesByRank bytes_by_rank(const Collective& collective, int rank, int size) {
  const CollectiveRecord& record = collective.record;
  const int64_t block_bytes = payload_bytes(record), element_bytes = dtype_bytes(record.dtype);
  const auto ranks = static_cast<size_t>(size);
  if (record.kind == CollectiveKind::kAllToAll)
    return {std::vector<int64_t>(ranks, block_bytes), std::vector<int64_t>(ranks, block_bytes)};
  BytesByRank moved{std::vector<int64_t>(ranks, 0), std::vector<int64_t>(ranks, 0)};
  if (record.kind == CollectiveKind::kShift) {
    moved.sent[static_cast<size_t>((rank + record.peer) % size)] = block_bytes;
    moved.received[static_cast<size_t>((rank - record.peer + size) % size)] = block_bytes;
    return moved;
  }
  for (size_t i = 0; i < ranks; ++i) {
    moved.sent[i] = collective.sends[i] * element_bytes;
    moved.received[i] = collective.receives[i] * element_bytes;
  }
  return moved;
}

bool is_reducible(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kI64:
    case DType::kI32:
    case DType::kI8:
    case DType::kU8:
      return true;
    default:
      return false;
  }
}

CommStats::KindStats CommStats::total() const {
  KindStats sum;
  for (const KindStats& entry : by_kind) {
    sum.calls += entry.calls;
    sum.bytes_sent += entry.bytes_sent;
    sum.bytes_received += entry.bytes_received;
    sum.seconds += entry.seconds;
  }
  return sum;
}

void Work::wait() {
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->wait_for(id_);
}

Communicator::Communicator(Setup setup)
    : setup_(std::move(setup)),
      send_sequences_(setup_.members.size(), 0),
      receive_sequences_(setup_.members.size(), 0) {
  if (setup_.board != nullptr) board_slot_ = setup_.board->open(setup_.name, setup_.members);
}

Communicator::~Communicator() {
  if (board_slot_ != nullptr) setup_.board->close(board_slot_);
}

Work Communicator::all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, CallSite site) {
  return issue(CollectiveKind::kAllReduce, data, data, count, dtype, op, -1, site);
}

Work Communicator::reduce_scatter(const void* in, void* out, int64_t count, DType dtype,
                                  ReduceOp op, CallSite site) {
  return issue(CollectiveKind::kReduceScatter, in, out, count, dtype, op, -1, site);
}

Work Communicator::all_gather(const void* in, void* out, int64_t count, DType dtype,
                              CallSite site) {
  return issue(CollectiveKind::kAllGather, in, out, count, dtype, ReduceOp::kSum, -1, site);
}

Work Communicator::all_to_all(const void* in, void* out, int64_t count, DType dtype,
                              CallSite site) {
  return issue(CollectiveKind::kAllToAll, in, out, count, dtype, ReduceOp::kSum, -1, site);
}

Work Communicator::counted_all_to_all(const void* in, std::span<const int64_t> sends, void* out,
                                      std::span<const int64_t> receives, int64_t capacity,
                                      DType dtype, CallSite site) {
  return issue(
      {.record = {.count = capacity, .kind = CollectiveKind::kCountedAllToAll, .dtype = dtype},
       .in = in,
       .out = out,
       .sends = {sends.begin(), sends.end()},
       .receives = {receives.begin(), receives.end()}},
      site);
}

Work Communicator::shift(const void* in, void* out, int64_t count, DType dtype, int by,
                         CallSite site) {
  return issue(CollectiveKind::kShift, in, out, count, dtype, ReduceOp::kSum, by, site);
}

Work Communicator::broadcast(void* data, int64_t count, DType dtype, int root, CallSite site) {
  return issue(CollectiveKind::kBroadcast, data, data, count, dtype, ReduceOp::kSum, root, site);
}

Work Communicator::send(const void* data, int64_t count, DType dtype, int to, CallSite site) {
  return issue(CollectiveKind::kSend, data, nullptr, count, dtype, ReduceOp::kSum, to, site);
}

Work Communicator::receive(void* data, int64_t count, DType dtype, int from, CallSite site) {
  return issue(CollectiveKind::kReceive, nullptr, data, count, dtype, ReduceOp::kSum, from, site);
}

void Communicator::barrier(CallSite site) {
  issue(CollectiveKind::kBarrier, nullptr, nullptr, 0, DType::kU8, ReduceOp::kSum, -1, site).wait();
}

CommBuffer Communicator::allocate(int64_t bytes) {
  require(bytes > 0, "a communication buffer needs at least one byte");
  return allocate_memory(bytes);
}

CommBuffer Communicator::allocate_memory(int64_t bytes) {
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ExitCode::kEnvironment,
                cat("no memory for a communication buffer of ", human_bytes(bytes), ": ",
                    errno_text(errno)),
                more_memory_remedy());
  return {data, bytes, free_pages};
}

/// Checks that the counts do not send more than `in` holds, and that a rank receives from itself as
/// many elements as it sends to itself.
void Communicator::check_counts(const Collective& collective) const {
  const CollectiveRecord& record = collective.record;
  for (const auto* counts : {&collective.sends, &collective.receives}) {
    if (static_cast<int>(counts->size()) != size())
      bug(cat(describe(record), ": ", counts->size(), " counts for ", size(), " ranks"));
    if (*std::ranges::min_element(*counts) < 0) bug(cat(describe(record), ": negative count"));
  }
  const int64_t sent = std::reduce(collective.sends.begin(), collective.sends.end());
  if (sent > record.count) bug(cat(describe(record), ": ", sent, " are sent"));
  check_received_count(collective, rank(), collective.sends[static_cast<size_t>(rank())]);
  if (is_capturing())
    bug(cat(describe(record),
            ": a counted all-to-all cannot be captured: its counts change on each replay"));
}

void Communicator::check_arguments(const Collective& collective) const {
  const CollectiveRecord& record = collective.record;
  const void* const in = collective.in;
  const void* const out = collective.out;
  const bool reduces =
      record.kind == CollectiveKind::kAllReduce || record.kind == CollectiveKind::kReduceScatter;
  const bool has_peer = is_point_to_point(record.kind) || record.kind == CollectiveKind::kBroadcast;
  if (record.count < 0) bug(cat(describe(record), ": negative count"));
  if (reduces && !is_reducible(record.dtype))
    bug(cat(describe(record), ": this type cannot be reduced"));
  if (has_peer && (record.peer < 0 || record.peer >= size()))
    bug(cat(describe(record), ": rank ", record.peer, " is not in group ", name(), " of ", size()));
  if (is_point_to_point(record.kind) && record.peer == rank())
    bug(cat(describe(record), ": a rank cannot send to itself"));
  if (record.kind == CollectiveKind::kShift && (record.peer < 0 || record.peer >= size()))
    bug(cat(describe(record), ": group ", name(), " has ", size(), " ranks"));
  if (record.kind == CollectiveKind::kCountedAllToAll) check_counts(collective);
  if (is_exchange(record.kind) && record.count > 0 && in == out)
    bug(cat(describe(record), ": its input is its output"));
  const bool needs_in = record.kind != CollectiveKind::kReceive;
  const bool needs_out = record.kind != CollectiveKind::kSend;
  if (record.count > 0 && ((needs_in && in == nullptr) || (needs_out && out == nullptr)))
    bug(cat(describe(record), ": null buffer"));
}

Work Communicator::issue(CollectiveKind kind, const void* in, void* out, int64_t count, DType dtype,
                         ReduceOp op, int peer, CallSite site) {
  return issue({.record = {.count = count, .peer = peer, .kind = kind, .dtype = dtype, .op = op},
                .in = in,
                .out = out},
               site);
}

Work Communicator::issue(Collective collective, CallSite site) {
  PendingCollective pending{.id = next_id_++, .collective = std::move(collective)};
  CollectiveRecord& record = pending.collective.record;
  site.what.copy(record.site, sizeof record.site - 1);
  check_arguments(pending.collective);
  if (!failure_reason_.empty())
    throw Error(ExitCode::kPeerLost,
                cat("group ", name(), " was aborted by an earlier failure: ", failure_reason_));
  record.sequence = next_sequence_number(record);
  if (is_capturing()) capture_->records.push_back(record);
  if (!copies_when_alone()) call_or_abort(record, [&] { begin_collective(pending.collective); });
  const int64_t id = pending.id;
  pending_.push_back(std::move(pending));
  return {this, id};
}

int64_t Communicator::next_sequence_number(const CollectiveRecord& record) {
  if (record.kind == CollectiveKind::kSend)
    return ++send_sequences_[static_cast<size_t>(record.peer)];
  if (record.kind == CollectiveKind::kReceive)
    return ++receive_sequences_[static_cast<size_t>(record.peer)];
  return ++sequence_;
}

void Communicator::begin_capture() {
  capture_ = {{}, send_sequences_, receive_sequences_, sequence_};
}

std::vector<CollectiveRecord> Communicator::end_capture() {
  const CapturedCalls captured = *std::exchange(capture_, std::nullopt);
  ++unreleased_captures_;
  send_sequences_ = captured.send_sequences;
  receive_sequences_ = captured.receive_sequences;
  sequence_ = captured.sequence;
  return captured.records;
}

void Communicator::begin_replay(std::span<CollectiveRecord> captured) {
  for (CollectiveRecord& record : captured) {
    record.sequence = next_sequence_number(record);
    record_time({.record = record}, 0);
  }
  is_replaying_ = !captured.empty();
  if (!is_replaying_) return;
  call_or_abort(captured.front(), [&] { on_replay_begin(captured.front()); });
}

void Communicator::require_no_captures() const {
  if (unreleased_captures_ != 0)
    bug(cat("group ", name(), " is closed while its collectives are held by ",
            count_text(unreleased_captures_, "captured graph")));
}

void Communicator::end_replay() {
  if (is_replaying_) on_replay_end();
  is_replaying_ = false;
}

/// Returns whether `earlier` must finish before `target`. Order is kept among collectives, among
/// receives from one peer, and among sends to one peer.
bool Communicator::must_finish_before(const PendingCollective& earlier,
                                      const PendingCollective& target) const {
  const CollectiveRecord& a = earlier.collective.record;
  const CollectiveRecord& b = target.collective.record;
  if (!is_point_to_point(a.kind) || !is_point_to_point(b.kind))
    return is_point_to_point(a.kind) == is_point_to_point(b.kind);
  return a.kind == b.kind && a.peer == b.peer;
}

void Communicator::wait_for(int64_t id) {
  const auto awaited = std::find_if(pending_.begin(), pending_.end(),
                                    [id](const PendingCollective& p) { return p.id == id; });
  if (awaited == pending_.end()) return;  // a later wait has finished it
  const PendingCollective target{.id = id, .collective = {.record = awaited->collective.record}};
  for (size_t i = 0; i < pending_.size() && pending_[i].id <= id;) {
    if (must_finish_before(pending_[i], target)) {
      finish_pending(i);
    } else {
      ++i;
    }
  }
}

void Communicator::finish_pending(size_t index) {
  Collective collective = std::move(pending_[index].collective);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  const auto start = std::chrono::steady_clock::now();
  if (copies_when_alone()) {
    const int64_t bytes = is_exchange(collective.record.kind)
                              ? bytes_by_rank(collective, 0, 1).sent[0]
                              : payload_bytes(collective.record);
    if (collective.in != collective.out && bytes > 0)
      std::memmove(collective.out, collective.in, static_cast<size_t>(bytes));
  } else {
    const bool shows = board_slot_ != nullptr && !runs_on_device();
    if (shows) board_slot_->enter(collective.record);
    call_or_abort(collective.record, [&] { complete_collective(collective); });
    if (shows) board_slot_->finish();
  }
  if (!is_capturing()) record_time(collective, seconds_since(start));
}

void Communicator::record_time(const Collective& collective, double seconds) {
  const CollectiveRecord& record = collective.record;
  CommStats::KindStats& entry = stats_.by_kind[static_cast<size_t>(record.kind)];
  entry.calls += 1;
  entry.seconds += seconds;
  const CallBytes bytes = bytes_of_call(collective, rank(), size());
  entry.bytes_sent += bytes.sent;
  entry.bytes_received += bytes.received;
}

/// Calls a backend and aborts the group if the backend throws: this rank does not take part in
/// the collective, and the other ranks must not wait for it.
template <typename Calls>
void Communicator::call_or_abort(const CollectiveRecord& record, Calls calls) {
  try {
    calls();
  } catch (const CollectiveFailure& failure) {
    const Error error = abort_with_error(record, failure);
    failure_reason_ = error.message();
    throw error;
  } catch (const std::exception& exception) {
    failure_reason_ = as_error(exception).message();
    show_aborted(record);
    abort(failure_reason_);
    throw;
  }
}

/// Shows on the board that the group has been aborted; the device may be in another collective.
void Communicator::show_aborted(const CollectiveRecord& record) {
  if (board_slot_ == nullptr) return;
  if (!runs_on_device()) board_slot_->enter(record);
  board_slot_->set_state(CollectiveState::kAborted);
}

CollectiveRecord Communicator::enter_connecting_state(std::string_view how) {
  CollectiveRecord record{.kind = CollectiveKind::kBarrier};
  how.copy(record.site, sizeof record.site - 1);
  if (board_slot_ != nullptr) board_slot_->enter(record);
  return record;
}

Error Communicator::abort_with_error(const CollectiveRecord& record,
                                     const CollectiveFailure& failure) {
  std::optional<Error> before_abort;
  if (failure.timed_out) before_abort = failure_error(record, failure);
  show_aborted(record);
  abort(failure.what);
  return before_abort ? *before_abort : failure_error(record, failure);
}

Error Communicator::failure_error(const CollectiveRecord& record,
                                  const CollectiveFailure& failure) {
  const std::vector<PeerView> views = view_peers();
  if (const auto calls = differing_calls(views, record, rank())) return mismatch_error(*calls);
  std::vector<PeerView> others;
  // Each round views the ranks for which the ranks of the previous round wait.
  for (int round = 0; round < kMaxRounds && setup_.view_ranks; ++round) {
    const std::vector<int> unknown = ranks_without_views(views, record, rank(), others);
    if (unknown.empty()) break;
    std::ranges::move(setup_.view_ranks(unknown), std::back_inserter(others));
  }
  const WaitExplanation why = explain_peers(views, record, rank(), others);
  if (setup_.board != nullptr && why.culprit >= 0) setup_.board->blame(why.culprit);
  std::string text = cat("rank ", members()[static_cast<size_t>(rank())], " ", failure.what, " ",
                         describe(record), " of group ", name(), ": ", why.text);
  if (!failure.detail.empty()) text += cat(" [", failure.detail, "]");
  const bool ended = std::any_of(views.begin(), views.end(), [](const PeerView& peer) {
    return peer.process == ProcessState::kGone;
  });
  return Error(ExitCode::kPeerLost, text,
               ended ? "read the named ranks' own logs, which say why they ended"
                     : "look at the named ranks' own logs first; if they were only slow, raise "
                       "comm.timeout");
}

Error Communicator::mismatch_error(const std::vector<CollectiveRecord>& by_rank) const {
  // A rank is named as the cause if its collective differs from that of at least half of the ranks.
  const auto is_majority = [&](size_t i) {
    return 2 * std::ranges::count_if(by_rank,
                                     [&](const CollectiveRecord& other) {
                                       return same_collective(other, by_rank[i]);
                                     }) >
           static_cast<std::ptrdiff_t>(by_rank.size());
  };
  std::vector<std::string> parts, deviating;
  for (size_t i = 0; i < by_rank.size(); ++i) {
    parts.push_back(cat("rank ", members()[i], " is in ", describe(by_rank[i])));
    if (!is_majority(i)) deviating.push_back(std::to_string(members()[i]));
  }
  std::string text = cat("the ranks of group ", name(), " disagree: ", join(parts, ", "));
  if (deviating.size() < by_rank.size()) {
    text += cat("; ", rank_list(deviating),
                deviating.size() == 1 ? " is in another collective than the majority"
                                      : " are in other collectives than the majority");
    if (setup_.board != nullptr && deviating.size() == 1)
      setup_.board->blame(std::stoi(deviating.front()));
  }
  return Error(ExitCode::kBug, text,
               "give all ranks the same program and config; if they have them, please report this");
}

void Communicator::check_received_count(const Collective& collective, int from,
                                        int64_t sent_count) const {
  const int64_t expected_count = collective.receives[static_cast<size_t>(from)];
  if (sent_count == expected_count) return;
  const auto global = [this](int index) { return members()[static_cast<size_t>(index)]; };
  throw Error(ExitCode::kBug,
              cat("rank ", global(from), " sends ", sent_count, " elements to rank ",
                  global(rank()), " in ", describe(collective.record), ", but rank ",
                  global(rank()), " expects ", expected_count),
              "give all ranks the same program and config; if they have them, please report this");
}

void Communicator::check_message_matches(const CollectiveRecord& sent,
                                         const CollectiveRecord& expected) const {
  if (sent.count == expected.count && sent.dtype == expected.dtype &&
      sent.sequence == expected.sequence)
    return;
  const auto global = [this](int32_t index) { return members()[static_cast<size_t>(index)]; };
  throw Error(ExitCode::kBug,
              cat("rank ", global(expected.peer), " does ", describe(sent), " but rank ",
                  global(rank()), " does ", describe(expected)),
              "give all ranks the same program and config; if they have them, please report this");
}

}  // namespace ftrun
