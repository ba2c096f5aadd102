#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/shm_sizes.h"
#include "cluster/collective_record.h"
#include "comm/rendezvous.h"
#include "comm/shared_memory.h"
#include "comm/shm_signal.h"

namespace ftrun {

/// ShmAnnouncement is what a rank announces about the collective that it enters.
struct ShmAnnouncement {
  CollectiveRecord record;
  SharedLocation in;
};

/// ShmMailbox carries messages from one rank to another. The sender fills slots[n % kDepth] and
/// raises `sent` to n; the receiver raises `received` to n when it has copied the message.
struct ShmMailbox {
  static constexpr uint32_t kDepth = 64;
  ShmSignal sent;
  ShmSignal received;
  std::array<ShmAnnouncement, kDepth> slots;
};

/// ShmGroup is the shared memory of a group, with a barrier of its ranks. Every rank owns one part
/// of it: its progress, its announcements, and a staging area of two halves.
class ShmGroup {
 public:
  static constexpr int64_t kHalfBytes = kShmHalfBytes;

  enum class MemberState : uint32_t { kActive, kLeft, kAborted };
  /// WaitResult says why a wait ended.
  enum class WaitResult { kReached, kTimeout, kPeerLost };

  /// Opens the group. Collective. Throws Error(kEnvironment) if a member's memory cannot be opened.
  ShmGroup(Rendezvous& rendezvous, const std::string& name, const std::vector<int>& members,
           int rank);

  int size() const { return static_cast<int>(members_.size()); }
  int rank() const { return rank_; }

  /// Arrives at the next barrier and waits for all other ranks, for at most `timeout` in all.
  WaitResult arrive_and_wait(std::chrono::milliseconds timeout);
  /// Returns the announcement of `rank` for the collective of this sequence number. A rank may
  /// write its own until the barrier. It may read the others' from the barrier until it enters the
  /// collective after the next.
  ShmAnnouncement& announcement(int rank, int64_t sequence);
  uint32_t next_barrier() const { return barriers_ + 1; }
  /// Returns the half of a rank's staging area for one barrier. Write this rank's own half before
  /// the barrier; read the others' after it and before this rank's next barrier. Two halves are
  /// enough: a rank that writes for barrier n has passed barrier n-1, at which all ranks arrived
  /// after they had read what was written for n-2.
  std::byte* staging(int rank, uint32_t barrier) {
    return stagings_[static_cast<size_t>(rank)] + (barrier & 1) * kHalfBytes;
  }
  ShmMailbox& mailbox(int from, int to);
  /// Waits until rank `peer` of the group raises `signal` to `target`; calls `idle` between sleeps.
  WaitResult wait_for(ShmSignal& signal, uint32_t target, int peer,
                      std::chrono::milliseconds timeout, const std::function<void()>& idle);

  /// Returns the memory at the location that `rank` announced.
  std::byte* map_memory(int rank, const SharedLocation& location) {
    return peers_[static_cast<size_t>(rank)].map(location);
  }
  /// Unmaps the pages of a range in memory that map_memory() returned (see
  /// PeerMemory::unmap_pages()).
  void unmap_pages(int rank, std::byte* data, int64_t bytes) {
    peers_[static_cast<size_t>(rank)].unmap_pages(data, bytes);
  }
  /// Shows the others that this rank has finished or aborts the group, and wakes the ranks that
  /// wait for it.
  void leave(MemberState state) noexcept;

 private:
  struct MemberBoard {
    ShmSignal progress;
    std::atomic<uint32_t> state;
    std::array<ShmAnnouncement, 2> announcements;
  };

  int64_t control_bytes() const;
  MemberBoard& board_of(int rank);
  bool is_lost(int peer) const;
  bool is_any_member_lost() const;
  template <typename Lost>
  WaitResult wait_until(ShmSignal& signal, uint32_t target,
                        std::chrono::steady_clock::time_point deadline, Lost lost_now);

  Rendezvous& rendezvous_;
  const std::vector<int> members_;
  const int rank_;
  CommBuffer control_;  // only on rank 0 of the group: the shared counters and announcements
  CommBuffer staging_;  // this rank's staging area
  std::vector<PeerMemory> peers_;
  std::byte* common_ = nullptr;
  std::vector<std::byte*> stagings_;
  std::chrono::microseconds spin_;
  uint32_t barriers_ = 0;
};

}  // namespace ftrun
