#include "comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/owned_fd.h"
#include "base/text.h"

namespace ftrun {
namespace {

struct OwnSegment {
  OwnedFd fd;
  uint64_t inode = 0;
  int64_t bytes = 0;
};

/// All shared memory of this process, by first address: any communicator must recognise it.
struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, OwnSegment> segments;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

[[noreturn]] void no_memory(int64_t bytes) {
  throw Error(ExitCode::kEnvironment, cat("no shared memory for a communication buffer of ",
                                          human_bytes(bytes), ": ", errno_text(errno)));
}

std::byte* map_shared(int fd, int64_t bytes) {
  void* base =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

OwnSegment forget(const void* data) {
  const std::lock_guard lock(registry().mutex);
  auto node = registry().segments.extract(static_cast<const std::byte*>(data));
  return std::move(node.mapped());
}

void free_lasting(void* data, int64_t bytes) {
  const OwnSegment segment = forget(data);
  ::munmap(data, static_cast<size_t>(bytes));
}

void free_shared(void* data, int64_t bytes) {
  const OwnSegment segment = forget(data);
  ::fallocate(segment.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes);
  ::munmap(data, static_cast<size_t>(bytes));
}

CommBuffer allocate(int64_t bytes, void (*free)(void*, int64_t)) {
  OwnSegment segment{OwnedFd(::memfd_create("ftrun", MFD_CLOEXEC)), 0, bytes};
  struct stat status {};
  // The kernel makes it for all to open who may look into this process's /proc entry.
  if (!segment.fd || ::fchmod(segment.fd.get(), 0600) != 0 || ::ftruncate(segment.fd.get(), bytes) != 0 ||
      ::fstat(segment.fd.get(), &status) != 0)
    no_memory(bytes);
  std::byte* base = map_shared(segment.fd.get(), bytes);
  if (base == nullptr) no_memory(bytes);
  segment.inode = status.st_ino;
  const std::lock_guard lock(registry().mutex);
  registry().segments.emplace(base, std::move(segment));
  return {base, bytes, free};
}

std::string segment_path(const PeerIdentity& owner, const SharedPlace& place) {
  return cat("/proc/", owner.pid, "/fd/", place.fd);
}

/// None, with errno, when the owner has freed it.
OwnedFd open_segment(const PeerIdentity& owner, const SharedPlace& place) {
  OwnedFd fd(::open(segment_path(owner, place).c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return OwnedFd();
  if (status.st_ino == place.inode) return fd;
  errno = ENOENT;  // another file has the number now
  return OwnedFd();
}

void unmap(std::byte* base, const SharedPlace& place) {
  ::munmap(base, static_cast<size_t>(place.segment_bytes));
}

}  // namespace

CommBuffer allocate_shared(int64_t bytes) {
  return allocate(bytes, free_shared);
}
CommBuffer allocate_shared_lasting(int64_t bytes) {
  return allocate(bytes, free_lasting);
}

SharedPlace find_shared(const void* data, int64_t bytes) {
  const auto* start = static_cast<const std::byte*>(data);
  const std::lock_guard lock(registry().mutex);
  auto next = registry().segments.upper_bound(start);
  if (next == registry().segments.begin()) return {};
  const auto& [base, segment] = *--next;
  if (start + bytes > base + segment.bytes) return {};
  return {segment.inode, segment.bytes, start - base, segment.fd.get()};
}

void drop_mapped_pages(std::byte* data, int64_t bytes) {
  constexpr int64_t kPage = 4096;
  // A few pages are not worth the call and the faults.
  if (bytes < 64 * kPage) return;
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + static_cast<uintptr_t>(bytes)) / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

PeerMemory::~PeerMemory() {
  for (const Segment& segment : segments_) unmap(segment.base, segment.place);
}

/// Lets go of what its owner has freed: else every buffer that ever lived would stay mapped.
void PeerMemory::close_freed() {
  std::erase_if(segments_, [&](const Segment& segment) {
    if (segment.kept || open_segment(peer_, segment.place)) return false;
    unmap(segment.base, segment.place);
    return true;
  });
}

PeerMemory::Segment& PeerMemory::open(const SharedPlace& place) {
  const OwnedFd fd = open_segment(peer_, place);
  std::byte* base = fd ? map_shared(fd.get(), place.segment_bytes) : nullptr;
  const std::string why = base == nullptr ? errno_text(errno) : "";
  if (base == nullptr && process_state(peer_, own_identity()) == ProcessState::kGone)
    throw Error(ExitCode::kPeerLost,
                cat("process ", peer_.pid, ", a rank of this machine, is gone"),
                "look at that rank's own log first");
  if (base == nullptr)
    throw Error(ExitCode::kEnvironment,
                cat("cannot open shared memory of process ", peer_.pid, " (",
                    segment_path(peer_, place), "): ", why),
                "let the ranks run in one container and as one user, or choose the gloo back end");
  close_freed();
  return segments_.emplace_back(Segment{place, base});
}

PeerMemory::Segment& PeerMemory::find(const SharedPlace& place) {
  const auto known = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& segment) {
    return segment.place.inode == place.inode;
  });
  return known != segments_.end() ? *known : open(place);
}

std::byte* PeerMemory::at(const SharedPlace& place) {
  return find(place).base + place.offset;
}

std::byte* PeerMemory::keep(const SharedPlace& place) {
  Segment& segment = find(place);
  segment.kept = true;
  return segment.base + place.offset;
}

}  // namespace ftrun
