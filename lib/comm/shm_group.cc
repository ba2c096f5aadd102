#include "comm/shm_group.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <thread>

#include "base/cores.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

std::string location_text(const SharedLocation& location) {
  return cat(location.inode, " ", location.segment_bytes, " ", location.offset, " ", location.fd);
}

SharedLocation parse_location(const std::string& text) {
  SharedLocation location;
  unsigned long long inode = 0;
  long long bytes = 0, offset = 0;
  if (std::sscanf(text.c_str(), "%llu %lld %lld %d", &inode, &bytes, &offset, &location.fd) != 4)
    bug(cat("a rank sent \"", text, "\" as its shared memory"));
  location.inode = inode;
  location.segment_bytes = bytes;
  location.offset = offset;
  return location;
}

/// Returns how long to poll. Polling pays only if every rank has a core of its own.
std::chrono::microseconds spin_time(int ranks) {
  return std::chrono::microseconds(ranks <= count_usable_cores() ? 50 : 0);
}

}  // namespace

ShmGroup::ShmGroup(Rendezvous& rendezvous, const std::string& name, const std::vector<int>& members,
                   int rank)
    : rendezvous_(rendezvous), members_(members), rank_(rank), spin_(spin_time(size())) {
  for (const int member : members_) peers_.emplace_back(rendezvous.identity(member));
  if (rank_ == 0) control_ = allocate_shared_lasting(control_bytes());
  staging_ = allocate_shared_lasting(2 * kHalfBytes);
  const auto place_of = [](const CommBuffer& buffer) {
    return location_text(shared_location_of(buffer.data(), buffer.bytes()));
  };
  const std::string own = rank_ == 0 ? place_of(control_) : "";
  const auto controls = rendezvous.all_gather_text("shm/" + name, own, members_);
  const auto stagings = rendezvous.all_gather_text("shm/" + name, place_of(staging_), members_);
  common_ = peers_[0].map_lasting(parse_location(controls[0]));
  for (size_t peer = 0; peer < peers_.size(); ++peer)
    stagings_.push_back(peers_[peer].map_lasting(parse_location(stagings[peer])));
  // No rank may leave before all ranks have mapped its memory.
  rendezvous.all_gather_text("shm/" + name, "opened", members_);
}

int64_t ShmGroup::control_bytes() const {
  return size() * static_cast<int64_t>(sizeof(MemberBoard)) +
         size() * size() * static_cast<int64_t>(sizeof(ShmMailbox));
}

ShmGroup::MemberBoard& ShmGroup::board_of(int rank) {
  return reinterpret_cast<MemberBoard*>(common_)[rank];
}

ShmMailbox& ShmGroup::mailbox(int from, int to) {
  auto* boxes =
      reinterpret_cast<ShmMailbox*>(common_ + static_cast<size_t>(size()) * sizeof(MemberBoard));
  return boxes[from * size() + to];
}

ShmAnnouncement& ShmGroup::announcement(int rank, int64_t sequence) {
  return board_of(rank).announcements[static_cast<size_t>(sequence & 1)];
}

bool ShmGroup::is_lost(int peer) const {
  const auto* parts = reinterpret_cast<const MemberBoard*>(common_);
  if (parts[peer].state.load(std::memory_order_acquire) != 0) return true;
  const PeerIdentity& self = rendezvous_.identity(rendezvous_.rank());
  const int global = members_[static_cast<size_t>(peer)];
  return read_process_state(rendezvous_.identity(global), self) == ProcessState::kGone;
}

/// Returns whether any member is lost: a barrier needs every rank, not only the one that is waited
/// for.
bool ShmGroup::is_any_member_lost() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_ && is_lost(peer)) return true;
  }
  return false;
}

template <typename Lost>
ShmGroup::WaitResult ShmGroup::wait_until(ShmSignal& signal, uint32_t target,
                                          Clock::time_point deadline, Lost lost_now) {
  if (signal.has_reached(target)) return WaitResult::kReached;
  WaitResult result = WaitResult::kReached;
  const auto check = [&] {
    if (Clock::now() >= deadline) result = WaitResult::kTimeout;
    if (lost_now()) result = WaitResult::kPeerLost;
    return result != WaitResult::kReached;
  };
  // The check is passed by reference: a std::function with a copy of it would be allocated at every
  // wait.
  const bool reached = signal.wait(target, spin_, std::cref(check));
  return reached ? WaitResult::kReached : result;
}

ShmGroup::WaitResult ShmGroup::wait_for(ShmSignal& signal, uint32_t target, int peer,
                                        std::chrono::milliseconds timeout,
                                        const std::function<void()>& idle) {
  return wait_until(signal, target, Clock::now() + timeout, [&] {
    idle();
    return is_lost(peer);
  });
}

ShmGroup::WaitResult ShmGroup::arrive_and_wait(std::chrono::milliseconds timeout) {
  const uint32_t target = ++barriers_;
  board_of(rank_).progress.raise_to(target);
  const auto deadline = Clock::now() + timeout;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    const WaitResult result = wait_until(board_of(peer).progress, target, deadline,
                                         [this] { return is_any_member_lost(); });
    if (result != WaitResult::kReached) return result;
  }
  return WaitResult::kReached;
}

void ShmGroup::leave(MemberState state) noexcept {
  board_of(rank_).state.store(static_cast<uint32_t>(state), std::memory_order_release);
  board_of(rank_).progress.wake_all();
  for (int peer = 0; peer < size(); ++peer) {
    mailbox(rank_, peer).sent.wake_all();
    mailbox(peer, rank_).received.wake_all();
  }
}

}  // namespace ftrun
