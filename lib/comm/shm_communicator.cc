#include "comm/shm_communicator.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/round_up.h"
#include "base/shm_sizes.h"
#include "base/text.h"
#include "comm/copy_bytes.h"
#include "comm/reduce.h"
#include "comm/shm_group.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kPushBytes = 16 << 10;  // reduced and passed on while it is in the cache
constexpr int64_t kAlignElements = 64;    // slices begin on cache lines
// A copy of a sent buffer has at least kMinCopyBytes; one of at most kMaxSpareBytes is kept for the
// next send.
constexpr int64_t kMinCopyBytes = 256 << 10, kMaxSpareBytes = 64 << 20;

/// Returns the bytes from an address in a peer's memory to the beginning of the next window, in
/// whole elements of any type.
int64_t bytes_to_next_window(const std::byte* address) {
  constexpr int64_t kWidest = 8;
  return kShmMappedBytes - static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)) %
                               kShmMappedBytes / kWidest * kWidest;
}

/// Divides bytes [begin, end) from `memory`, a peer's memory, into windows, and calls `use` with
/// the offset and the bytes of each.
template <typename Use>
void for_each_window(const std::byte* memory, int64_t begin, int64_t end, Use use) {
  for (int64_t at = begin; at < end;) {
    const int64_t bytes = std::min(bytes_to_next_window(memory + at), end - at);
    use(at, bytes);
    at += bytes;
  }
}

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(Setup setup, Rendezvous& rendezvous)
      : Communicator(std::move(setup)),
        rendezvous_(rendezvous),
        group_(rendezvous, name(), members(), rank()),
        inputs_(static_cast<size_t>(size())),
        piece_inputs_(static_cast<size_t>(size())) {}
  ~ShmCommunicator() override { group_.leave(ShmGroup::MemberState::kLeft); }

  std::string_view backend() const override { return "shm"; }
  /// Counts the memory that small collectives touch in the staging areas; each rank's area has two
  /// halves.
  int64_t working_bytes() const override { return 2 * kShmStagedBytes * size(); }
  std::optional<int64_t> transported_bytes() const override { return transported_; }
  void shutdown() override { barrier({"shutdown"}); }
  void abort(const std::string&) noexcept override {
    group_.leave(ShmGroup::MemberState::kAborted);
  }

 protected:
  void begin_collective(Collective& collective) override {
    if (collective.record.kind == CollectiveKind::kSend) start_send(collective);
  }

  void complete_collective(Collective& collective) override {
    switch (collective.record.kind) {
      case CollectiveKind::kAllReduce:
        return all_reduce_now(collective);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter_now(collective);
      case CollectiveKind::kAllGather:
        return all_gather_now(collective);
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kCountedAllToAll:
      case CollectiveKind::kShift:
        return move_blocks_now(collective);
      case CollectiveKind::kBroadcast:
        return broadcast_now(collective);
      case CollectiveKind::kBarrier:
        return announce(collective, {});
      case CollectiveKind::kSend:
        return finish_send(collective);
      case CollectiveKind::kReceive:
        return receive_now(collective);
    }
  }

  std::vector<PeerView> view_peers() override {
    return rendezvous_.view_members(members(), name());
  }
  CommBuffer allocate_memory(int64_t bytes) override { return allocate_shared(bytes); }

 private:
  /// PeerSends holds the state of the sends to one peer: how many were published, and copies of the
  /// buffers that the peer cannot read.
  struct PeerSends {
    int64_t published = 0;
    std::vector<Collective> deferred;                    // until the mailbox has room
    std::vector<std::pair<int64_t, CommBuffer>> copies;  // by sequence
  };

  void arrive_and_wait();
  void await(ShmSignal& signal, uint32_t target, int peer);
  [[noreturn]] void throw_wait_failure(ShmGroup::WaitResult result, Clock::time_point start) const;
  void announce(const Collective& collective, const SharedLocation& in);
  SharedLocation prepare_shared_location(const void* data, int64_t bytes) const;
  bool all_inputs_are_shared(const CollectiveRecord& record);
  void collect_inputs(const Collective& collective);
  template <typename Use>
  void for_each_common_window(int64_t begin, int64_t end, Use use);
  void copy_between(int peer, void* to, const void* from, int64_t bytes);
  void copy_from(int peer, const SharedLocation& location, void* to, int64_t bytes);
  void reduce_pieces(const CollectiveRecord& record, void* out, int64_t count);

  template <typename Fill, typename Use>
  void run_in_pieces(const Collective& collective, bool announced, int64_t total, int64_t step,
                     Fill fill, Use use);

  void all_reduce_now(const Collective& collective);
  void all_reduce_small(const Collective& collective);
  void all_reduce_in_place(const Collective& collective);
  void all_reduce_staged(const Collective& collective);
  void reduce_slice(const CollectiveRecord& record, uint32_t barrier_number, std::byte* slice,
                    int64_t slot_offset, int64_t count);
  void reduce_in_place(const CollectiveRecord& record, int64_t begin, int64_t end);
  void reduce_scatter_now(const Collective& collective);
  void reduce_scatter_staged(const Collective& collective, bool announced);
  void all_gather_now(const Collective& collective);
  void copy_gathered_blocks(const Collective& collective, int64_t at, int64_t bytes);
  void all_gather_staged(const Collective& collective, bool announced);
  /// SentBytes holds the bytes that each rank sends each rank, by sender and receiver.
  using SentBytes = std::vector<std::vector<int64_t>>;
  void move_blocks_now(const Collective& collective);
  SentBytes exchange_counts(const Collective& collective, const SharedLocation& in);
  void move_blocks_in_place(const Collective& collective, const SentBytes& sent);
  void move_blocks_staged(const Collective& collective, const SentBytes& sent, bool announced);
  void broadcast_now(const Collective& collective);

  void start_send(Collective& collective);
  void publish_deferred();
  bool has_room(const CollectiveRecord& record);
  void publish(const Collective& collective);
  CommBuffer acquire_buffer(int64_t bytes);
  void release_copies(PeerSends& outgoing, int64_t sequence);
  void finish_send(const Collective& collective);
  void receive_now(const Collective& collective);

  Rendezvous& rendezvous_;
  ShmGroup group_;
  std::vector<std::byte*> inputs_;         // each rank's input, as mapped in this process
  std::vector<const void*> piece_inputs_;  // the same, advanced to a piece
  std::vector<PeerSends> outgoing_ = std::vector<PeerSends>(static_cast<size_t>(size()));
  CommBuffer spare_;  // the largest copy that peers no longer read
  int64_t transported_ = 0;
};

void ShmCommunicator::throw_wait_failure(ShmGroup::WaitResult result,
                                         Clock::time_point start) const {
  const double waited = seconds_since(start);
  if (result == ShmGroup::WaitResult::kTimeout)
    throw CollectiveFailure{
        .what = cat("waited ", human_seconds(waited), " in"), .detail = "", .timed_out = true};
  throw CollectiveFailure{"lost a peer in", ""};
}

void ShmCommunicator::arrive_and_wait() {
  const auto start = Clock::now();
  const ShmGroup::WaitResult result = group_.arrive_and_wait(setup().timeout);
  if (result != ShmGroup::WaitResult::kReached) throw_wait_failure(result, start);
}

void ShmCommunicator::await(ShmSignal& signal, uint32_t target, int peer) {
  const auto start = Clock::now();
  const ShmGroup::WaitResult result =
      group_.wait_for(signal, target, peer, setup().timeout, [this] { publish_deferred(); });
  if (result != ShmGroup::WaitResult::kReached) throw_wait_failure(result, start);
}

/// Announces the collective, waits for all members, and throws if their announcements differ.
void ShmCommunicator::announce(const Collective& collective, const SharedLocation& in) {
  const int64_t sequence = collective.record.sequence;
  group_.announcement(rank(), sequence) = {collective.record, in};
  arrive_and_wait();
  for (int peer = 0; peer < size(); ++peer) {
    if (same_collective(group_.announcement(peer, sequence).record, collective.record)) continue;
    std::vector<CollectiveRecord> all;
    for (int other = 0; other < size(); ++other)
      all.push_back(group_.announcement(other, sequence).record);
    throw mismatch_error(all);
  }
}

/// Returns the location of this rank's memory, for the others to read.
SharedLocation ShmCommunicator::prepare_shared_location(const void* data, int64_t bytes) const {
  collapse_into_huge_pages(data, bytes);
  return shared_location_of(data, bytes);
}

bool ShmCommunicator::all_inputs_are_shared(const CollectiveRecord& record) {
  for (int peer = 0; peer < size(); ++peer) {
    if (!group_.announcement(peer, record.sequence).in.is_shared()) return false;
  }
  return true;
}

void ShmCommunicator::collect_inputs(const Collective& collective) {
  for (int peer = 0; peer < size(); ++peer) {
    // This rank's own memory is not mapped a second time.
    inputs_[static_cast<size_t>(peer)] =
        peer == rank()
            ? static_cast<std::byte*>(const_cast<void*>(collective.in))
            : group_.map_memory(peer, group_.announcement(peer, collective.record.sequence).in);
  }
}

/// Copies from or to the memory of `peer`, and counts the bytes as transported.
void ShmCommunicator::copy_between(int peer, void* to, const void* from, int64_t bytes) {
  copy_bytes(to, from, bytes);
  if (peer != rank()) transported_ += bytes;
}

/// Reduces the arrays to which piece_inputs_ points, one in every rank's memory, into `out`.
void ShmCommunicator::reduce_pieces(const CollectiveRecord& record, void* out, int64_t count) {
  reduce_in_order(record.dtype, record.op, piece_inputs_.data(), size(), out, count);
  transported_ += (size() - 1) * count * dtype_bytes(record.dtype);
}

/// Lets `use` read bytes [begin, end) of the peers' inputs, one window at a time. A window is
/// unmapped after it, because it is not needed again until the next collective on this memory. The
/// windows are those of the next rank's input. The other inputs mostly begin at the same offset of
/// their memory, so that the windows are theirs too.
template <typename Use>
void ShmCommunicator::for_each_common_window(int64_t begin, int64_t end, Use use) {
  for_each_window(inputs_[static_cast<size_t>((rank() + 1) % size())], begin, end,
                  [&](int64_t at, int64_t bytes) {
                    use(at, bytes);
                    for (int peer = 0; peer < size(); ++peer)
                      if (peer != rank())
                        group_.unmap_pages(peer, inputs_[static_cast<size_t>(peer)] + at, bytes);
                  });
}

/// Copies the bytes at `location` of `peer`, one window at a time.
void ShmCommunicator::copy_from(int peer, const SharedLocation& location, void* to, int64_t bytes) {
  std::byte* from = group_.map_memory(peer, location);
  for_each_window(from, 0, bytes, [&](int64_t at, int64_t window_bytes) {
    copy_between(peer, static_cast<std::byte*>(to) + at, from + at, window_bytes);
    group_.unmap_pages(peer, from + at, window_bytes);
  });
}

/// Moves `total` elements through the staging areas in pieces: `fill` writes this rank's data of a
/// piece, `use` reads the data of all ranks. The first barrier is also the announcement, unless the
/// collective has been announced.
template <typename Fill, typename Use>
void ShmCommunicator::run_in_pieces(const Collective& collective, bool announced, int64_t total,
                                    int64_t step, Fill fill, Use use) {
  int64_t at = 0;
  do {
    const int64_t count = std::min(step, total - at);
    const uint32_t barrier_number = group_.next_barrier();
    fill(group_.staging(rank(), barrier_number), at, count);
    if (std::exchange(announced, true)) {
      arrive_and_wait();
    } else {
      announce(collective, {});
    }
    use(barrier_number, at, count);
    at += count;
  } while (at < total);
}

void ShmCommunicator::all_reduce_now(const Collective& collective) {
  const int64_t bytes = payload_bytes(collective.record);
  if (bytes <= kShmStagedBytes) return all_reduce_small(collective);
  announce(collective, prepare_shared_location(collective.in, bytes));
  if (all_inputs_are_shared(collective.record)) return all_reduce_in_place(collective);
  all_reduce_staged(collective);
}

/// Reduces with one barrier: every rank adds up the data of all ranks.
void ShmCommunicator::all_reduce_small(const Collective& collective) {
  const int64_t bytes = payload_bytes(collective.record);
  const uint32_t barrier_number = group_.next_barrier();
  copy_bytes(group_.staging(rank(), barrier_number), collective.in, bytes);
  announce(collective, {});
  for (int peer = 0; peer < size(); ++peer)
    piece_inputs_[static_cast<size_t>(peer)] = group_.staging(peer, barrier_number);
  reduce_pieces(collective.record, collective.out, collective.record.count);
}

/// Reduces in place: reads this rank's slice of every rank's buffer and writes the result to all of
/// them. No other rank touches this slice.
void ShmCommunicator::all_reduce_in_place(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  collect_inputs(collective);
  const int64_t element_bytes = dtype_bytes(record.dtype);
  const int64_t part = round_up(divide_up(record.count, size()), kAlignElements);
  for_each_common_window(
      std::min(record.count, part * rank()) * element_bytes,
      std::min(record.count, part * (rank() + 1)) * element_bytes,
      [&](int64_t at, int64_t bytes) { reduce_in_place(record, at, at + bytes); });
  arrive_and_wait();
}

void ShmCommunicator::reduce_in_place(const CollectiveRecord& record, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; at += kPushBytes) {
    const int64_t bytes = std::min(kPushBytes, end - at);
    for (size_t peer = 0; peer < inputs_.size(); ++peer) piece_inputs_[peer] = inputs_[peer] + at;
    std::byte* own = inputs_[static_cast<size_t>(rank())] + at;
    reduce_pieces(record, own, bytes / dtype_bytes(record.dtype));
    for (int peer = 0; peer < size(); ++peer)
      copy_between(peer, inputs_[static_cast<size_t>(peer)] + at, own, bytes);
  }
}

/// Sums in pieces; each rank adds up one slice of a piece. A staging area has a slot for every
/// rank's slice. In the area of rank r, slot i != r holds rank r's input to slice i of this piece,
/// and slot r holds the finished slice r of the previous piece.
void ShmCommunicator::all_reduce_staged(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  const int64_t element_bytes = dtype_bytes(record.dtype),
                slot = ShmGroup::kHalfBytes / element_bytes / size();
  auto* data = static_cast<std::byte*>(collective.out);
  // Calls f(rank, its slice, the offset of its slot, bytes) for every other rank, in the piece that
  // begins at element `at`.
  const auto for_peers = [&](int64_t at, auto f) {
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      const int64_t begin = at + peer * slot, count = std::min(slot, record.count - begin);
      if (count > 0)
        f(peer, data + begin * element_bytes, peer * slot * element_bytes, count * element_bytes);
    }
  };
  const int64_t piece = slot * size();
  for (int64_t at = 0; at < record.count + piece; at += piece) {
    const uint32_t barrier_number = group_.next_barrier();
    std::byte* own = group_.staging(rank(), barrier_number);
    for_peers(at, [&](int, std::byte* slice, int64_t slot_offset, int64_t bytes) {
      copy_bytes(own + slot_offset, slice, bytes);
    });
    arrive_and_wait();
    const int64_t own_slice = at + rank() * slot;
    reduce_slice(record, barrier_number, data + own_slice * element_bytes,
                 rank() * slot * element_bytes, std::min(slot, record.count - own_slice));
    if (at == 0) continue;
    for_peers(at - piece, [&](int peer, std::byte* slice, int64_t slot_offset, int64_t bytes) {
      copy_between(peer, slice, group_.staging(peer, barrier_number) + slot_offset, bytes);
    });
  }
}

/// Adds up what all ranks have staged for a barrier at byte `slot_offset`. The sum is written into
/// this rank's slice, and into its staging area for the next barrier.
void ShmCommunicator::reduce_slice(const CollectiveRecord& record, uint32_t barrier_number,
                                   std::byte* slice, int64_t slot_offset, int64_t count) {
  const int64_t element_bytes = dtype_bytes(record.dtype), step = kPushBytes / element_bytes;
  std::byte* next = group_.staging(rank(), barrier_number + 1) + slot_offset;
  for (int64_t at = 0; at < count; at += step) {
    const int64_t count_now = std::min(step, count - at);
    for (int peer = 0; peer < size(); ++peer)
      piece_inputs_[static_cast<size_t>(peer)] =
          (peer == rank() ? slice : group_.staging(peer, barrier_number) + slot_offset) +
          at * element_bytes;
    reduce_pieces(record, slice + at * element_bytes, count_now);
    copy_bytes(next + at * element_bytes, slice + at * element_bytes, count_now * element_bytes);
  }
}

void ShmCommunicator::reduce_scatter_now(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  const int64_t bytes = payload_bytes(record) * size();
  if (bytes <= kShmStagedBytes) return reduce_scatter_staged(collective, false);
  announce(collective, prepare_shared_location(collective.in, bytes));
  if (!all_inputs_are_shared(record)) return reduce_scatter_staged(collective, true);
  collect_inputs(collective);
  const int64_t begin = rank() * payload_bytes(record);
  for_each_common_window(
      begin, begin + payload_bytes(record), [&](int64_t at, int64_t window_bytes) {
        for (size_t peer = 0; peer < inputs_.size(); ++peer)
          piece_inputs_[peer] = inputs_[peer] + at;
        reduce_pieces(record, static_cast<std::byte*>(collective.out) + (at - begin),
                      window_bytes / dtype_bytes(record.dtype));
      });
  arrive_and_wait();  // the others have read this rank's input
}

void ShmCommunicator::reduce_scatter_staged(const Collective& collective, bool announced) {
  const CollectiveRecord& record = collective.record;
  const int64_t element_bytes = dtype_bytes(record.dtype);
  const auto* in = static_cast<const std::byte*>(collective.in);
  run_in_pieces(
      collective, announced, record.count,
      std::max<int64_t>(ShmGroup::kHalfBytes / element_bytes / size(), 1),
      [&](std::byte* staging, int64_t at, int64_t count) {
        for (int block = 0; block < size(); ++block)
          if (block != rank())
            copy_bytes(staging + block * count * element_bytes,
                       in + (block * record.count + at) * element_bytes, count * element_bytes);
      },
      [&](uint32_t barrier_number, int64_t at, int64_t count) {
        for (int peer = 0; peer < size(); ++peer)
          piece_inputs_[static_cast<size_t>(peer)] =
              peer == rank()
                  ? in + (rank() * record.count + at) * element_bytes
                  : group_.staging(peer, barrier_number) + rank() * count * element_bytes;
        reduce_pieces(record, static_cast<std::byte*>(collective.out) + at * element_bytes, count);
      });
}

void ShmCommunicator::all_gather_now(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  const int64_t bytes = payload_bytes(record);
  if (bytes * size() <= kShmStagedBytes) return all_gather_staged(collective, false);
  announce(collective, prepare_shared_location(collective.in, bytes));
  if (!all_inputs_are_shared(record)) return all_gather_staged(collective, true);
  collect_inputs(collective);
  // Each peer's input has its own windows, because inputs may begin at different offsets within a
  // huge page. Each rank begins with the block of the rank after it, so that not all ranks read the
  // same memory at the same time.
  auto* out = static_cast<std::byte*>(collective.out);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    std::byte* const from = inputs_[static_cast<size_t>(peer)];
    for_each_window(from, 0, bytes, [&](int64_t at, int64_t window_bytes) {
      copy_between(peer, out + peer * bytes + at, from + at, window_bytes);
      if (peer != rank()) group_.unmap_pages(peer, from + at, window_bytes);
    });
  }
  arrive_and_wait();  // the others have read this rank's input
}

/// Copies the data to which piece_inputs_ points into bytes [at, at + bytes) of every block of an
/// all-gather's result. Each rank begins with a different block, so that not all ranks read the
/// same memory at the same time.
void ShmCommunicator::copy_gathered_blocks(const Collective& collective, int64_t at,
                                           int64_t bytes) {
  const int64_t block = payload_bytes(collective.record);
  auto* out = static_cast<std::byte*>(collective.out);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    copy_between(peer, out + peer * block + at, piece_inputs_[static_cast<size_t>(peer)], bytes);
  }
}

void ShmCommunicator::all_gather_staged(const Collective& collective, bool announced) {
  const int64_t bytes = payload_bytes(collective.record);
  const auto* in = static_cast<const std::byte*>(collective.in);
  run_in_pieces(
      collective, announced, bytes, ShmGroup::kHalfBytes,
      [&](std::byte* staging, int64_t at, int64_t count) { copy_bytes(staging, in + at, count); },
      [&](uint32_t barrier_number, int64_t at, int64_t count) {
        for (int peer = 0; peer < size(); ++peer)
          piece_inputs_[static_cast<size_t>(peer)] =
              peer == rank() ? in + at : group_.staging(peer, barrier_number);
        copy_gathered_blocks(collective, at, count);
      });
}

/// Announces a counted all-to-all together with the counts that this rank sends; returns the bytes
/// that each rank sends to each rank.
ShmCommunicator::SentBytes ShmCommunicator::exchange_counts(const Collective& collective,
                                                            const SharedLocation& in) {
  const int64_t bytes = size() * static_cast<int64_t>(sizeof(int64_t));
  require(bytes <= ShmGroup::kHalfBytes, "the counts of a group fit its staging memory");
  const uint32_t barrier_number = group_.next_barrier();
  copy_bytes(group_.staging(rank(), barrier_number), collective.sends.data(), bytes);
  announce(collective, in);
  SentBytes sent;
  for (int peer = 0; peer < size(); ++peer) {
    std::vector<int64_t>& row = sent.emplace_back(static_cast<size_t>(size()));
    copy_bytes(row.data(), group_.staging(peer, barrier_number), bytes);
    check_received_count(collective, peer, row[static_cast<size_t>(rank())]);
    for (int64_t& count : row) count *= dtype_bytes(collective.record.dtype);
  }
  return sent;
}

/// Moves blocks. If every input is shared memory, which all ranks see in the announcements, peers
/// read each other's inputs in place; else the blocks go through the staging areas.
void ShmCommunicator::move_blocks_now(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  const bool is_counted = record.kind == CollectiveKind::kCountedAllToAll;
  const int64_t bytes =
      payload_bytes(record) * (record.kind == CollectiveKind::kAllToAll ? size() : 1);
  const bool large = bytes > kShmStagedBytes;
  const SharedLocation in =
      large ? prepare_shared_location(collective.in, bytes) : SharedLocation{};
  SentBytes sent;
  if (is_counted)
    sent = exchange_counts(collective, in);
  else
    for (int peer = 0; peer < size(); ++peer)
      sent.push_back(bytes_by_rank(collective, peer, size()).sent);
  if (large && !is_counted) announce(collective, in);
  if (large && all_inputs_are_shared(record)) return move_blocks_in_place(collective, sent);
  move_blocks_staged(collective, sent, large || is_counted);
}

void ShmCommunicator::move_blocks_in_place(const Collective& collective, const SentBytes& sent) {
  const auto own = static_cast<size_t>(rank());
  collect_inputs(collective);
  std::vector<std::byte*> outputs;
  auto* out = static_cast<std::byte*>(collective.out);
  for (const std::vector<int64_t>& row : sent) {
    outputs.push_back(out);
    out += row[own];
  }
  // Each rank begins with a different block, so that not all ranks read the same memory at the same
  // time.
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const std::vector<int64_t>& row = sent[static_cast<size_t>(peer)];
    std::byte* from =
        inputs_[static_cast<size_t>(peer)] + std::reduce(row.begin(), row.begin() + rank());
    for_each_window(from, 0, row[own], [&](int64_t at, int64_t bytes) {
      copy_between(peer, outputs[static_cast<size_t>(peer)] + at, from + at, bytes);
      if (peer != rank()) group_.unmap_pages(peer, from + at, bytes);
    });
  }
  arrive_and_wait();  // the others have read this rank's input
}

/// Moves blocks through the staging areas in rounds. A round carries as many bytes of every block
/// as fit its slot.
void ShmCommunicator::move_blocks_staged(const Collective& collective, const SentBytes& sent,
                                         bool announced) {
  const auto own = static_cast<size_t>(rank());
  const bool is_shift = collective.record.kind == CollectiveKind::kShift;
  const int64_t slot_bytes = std::max<int64_t>(
      ShmGroup::kHalfBytes / (is_shift ? 1 : size()) / kAlignElements * kAlignElements, 1);
  int64_t longest = 0;
  for (const std::vector<int64_t>& row : sent)
    longest = std::max(longest, *std::ranges::max_element(row));
  const auto* in = static_cast<const std::byte*>(collective.in);
  auto* out = static_cast<std::byte*>(collective.out);
  // Returns how many of the bytes [at, at + slot_bytes) the block from one rank to another has.
  const auto block_bytes = [&](size_t from, size_t to, int64_t at) {
    return std::clamp<int64_t>(sent[from][to] - at, 0, slot_bytes);
  };
  run_in_pieces(
      collective, announced, longest, slot_bytes,
      [&](std::byte* staging, int64_t at, int64_t) {
        const std::byte* block = in;
        for (size_t to = 0; to < sent.size(); ++to) {
          if (to != own)
            copy_bytes(staging + (is_shift ? 0 : static_cast<int64_t>(to) * slot_bytes), block + at,
                       block_bytes(own, to, at));
          block += sent[own][to];
        }
      },
      [&](uint32_t barrier_number, int64_t at, int64_t) {
        std::byte* block = out;
        for (size_t from = 0; from < sent.size(); ++from) {
          const std::byte* staged =
              from == own ? in + std::reduce(sent[own].begin(), sent[own].begin() + rank()) + at
                          : group_.staging(static_cast<int>(from), barrier_number) +
                                (is_shift ? 0 : rank() * slot_bytes);
          copy_between(static_cast<int>(from), block + at, staged, block_bytes(from, own, at));
          block += sent[from][own];
        }
      });
}

void ShmCommunicator::broadcast_now(const Collective& collective) {
  const int64_t bytes = payload_bytes(collective.record);
  const int root = collective.record.peer;
  auto* data = static_cast<std::byte*>(collective.out);
  if (bytes > kShmStagedBytes) {
    announce(collective, rank() == root ? shared_location_of(data, bytes) : SharedLocation{});
    const SharedLocation location = group_.announcement(root, collective.record.sequence).in;
    if (location.is_shared()) {
      if (rank() != root) copy_from(root, location, data, bytes);
      return arrive_and_wait();
    }
  }
  run_in_pieces(
      collective, bytes > kShmStagedBytes, bytes, ShmGroup::kHalfBytes,
      [&](std::byte* staging, int64_t at, int64_t count) {
        if (rank() == root) copy_bytes(staging, data + at, count);
      },
      [&](uint32_t barrier_number, int64_t at, int64_t count) {
        if (rank() != root)
          copy_between(root, data + at, group_.staging(root, barrier_number), count);
      });
}

/// Publishes the message at once if the mailbox has room, so that two ranks may send to each other
/// first and receive afterwards; else later, when this rank waits for something.
void ShmCommunicator::start_send(Collective& collective) {
  outgoing_[static_cast<size_t>(collective.record.peer)].deferred.push_back(collective);
  publish_deferred();
}

void ShmCommunicator::publish_deferred() {
  for (int peer = 0; peer < size(); ++peer) {
    std::vector<Collective>& deferred = outgoing_[static_cast<size_t>(peer)].deferred;
    size_t published = 0;
    while (published < deferred.size() && has_room(deferred[published].record))
      publish(deferred[published++]);
    deferred.erase(deferred.begin(), deferred.begin() + static_cast<std::ptrdiff_t>(published));
  }
}

bool ShmCommunicator::has_room(const CollectiveRecord& record) {
  const ShmMailbox& mailbox = group_.mailbox(rank(), record.peer);
  return static_cast<uint32_t>(record.sequence) - mailbox.received.value() <= ShmMailbox::kDepth;
}

/// Returns the spare buffer if it is large enough, else a new one: new memory for every send would
/// have to be allocated and mapped here, and mapped by the receiver.
CommBuffer ShmCommunicator::acquire_buffer(int64_t bytes) {
  if (spare_.bytes() >= bytes) return std::exchange(spare_, {});
  spare_ = {};
  // Sizes are rounded up to powers of two, so that sends whose size grows slowly reuse the buffer.
  const auto size = static_cast<uint64_t>(std::max(bytes, kMinCopyBytes));
  return allocate_shared(static_cast<int64_t>(std::bit_ceil(size)));
}

void ShmCommunicator::release_copies(PeerSends& outgoing, int64_t sequence) {
  std::erase_if(outgoing.copies, [&](auto& sent) {
    if (sent.first != sequence) return false;
    const int64_t bytes = sent.second.bytes();
    if (bytes > spare_.bytes() && bytes <= kMaxSpareBytes) spare_ = std::move(sent.second);
    return true;
  });
}

void ShmCommunicator::publish(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  PeerSends& outgoing = outgoing_[static_cast<size_t>(record.peer)];
  ShmMailbox& mailbox = group_.mailbox(rank(), record.peer);
  SharedLocation location = shared_location_of(collective.in, payload_bytes(record));
  if (!location.is_shared() && record.count > 0) {
    CommBuffer owned = acquire_buffer(payload_bytes(record));
    copy_bytes(owned.data(), collective.in, payload_bytes(record));
    location = shared_location_of(owned.data(), payload_bytes(record));
    outgoing.copies.emplace_back(record.sequence, std::move(owned));
  }
  mailbox.slots[static_cast<size_t>(record.sequence) % ShmMailbox::kDepth] = {record, location};
  outgoing.published = record.sequence;
  mailbox.sent.raise_to(static_cast<uint32_t>(record.sequence));
}

void ShmCommunicator::finish_send(const Collective& collective) {
  const int peer = collective.record.peer;
  const int64_t sequence = collective.record.sequence;
  PeerSends& outgoing = outgoing_[static_cast<size_t>(peer)];
  ShmSignal& received = group_.mailbox(rank(), peer).received;
  if (outgoing.published < sequence) {
    await(received, static_cast<uint32_t>(sequence) - ShmMailbox::kDepth, peer);
    publish_deferred();
  }
  await(received, static_cast<uint32_t>(sequence), peer);
  release_copies(outgoing, sequence);
}

void ShmCommunicator::receive_now(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  ShmMailbox& mailbox = group_.mailbox(record.peer, rank());
  publish_deferred();
  await(mailbox.sent, static_cast<uint32_t>(record.sequence), record.peer);
  const ShmAnnouncement message =
      mailbox.slots[static_cast<size_t>(record.sequence) % ShmMailbox::kDepth];
  check_message_matches(message.record, record);
  if (record.count > 0) copy_from(record.peer, message.in, collective.out, payload_bytes(record));
  mailbox.received.raise_to(static_cast<uint32_t>(record.sequence));
}

}  // namespace

std::unique_ptr<Communicator> make_shm_communicator(Communicator::Setup setup,
                                                    Rendezvous& rendezvous) {
  return std::make_unique<ShmCommunicator>(std::move(setup), rendezvous);
}

}  // namespace ftrun
