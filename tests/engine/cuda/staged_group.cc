#include "staged_group.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/text.h"

namespace ftrun::testing {
namespace {

/// Returns a name under which the links of two pairs of ranks, or two groups, never collide.
std::string key_of(const Communicator& group) {
  std::string key = group.name();
  for (const int member : group.members()) key += cat(" ", member);
  return key;
}

}  // namespace

void Mailbox::post(const Address& address, std::vector<std::byte> message) {
  {
    const std::lock_guard lock(mutex_);
    waiting_[address].push_back(std::move(message));
  }
  posted_.notify_all();
}

std::vector<std::byte> Mailbox::take(const Address& address) {
  constexpr std::chrono::seconds kPatience{20};
  std::unique_lock lock(mutex_);
  std::deque<std::vector<std::byte>>& queue = waiting_[address];
  if (!posted_.wait_for(lock, kPatience, [&] { return !queue.empty(); }))
    throw Error(ExitCode::kPeerLost, cat("no message of ", address.group, " came from ",
                                         address.from, " to ", address.to));
  std::vector<std::byte> message = std::move(queue.front());
  queue.pop_front();
  return message;
}

StagedGroup::StagedGroup(Gpu& gpu, Mailbox& mailbox, const Communicator& like)
    : DeviceCommunicator({.name = like.name(),
                          .members = like.members(),
                          .rank = like.rank(),
                          .timeout = std::chrono::minutes(1),
                          .sum_blocks =
                              [&gpu](const BlockSum& sum) {
                                gpu.kernels().sum_blocks(sum.blocks, sum.ranks, sum.stride,
                                                         sum.dtype, sum.count, sum.out,
                                                         static_cast<DeviceStream>(sum.stream));
                              }}),
      gpu_(gpu),
      mailbox_(mailbox),
      key_(key_of(like)) {
  start_watchdog();
}

StagedGroup::~StagedGroup() {
  stop_watchdog();
}

void StagedGroup::send(const void* data, int64_t bytes, int peer) {
  std::vector<std::byte> message(static_cast<size_t>(bytes));
  gpu_.kernels().copy(message.data(), data, bytes, here());
  gpu_.kernels().synchronize(here());
  mailbox_.post({key_, rank(), peer}, std::move(message));
}

void StagedGroup::receive(void* data, int peer) {
  const std::vector<std::byte> message = mailbox_.take({key_, peer, rank()});
  gpu_.kernels().copy(data, message.data(), static_cast<int64_t>(message.size()), here());
  gpu_.kernels().synchronize(here());
}

void StagedGroup::enqueue(const Collective& collective) {
  const CollectiveRecord& record = collective.record;
  const int64_t bytes = payload_bytes(record);
  if (record.kind == CollectiveKind::kSend) return send(collective.in, bytes, record.peer);
  if (record.kind == CollectiveKind::kReceive) return receive(collective.out, record.peer);
  require(record.kind == CollectiveKind::kAllGather, "a collective of a step");
  std::vector<PeerExchange> parts(static_cast<size_t>(size()));
  for (int peer = 0; peer < size(); ++peer)
    parts[static_cast<size_t>(peer)] = {static_cast<const std::byte*>(collective.in), bytes,
                                        static_cast<std::byte*>(collective.out) + peer * bytes,
                                        bytes};
  enqueue(std::span<const PeerExchange>(parts));
}

void StagedGroup::enqueue(std::span<const PeerExchange> by_rank) {
  for (int peer = 0; peer < size(); ++peer) {
    const PeerExchange& part = by_rank[static_cast<size_t>(peer)];
    if (part.send_bytes > 0) send(part.send, part.send_bytes, peer);
  }
  for (int peer = 0; peer < size(); ++peer) {
    const PeerExchange& part = by_rank[static_cast<size_t>(peer)];
    if (part.receive_bytes > 0) receive(part.receive, peer);
  }
}

CommBuffer StagedGroup::allocate_memory(int64_t bytes) {
  blocks_.push_back(GpuBlock::allocate_on_device(gpu_, bytes));
  return {blocks_.back().data(), bytes, [](void*, int64_t) {}};
}

std::vector<PeerView> StagedGroup::view_peers() {
  std::vector<PeerView> nothing_known(members().size());
  for (size_t i = 0; i < members().size(); ++i) nothing_known[i].global_rank = members()[i];
  return nothing_known;
}

}  // namespace ftrun::testing
