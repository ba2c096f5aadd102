#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cluster/peers.h"
#include "comm/communicator.h"

namespace ftrun {

/// SharedLocation specifies where a range of one process's shared memory lies, so that another
/// process of the machine can map it. Trivially copyable. inode 0: not shared.
struct SharedLocation {
  uint64_t inode = 0;
  int64_t segment_bytes = 0;
  int64_t offset = 0;
  int32_t fd = -1;

  bool is_shared() const { return inode != 0; }
};

/// Allocates memory that other ranks of this machine may map: a memfd, zero at first, which is
/// freed when its last user ends, normally or not. When the owner frees it, its pages are released
/// although peers may still map it. Throws Error(kEnvironment) if there is not enough memory.
CommBuffer allocate_shared(int64_t bytes);
/// Allocates shared memory whose contents peers that have mapped it can still read after its owner
/// has freed it.
CommBuffer allocate_shared_lasting(int64_t bytes);
/// Returns the location of [data, data + bytes) if it lies in memory of allocate_shared(), else one
/// that is not shared.
SharedLocation shared_location_of(const void* data, int64_t bytes);

/// Asks the kernel to collapse the parts of this process's shared memory that a range touches into
/// huge pages (MADV_COLLAPSE), if all their memory is allocated; each is asked for only once. Peers
/// map a huge page at once, in a small fraction of the time that 512 small pages take. Has no
/// effect if the kernel cannot do it (before Linux 6.1, or if memory is fragmented).
void collapse_into_huge_pages(const void* data, int64_t bytes);

/// PeerMemory is another rank's shared memory as mapped in this process. It keeps each used segment
/// mapped for as long as its owner keeps it.
class PeerMemory {
 public:
  explicit PeerMemory(PeerIdentity peer) : peer_(std::move(peer)) {}
  ~PeerMemory();
  PeerMemory(PeerMemory&& other) noexcept
      : peer_(std::move(other.peer_)), segments_(std::exchange(other.segments_, {})) {}
  PeerMemory& operator=(PeerMemory&&) = delete;

  /// Maps a location and returns its address, valid until the next call. Throws Error(kEnvironment)
  /// if the location cannot be opened, Error(kPeerLost) if its owner's process has ended.
  std::byte* map(const SharedLocation& location);
  /// Maps a location so that it stays mapped even after its owner frees it.
  std::byte* map_lasting(const SharedLocation& location);
  /// Removes the pages that a range touches from this process's page tables, together with the
  /// neighboring pages that the kernel mapped when the range was read (kShmReadAround). `data` is
  /// an address in memory that map() returned. The contents stay, and the pages are mapped again
  /// when they are touched. Otherwise every page that a rank ever read from its peers would count
  /// as its own resident memory. This matters for small ranges too, because a huge page is mapped
  /// as a whole.
  void unmap_pages(std::byte* data, int64_t bytes);

 private:
  struct Segment {
    SharedLocation location;
    std::byte* base;
    bool is_lasting = false;
  };
  Segment& find_or_open(const SharedLocation& location);
  Segment& open(const SharedLocation& location);
  void close_freed();

  PeerIdentity peer_;
  std::vector<Segment> segments_;
};

}  // namespace ftrun
