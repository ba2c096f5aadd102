#include "comm/shm_communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "base/text.h"
#include "comm/reduce.h"
#include "comm/shm_group.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
// Up to here one meeting with a copy is cheaper than reading in place, which needs two.
constexpr int64_t kSmallBytes = 64 << 10;
constexpr int64_t kPushBytes = 16 << 10;  // reduced and passed on while it is in the cache
constexpr int64_t kCopyBytes = 128 << 10;
constexpr int64_t kAlignElements = 64;  // slices begin on cache lines
// A copy of a send has at least the first; one up to the second is kept for the next send.
constexpr int64_t kLeastCopyBytes = 256 << 10, kMostSpareBytes = 64 << 20;

/// In pieces: one large memcpy would bypass the cache, which is slower here, where a peer has just
/// written the source and someone soon reads the copy.
void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (to == from) return;
  for (int64_t at = 0; at < bytes; at += kCopyBytes)
    std::memcpy(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                static_cast<size_t>(std::min(kCopyBytes, bytes - at)));
}

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(Setup setup, Rendezvous& rendezvous)
      : Communicator(std::move(setup)),
        rendezvous_(rendezvous),
        group_(rendezvous, name(), members(), rank()),
        inputs_(static_cast<size_t>(size())),
        moved_(static_cast<size_t>(size())) {}
  ~ShmCommunicator() override { group_.leave(ShmGroup::State::kLeft); }

  std::string_view backend() const override { return "shm"; }
  std::optional<int64_t> transported_bytes() const override { return transported_; }
  void shutdown() override { barrier({"shutdown"}); }
  void abort(const std::string&) noexcept override { group_.leave(ShmGroup::State::kAborted); }

 protected:
  void begin(Collective& work) override {
    if (work.record.kind == CollectiveKind::kSend) start_send(work);
  }

  void complete(Collective& work) override {
    switch (work.record.kind) {
      case CollectiveKind::kAllReduce:
        return all_reduce_now(work);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter_now(work);
      case CollectiveKind::kAllGather:
        return all_gather_now(work);
      case CollectiveKind::kBroadcast:
        return broadcast_now(work);
      case CollectiveKind::kBarrier:
        return announce(work, {});
      case CollectiveKind::kSend:
        return finish_send(work);
      case CollectiveKind::kReceive:
        return receive_now(work);
    }
  }

  std::vector<PeerView> view_peers() override { return rendezvous_.view(members(), name()); }
  CommBuffer allocate_memory(int64_t bytes) override { return allocate_shared(bytes); }

 private:
  /// Sends to one peer: how many were published, and copies of buffers that peers cannot read.
  struct Outgoing {
    int64_t published = 0;
    std::vector<Collective> deferred;                    // the mailbox was full
    std::vector<std::pair<int64_t, CommBuffer>> copies;  // by sequence
  };

  void meet();
  void await(ShmSignal& signal, uint32_t target, int peer);
  [[noreturn]] void fail_wait(ShmGroup::Verdict verdict, Clock::time_point start) const;
  void announce(const Collective& work, const SharedPlace& in);
  bool everyone_shares(const CollectiveRecord& record);
  void collect_inputs(const Collective& work);
  void drop_inputs(int64_t offset, int64_t bytes);
  void copy_between(int peer, void* to, const void* from, int64_t bytes);
  void add_up(const CollectiveRecord& record, void* out, int64_t count);

  template <typename Fill, typename Use>
  void in_pieces(const Collective& work, bool announced, int64_t total, int64_t step, Fill fill,
                 Use use);

  void all_reduce_now(const Collective& work);
  void all_reduce_in_place(const Collective& work);
  void all_reduce_staged(const Collective& work, bool announced);
  void reduce_own_slice(const CollectiveRecord& record);
  void reduce_scatter_now(const Collective& work);
  void reduce_scatter_staged(const Collective& work, bool announced);
  void all_gather_now(const Collective& work);
  void all_gather_staged(const Collective& work, bool announced);
  void broadcast_now(const Collective& work);

  void start_send(Collective& work);
  void publish_deferred();
  bool has_room(const CollectiveRecord& record);
  void publish(const Collective& work);
  CommBuffer take_copy(int64_t bytes);
  void give_back_copies(Outgoing& outgoing, int64_t sequence);
  void finish_send(const Collective& work);
  void receive_now(const Collective& work);

  Rendezvous& rendezvous_;
  ShmGroup group_;
  std::vector<std::byte*> inputs_;  // every rank's input as mapped here
  std::vector<const void*> moved_;  // the same, moved on to a piece
  std::vector<Outgoing> outgoing_ = std::vector<Outgoing>(static_cast<size_t>(size()));
  CommBuffer spare_;  // the largest copy that nobody reads any more
  int64_t transported_ = 0;
};

void ShmCommunicator::fail_wait(ShmGroup::Verdict verdict, Clock::time_point start) const {
  const std::chrono::duration<double> waited = Clock::now() - start;
  if (verdict == ShmGroup::Verdict::kTimeout)
    throw Failure{cat("waited ", human_seconds(waited.count()), " in"), "", true};
  throw Failure{"lost a peer in", ""};
}

void ShmCommunicator::meet() {
  const auto start = Clock::now();
  const ShmGroup::Verdict verdict = group_.meet(setup().timeout);
  if (verdict != ShmGroup::Verdict::kReached) fail_wait(verdict, start);
}

void ShmCommunicator::await(ShmSignal& signal, uint32_t target, int peer) {
  const auto start = Clock::now();
  const ShmGroup::Verdict verdict =
      group_.wait_for(signal, target, peer, setup().timeout, [this] { publish_deferred(); });
  if (verdict != ShmGroup::Verdict::kReached) fail_wait(verdict, start);
}

/// Enters the collective, meets the others and compares what all mean.
void ShmCommunicator::announce(const Collective& work, const SharedPlace& in) {
  const int64_t sequence = work.record.sequence;
  group_.announcement(rank(), sequence) = {work.record, in};
  meet();
  for (int peer = 0; peer < size(); ++peer) {
    if (same_collective(group_.announcement(peer, sequence).record, work.record)) continue;
    std::vector<CollectiveRecord> all;
    for (int other = 0; other < size(); ++other)
      all.push_back(group_.announcement(other, sequence).record);
    throw disagreement(all);
  }
}

bool ShmCommunicator::everyone_shares(const CollectiveRecord& record) {
  for (int peer = 0; peer < size(); ++peer) {
    if (!group_.announcement(peer, record.sequence).in.shared()) return false;
  }
  return true;
}

void ShmCommunicator::collect_inputs(const Collective& work) {
  for (int peer = 0; peer < size(); ++peer) {
    // Our own memory is not mapped a second time.
    inputs_[static_cast<size_t>(peer)] =
        peer == rank() ? static_cast<std::byte*>(const_cast<void*>(work.in))
                       : group_.memory(peer, group_.announcement(peer, work.record.sequence).in);
  }
}

/// A copy out of or into the memory of `peer`.
void ShmCommunicator::copy_between(int peer, void* to, const void* from, int64_t bytes) {
  copy_bytes(to, from, bytes);
  if (peer != rank()) transported_ += bytes;
}

/// Adds what moved_ points to, a part of every rank's memory, into `out`.
void ShmCommunicator::add_up(const CollectiveRecord& record, void* out, int64_t count) {
  reduce_in_order(record.dtype, record.op, moved_.data(), size(), out, count);
  transported_ += (size() - 1) * count * dtype_bytes(record.dtype);
}

/// What we read of the peers' inputs is not needed again until the next collective over them.
void ShmCommunicator::drop_inputs(int64_t offset, int64_t bytes) {
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) drop_mapped_pages(inputs_[static_cast<size_t>(peer)] + offset, bytes);
}

/// Moves `total` elements through the staging areas: `fill` brings ours of a piece, `use` takes
/// everyone's. The first meeting is the announcement unless that has been made.
template <typename Fill, typename Use>
void ShmCommunicator::in_pieces(const Collective& work, bool announced, int64_t total, int64_t step,
                                Fill fill, Use use) {
  int64_t at = 0;
  do {
    const int64_t count = std::min(step, total - at);
    const uint32_t meeting = group_.next_meeting();
    fill(group_.staging(rank(), meeting), at, count);
    if (std::exchange(announced, true)) {
      meet();
    } else {
      announce(work, {});
    }
    use(meeting, at, count);
    at += count;
  } while (at < total);
}

void ShmCommunicator::all_reduce_now(const Collective& work) {
  const int64_t bytes = payload_bytes(work.record);
  if (bytes <= kSmallBytes) return all_reduce_staged(work, false);
  announce(work, find_shared(work.in, bytes));
  if (everyone_shares(work.record)) return all_reduce_in_place(work);
  all_reduce_staged(work, true);
}

void ShmCommunicator::all_reduce_in_place(const Collective& work) {
  collect_inputs(work);
  reduce_own_slice(work.record);
  meet();
}

/// Reads our slice of every rank's buffer and writes the result to all of them: only we touch it.
void ShmCommunicator::reduce_own_slice(const CollectiveRecord& record) {
  const int64_t width = dtype_bytes(record.dtype), step = kPushBytes / width;
  const int64_t part = round_up((record.count + size() - 1) / size(), kAlignElements);
  const int64_t end = std::min(record.count, part * (rank() + 1));
  for (int64_t at = part * rank(); at < end; at += step) {
    const int64_t count = std::min(step, end - at);
    for (size_t peer = 0; peer < inputs_.size(); ++peer) moved_[peer] = inputs_[peer] + at * width;
    std::byte* own = inputs_[static_cast<size_t>(rank())] + at * width;
    add_up(record, own, count);
    for (int peer = 0; peer < size(); ++peer)
      copy_between(peer, inputs_[static_cast<size_t>(peer)] + at * width, own, count * width);
  }
  drop_inputs(part * rank() * width, std::max<int64_t>(0, end - part * rank()) * width);
}

void ShmCommunicator::all_reduce_staged(const Collective& work, bool announced) {
  const CollectiveRecord& record = work.record;
  const int64_t width = dtype_bytes(record.dtype);
  auto* data = static_cast<std::byte*>(work.out);
  in_pieces(
      work, announced, record.count, ShmGroup::kHalfBytes / width,
      [&](std::byte* staging, int64_t at, int64_t count) {
        copy_bytes(staging, data + at * width, count * width);
      },
      [&](uint32_t meeting, int64_t at, int64_t count) {
        for (int peer = 0; peer < size(); ++peer)
          moved_[static_cast<size_t>(peer)] = group_.staging(peer, meeting);
        add_up(record, data + at * width, count);
      });
}

void ShmCommunicator::reduce_scatter_now(const Collective& work) {
  const CollectiveRecord& record = work.record;
  const int64_t bytes = payload_bytes(record) * size();
  if (bytes <= kSmallBytes) return reduce_scatter_staged(work, false);
  announce(work, find_shared(work.in, bytes));
  if (!everyone_shares(record)) return reduce_scatter_staged(work, true);
  collect_inputs(work);
  for (size_t peer = 0; peer < inputs_.size(); ++peer)
    moved_[peer] = inputs_[peer] + rank() * payload_bytes(record);
  add_up(record, work.out, record.count);
  drop_inputs(rank() * payload_bytes(record), payload_bytes(record));
  meet();  // the others are done with our input
}

void ShmCommunicator::reduce_scatter_staged(const Collective& work, bool announced) {
  const CollectiveRecord& record = work.record;
  const int64_t width = dtype_bytes(record.dtype);
  const auto* in = static_cast<const std::byte*>(work.in);
  auto* out = static_cast<std::byte*>(work.out);
  in_pieces(
      work, announced, record.count, std::max<int64_t>(ShmGroup::kHalfBytes / width / size(), 1),
      [&](std::byte* staging, int64_t at, int64_t count) {
        for (int block = 0; block < size(); ++block)
          copy_bytes(staging + block * count * width, in + (block * record.count + at) * width,
                     count * width);
      },
      [&](uint32_t meeting, int64_t at, int64_t count) {
        for (int peer = 0; peer < size(); ++peer)
          moved_[static_cast<size_t>(peer)] =
              group_.staging(peer, meeting) + rank() * count * width;
        add_up(record, out + at * width, count);
      });
}

void ShmCommunicator::all_gather_now(const Collective& work) {
  const CollectiveRecord& record = work.record;
  const int64_t bytes = payload_bytes(record);
  if (bytes * size() <= kSmallBytes) return all_gather_staged(work, false);
  announce(work, find_shared(work.in, bytes));
  if (!everyone_shares(record)) return all_gather_staged(work, true);
  collect_inputs(work);
  auto* out = static_cast<std::byte*>(work.out);
  for (int peer = 0; peer < size(); ++peer)
    copy_between(peer, out + peer * bytes, inputs_[static_cast<size_t>(peer)], bytes);
  drop_inputs(0, bytes);
  meet();  // the others are done with our input
}

void ShmCommunicator::all_gather_staged(const Collective& work, bool announced) {
  const int64_t bytes = payload_bytes(work.record);
  const auto* in = static_cast<const std::byte*>(work.in);
  auto* out = static_cast<std::byte*>(work.out);
  in_pieces(
      work, announced, bytes, ShmGroup::kHalfBytes,
      [&](std::byte* staging, int64_t at, int64_t count) { copy_bytes(staging, in + at, count); },
      [&](uint32_t meeting, int64_t at, int64_t count) {
        for (int peer = 0; peer < size(); ++peer)
          copy_between(peer, out + peer * bytes + at, group_.staging(peer, meeting), count);
      });
}

void ShmCommunicator::broadcast_now(const Collective& work) {
  const int64_t bytes = payload_bytes(work.record);
  const int root = work.record.peer;
  auto* data = static_cast<std::byte*>(work.out);
  if (bytes > kSmallBytes) {
    announce(work, rank() == root ? find_shared(data, bytes) : SharedPlace{});
    const SharedPlace place = group_.announcement(root, work.record.sequence).in;
    if (place.shared()) {
      if (rank() != root) copy_between(root, data, group_.memory(root, place), bytes);
      return meet();
    }
  }
  in_pieces(
      work, bytes > kSmallBytes, bytes, ShmGroup::kHalfBytes,
      [&](std::byte* staging, int64_t at, int64_t count) {
        if (rank() == root) copy_bytes(staging, data + at, count);
      },
      [&](uint32_t meeting, int64_t at, int64_t count) {
        if (rank() != root) copy_between(root, data + at, group_.staging(root, meeting), count);
      });
}

/// Publishes at once when the mailbox has room, so that two ranks may send to each other first and
/// receive afterwards; else while we wait for something.
void ShmCommunicator::start_send(Collective& work) {
  outgoing_[static_cast<size_t>(work.record.peer)].deferred.push_back(work);
  publish_deferred();
}

void ShmCommunicator::publish_deferred() {
  for (int peer = 0; peer < size(); ++peer) {
    std::vector<Collective>& deferred = outgoing_[static_cast<size_t>(peer)].deferred;
    size_t done = 0;
    while (done < deferred.size() && has_room(deferred[done].record)) publish(deferred[done++]);
    deferred.erase(deferred.begin(), deferred.begin() + static_cast<std::ptrdiff_t>(done));
  }
}

bool ShmCommunicator::has_room(const CollectiveRecord& record) {
  const ShmMailbox& box = group_.mailbox(rank(), record.peer);
  return static_cast<uint32_t>(record.sequence) - box.taken.value() <= ShmMailbox::kDepth;
}

/// New memory for every send would have to be made and mapped here, and mapped by the receiver.
CommBuffer ShmCommunicator::take_copy(int64_t bytes) {
  if (spare_.bytes() >= bytes) return std::exchange(spare_, {});
  spare_ = {};
  // Sizes that grow a little from send to send come to few buffers.
  const auto size = static_cast<uint64_t>(std::max(bytes, kLeastCopyBytes));
  return allocate_shared(static_cast<int64_t>(std::bit_ceil(size)));
}

void ShmCommunicator::give_back_copies(Outgoing& outgoing, int64_t sequence) {
  std::erase_if(outgoing.copies, [&](auto& sent) {
    if (sent.first != sequence) return false;
    const int64_t bytes = sent.second.bytes();
    if (bytes > spare_.bytes() && bytes <= kMostSpareBytes) spare_ = std::move(sent.second);
    return true;
  });
}

void ShmCommunicator::publish(const Collective& work) {
  const CollectiveRecord& record = work.record;
  Outgoing& outgoing = outgoing_[static_cast<size_t>(record.peer)];
  ShmMailbox& box = group_.mailbox(rank(), record.peer);
  SharedPlace place = find_shared(work.in, payload_bytes(record));
  if (!place.shared() && record.count > 0) {
    CommBuffer owned = take_copy(payload_bytes(record));
    copy_bytes(owned.data(), work.in, payload_bytes(record));
    place = find_shared(owned.data(), payload_bytes(record));
    outgoing.copies.emplace_back(record.sequence, std::move(owned));
  }
  box.places[static_cast<size_t>(record.sequence) % ShmMailbox::kDepth] = {record, place};
  outgoing.published = record.sequence;
  box.sent.raise_to(static_cast<uint32_t>(record.sequence));
}

void ShmCommunicator::finish_send(const Collective& work) {
  const int peer = work.record.peer;
  const int64_t sequence = work.record.sequence;
  Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
  ShmSignal& taken = group_.mailbox(rank(), peer).taken;
  if (outgoing.published < sequence) {
    await(taken, static_cast<uint32_t>(sequence) - ShmMailbox::kDepth, peer);
    publish_deferred();
  }
  await(taken, static_cast<uint32_t>(sequence), peer);
  give_back_copies(outgoing, sequence);
}

void ShmCommunicator::receive_now(const Collective& work) {
  const CollectiveRecord& record = work.record;
  ShmMailbox& box = group_.mailbox(record.peer, rank());
  publish_deferred();
  await(box.sent, static_cast<uint32_t>(record.sequence), record.peer);
  const ShmAnnouncement message =
      box.places[static_cast<size_t>(record.sequence) % ShmMailbox::kDepth];
  check_message(message.record, record);
  if (record.count > 0)
    copy_between(record.peer, work.out, group_.memory(record.peer, message.in), payload_bytes(record));
  box.taken.raise_to(static_cast<uint32_t>(record.sequence));
}

}  // namespace

std::unique_ptr<Communicator> make_shm_communicator(Communicator::Setup setup,
                                                    Rendezvous& rendezvous) {
  return std::make_unique<ShmCommunicator>(std::move(setup), rendezvous);
}

}  // namespace ftrun
