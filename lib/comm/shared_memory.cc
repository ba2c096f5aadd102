#include "comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/owned_fd.h"
#include "base/round_up.h"
#include "base/shm_sizes.h"
#include "base/text.h"

#ifndef MADV_COLLAPSE  // Linux 6.1
#define MADV_COLLAPSE 25
#endif

namespace ftrun {
namespace {

constexpr int64_t kPage = 4096, kHugePage = kShmHugePage;

struct OwnSegment {
  OwnedFd fd;
  uint64_t inode = 0;
  int64_t bytes = 0;
  /// Says for each whole huge page, in order, whether the kernel was asked to collapse it.
  std::vector<bool> collapse_requested = {};
};

/// Registry holds all shared memory of this process, by first address, so that any communicator
/// recognizes memory that another one allocated.
struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, OwnSegment> segments;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

/// Returns the remedy if memory cannot be allocated or mapped; `otherwise` if the cause is not a
/// limit of this process or machine.
std::string memory_remedy(int error, const char* otherwise) {
  if (error == ENOMEM) return less_memory_remedy();
  const std::string remedy = shared_memory_remedy(error);
  return remedy.empty() ? otherwise : remedy;
}

[[noreturn]] void throw_no_memory(int64_t bytes) {
  const int error = errno;
  throw Error(ExitCode::kEnvironment,
              cat("no shared memory for a communication buffer of ", human_bytes(bytes), ": ",
                  errno_text(error)),
              memory_remedy(error, ""));
}

/// Finds an address, aligned to huge pages, where `bytes` bytes are free. At other addresses the
/// kernel could not map a file's huge pages as such.
std::byte* huge_page_address(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes + kHugePage);
  void* free = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (free == MAP_FAILED) return nullptr;
  ::munmap(free, size);
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(free));
  return reinterpret_cast<std::byte*>(round_up(address, kHugePage));
}

std::byte* map_shared(int fd, int64_t bytes) {
  // If another thread maps something at this address first, the kernel maps the file at another
  // address, with small pages.
  std::byte* hint = bytes < kHugePage ? nullptr : huge_page_address(bytes);
  void* base = ::mmap(hint, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

/// Returns whether all memory of a huge page is allocated; collapsing it then allocates no more.
bool is_fully_allocated(std::byte* page) {
  std::array<unsigned char, kHugePage / kPage> present{};
  if (::mincore(page, kHugePage, present.data()) != 0) return false;
  return std::all_of(present.begin(), present.end(),
                     [](unsigned char one) { return (one & 1) != 0; });
}

OwnSegment unregister_segment(const void* data) {
  const std::lock_guard lock(registry().mutex);
  auto node = registry().segments.extract(static_cast<const std::byte*>(data));
  return std::move(node.mapped());
}

void free_lasting(void* data, int64_t bytes) {
  const OwnSegment segment = unregister_segment(data);
  ::munmap(data, static_cast<size_t>(bytes));
}

void free_shared(void* data, int64_t bytes) {
  const OwnSegment segment = unregister_segment(data);
  ::fallocate(segment.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes);
  ::munmap(data, static_cast<size_t>(bytes));
}

CommBuffer allocate_segment(int64_t bytes, void (*free)(void*, int64_t)) {
  OwnSegment segment{OwnedFd(::memfd_create("ftrun", MFD_CLOEXEC)), 0, bytes};
  struct stat status {};
  // The kernel creates the file accessible to everyone who can open this process's /proc/PID/fd.
  if (!segment.fd || ::fchmod(segment.fd.get(), 0600) != 0 ||
      ::ftruncate(segment.fd.get(), bytes) != 0 || ::fstat(segment.fd.get(), &status) != 0)
    throw_no_memory(bytes);
  std::byte* base = map_shared(segment.fd.get(), bytes);
  if (base == nullptr) throw_no_memory(bytes);
  segment.inode = status.st_ino;
  segment.collapse_requested.resize(static_cast<size_t>(bytes / kHugePage));
  const std::lock_guard lock(registry().mutex);
  registry().segments.emplace(base, std::move(segment));
  return {base, bytes, free};
}

std::string segment_path(const PeerIdentity& owner, const SharedLocation& location) {
  return cat("/proc/", owner.pid, "/fd/", location.fd);
}

/// Finds the owner's descriptor without opening its file: the number may belong to a pipe or a
/// device by now, and opening that could have an effect or block. Returns none, with errno set, if
/// the owner has freed the segment.
OwnedFd find_segment(const PeerIdentity& owner, const SharedLocation& location) {
  OwnedFd found(::open(segment_path(owner, location).c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!found || ::fstat(found.get(), &status) != 0) return OwnedFd();
  if (S_ISREG(status.st_mode) && status.st_ino == location.inode) return found;
  errno = ENOENT;  // another file has the number now
  return OwnedFd();
}

/// Opens the segment. Returns none, with errno set, if the owner has freed it.
OwnedFd open_segment(const PeerIdentity& owner, const SharedLocation& location) {
  const OwnedFd found = find_segment(owner, location);
  return found ? OwnedFd(::open(cat("/proc/self/fd/", found.get()).c_str(), O_RDWR | O_CLOEXEC))
               : OwnedFd();
}

void unmap(std::byte* base, const SharedLocation& location) {
  ::munmap(base, static_cast<size_t>(location.segment_bytes));
}

}  // namespace

CommBuffer allocate_shared(int64_t bytes) {
  return allocate_segment(bytes, free_shared);
}
CommBuffer allocate_shared_lasting(int64_t bytes) {
  return allocate_segment(bytes, free_lasting);
}

SharedLocation shared_location_of(const void* data, int64_t bytes) {
  const auto* start = static_cast<const std::byte*>(data);
  const std::lock_guard lock(registry().mutex);
  auto next = registry().segments.upper_bound(start);
  if (next == registry().segments.begin()) return {};
  const auto& [base, segment] = *--next;
  if (start + bytes > base + segment.bytes) return {};
  return {segment.inode, segment.bytes, start - base, segment.fd.get()};
}

void collapse_into_huge_pages(const void* data, int64_t bytes) {
  if (bytes < kHugePage / 2) return;
  const auto* start = static_cast<const std::byte*>(data);
  const std::lock_guard lock(registry().mutex);
  auto next = registry().segments.upper_bound(start);
  if (next == registry().segments.begin()) return;
  auto& [base, segment] = *--next;
  const int64_t first = (start - base) / kHugePage;
  const int64_t end =
      std::min(round_up(start - base + bytes, kHugePage), segment.bytes) / kHugePage;
  for (int64_t i = first; i < end; ++i) {
    auto* page = const_cast<std::byte*>(base) + i * kHugePage;
    if (segment.collapse_requested[static_cast<size_t>(i)] || !is_fully_allocated(page)) continue;
    segment.collapse_requested[static_cast<size_t>(i)] = true;
    ::madvise(page, kHugePage, MADV_COLLAPSE);
  }
}

PeerMemory::~PeerMemory() {
  for (const Segment& segment : segments_) unmap(segment.base, segment.location);
}

/// Unmaps segments that the peer has freed; otherwise all its past buffers would stay mapped.
void PeerMemory::close_freed() {
  std::erase_if(segments_, [&](const Segment& segment) {
    if (segment.is_lasting || find_segment(peer_, segment.location)) return false;
    unmap(segment.base, segment.location);
    return true;
  });
}

PeerMemory::Segment& PeerMemory::open(const SharedLocation& location) {
  const OwnedFd fd = open_segment(peer_, location);
  std::byte* base = fd ? map_shared(fd.get(), location.segment_bytes) : nullptr;
  const int error = base == nullptr ? errno : 0;
  if (base == nullptr && read_process_state(peer_, read_own_identity()) == ProcessState::kGone)
    throw Error(ExitCode::kPeerLost,
                cat("process ", peer_.pid, ", a rank of this machine, is gone"),
                "look at that rank's own log first");
  if (base == nullptr)
    throw Error(
        ExitCode::kEnvironment,
        cat("cannot open shared memory of process ", peer_.pid, " (", segment_path(peer_, location),
            "): ", errno_text(error)),
        memory_remedy(
            error,
            "let the ranks run in one container and as one user, or choose the gloo backend"));
  close_freed();
  return segments_.emplace_back(Segment{location, base});
}

PeerMemory::Segment& PeerMemory::find_or_open(const SharedLocation& location) {
  const auto known = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& segment) {
    return segment.location.inode == location.inode;
  });
  return known != segments_.end() ? *known : open(location);
}

std::byte* PeerMemory::map(const SharedLocation& location) {
  return find_or_open(location).base + location.offset;
}

void PeerMemory::unmap_pages(std::byte* data, int64_t bytes) {
  const auto segment = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& each) {
    return each.base <= data && data < each.base + each.location.segment_bytes;
  });
  require(segment != segments_.end(), "only mapped pages of a peer are unmapped");
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
  const auto base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(segment->base));
  // The range must not reach beyond the mapping: other memory that follows would lose its contents.
  // The kernel maps aligned blocks, except that the first block begins where the mapping begins and
  // is as long as the others.
  const int64_t begin = std::max(address / kShmReadAround * kShmReadAround, base);
  const int64_t end =
      std::min(std::max(round_up(address + bytes, kShmReadAround), begin + kShmReadAround),
               base + round_up(segment->location.segment_bytes, kPage));
  ::madvise(segment->base + (begin - base), static_cast<size_t>(end - begin), MADV_DONTNEED);
}

std::byte* PeerMemory::map_lasting(const SharedLocation& location) {
  Segment& segment = find_or_open(location);
  segment.is_lasting = true;
  return segment.base + location.offset;
}

}  // namespace ftrun
