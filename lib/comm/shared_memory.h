#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cluster/peers.h"
#include "comm/communicator.h"

namespace ftrun {

/// SharedPlace specifies where a piece of one process's shared memory lies, in terms that another
/// process of the machine can follow. Plain bytes. inode 0: not shared.
struct SharedPlace {
  uint64_t inode = 0;
  int64_t segment_bytes = 0;
  int64_t offset = 0;
  int32_t fd = -1;

  bool shared() const { return inode != 0; }
};

/// Allocates memory that other ranks of this machine may map: a memfd, zero at first, gone with its
/// last user however that ends. Its pages are given back when the owner frees it although peers may
/// still map it. Error(kEnvironment) when there is not enough.
CommBuffer allocate_shared(int64_t bytes);
/// Allocates shared memory whose contents stay readable for peers that have mapped it.
CommBuffer allocate_shared_lasting(int64_t bytes);
/// Returns the place of [data, data + bytes) when it lies in memory of allocate_shared, else an
/// unshared one.
SharedPlace find_shared(const void* data, int64_t bytes);

/// Asks the kernel, once for each of them, to collapse into huge pages (MADV_COLLAPSE) those places
/// of this process's shared memory that a range touches and that are in use entirely: peers map a
/// huge page at once, which takes a small part of the time of 512 pages. No effect where the kernel
/// cannot (before Linux 6.1, or where memory is fragmented).
void collapse_into_huge_pages(const void* data, int64_t bytes);

/// Removes the pages of a peer's memory that a range touches from this process's page tables: they
/// stay where they are and come back when touched. Otherwise every page that a rank ever read of
/// its peers would count as its own resident memory: of a small range too, as a huge page is mapped
/// whole.
void drop_mapped_pages(std::byte* data, int64_t bytes);

/// PeerMemory is another rank's shared memory as mapped here; it keeps each used segment for as
/// long as its owner does.
class PeerMemory {
 public:
  explicit PeerMemory(PeerIdentity peer) : peer_(std::move(peer)) {}
  ~PeerMemory();
  PeerMemory(PeerMemory&& other) noexcept
      : peer_(std::move(other.peer_)), segments_(std::exchange(other.segments_, {})) {}
  PeerMemory& operator=(PeerMemory&&) = delete;

  /// Maps a place; valid until the next call. Error(kEnvironment) when the place cannot be opened,
  /// Error(kPeerLost) when its owner is gone.
  std::byte* at(const SharedPlace& place);
  /// Maps a place so that it stays mapped whatever its owner does.
  std::byte* keep(const SharedPlace& place);

 private:
  struct Segment {
    SharedPlace place;
    std::byte* base;
    bool kept = false;
  };
  Segment& find(const SharedPlace& place);
  Segment& open(const SharedPlace& place);
  void close_freed();

  PeerIdentity peer_;
  std::vector<Segment> segments_;
};

}  // namespace ftrun
