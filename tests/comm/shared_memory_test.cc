#include "comm/shared_memory.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/owned_fd.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// OpenWatch reports whether anybody has opened `path` since the last question. Looking at the file
/// without opening it does not count.
class OpenWatch {
 public:
  explicit OpenWatch(const std::string& path) : events_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    REQUIRE(::inotify_add_watch(events_.get(), path.c_str(), IN_OPEN) >= 0);
  }
  bool opened() {
    std::array<char, 4096> events{};
    return ::read(events_.get(), events.data(), events.size()) > 0;
  }

 private:
  OwnedFd events_;
};

TEST_CASE("a peer's memory is mapped from the file that the peer names") {
  const CommBuffer buffer = allocate_shared(64 << 10);
  std::memset(buffer.as<>() + 5000, 7, 3);
  PeerMemory memory(read_own_identity());
  const std::byte* mapped = memory.map(shared_location_of(buffer.as<>() + 5000, 3));
  CHECK(mapped != buffer.as<>() + 5000);
  CHECK(std::memcmp(mapped, buffer.as<>() + 5000, 3) == 0);
}

/// Returns how many pages of a range are in this process's page table.
int64_t mapped_pages(const std::byte* data, int64_t bytes) {
  constexpr int64_t kPage = 4096;
  const OwnedFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::vector<uint64_t> entries(static_cast<size_t>(bytes / kPage));
  const auto entry_bytes = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
  const auto first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) / kPage;
  REQUIRE(::pread(pagemap.get(), entries.data(), static_cast<size_t>(entry_bytes),
                  first * static_cast<int64_t>(sizeof(uint64_t))) == entry_bytes);
  return std::count_if(entries.begin(), entries.end(),
                       [](uint64_t entry) { return (entry >> 63) != 0; });
}

TEST_CASE("dropping a range of a peer's memory also drops the pages that the kernel mapped near") {
  constexpr int64_t kBytes = 256 << 10;
  const CommBuffer buffer = allocate_shared(kBytes);
  std::memset(buffer.as<>(), 7, kBytes);
  PeerMemory memory(read_own_identity());
  std::byte* const mapped = memory.map(shared_location_of(buffer.data(), kBytes));
  for (const int64_t at : {int64_t{0}, int64_t{100000}, kBytes - 1}) {
    CHECK(std::to_integer<int>(*static_cast<volatile std::byte*>(mapped + at)) == 7);
    CHECK(mapped_pages(mapped, kBytes) > 0);
    memory.unmap_pages(mapped + at, 1);
    CHECK(mapped_pages(mapped, kBytes) == 0);
  }
  CHECK(mapped_pages(buffer.as<std::byte>(), kBytes) == kBytes / 4096);
}

TEST_CASE("a pipe or another file that has the number of a peer's freed memory is not opened") {
  const testing::TemporaryFolder folder;
  const bool pipe = GENERATE(true, false);
  const std::string path = folder / "other";
  REQUIRE((pipe ? ::mkfifo(path.c_str(), 0600)
                : ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600))) == 0);
  const OwnedFd other(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  REQUIRE(::fstat(other.get(), &status) == 0);
  OpenWatch watch(path);
  PeerMemory memory(read_own_identity());
  // The file's inode number may happen to be the one that the memory had.
  const uint64_t inode = pipe ? status.st_ino : status.st_ino + 1;
  CHECK_THROWS_AS(memory.map({inode, 4096, 0, other.get()}), Error);
  CHECK_FALSE(watch.opened());
  CHECK(OwnedFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)));
  CHECK(watch.opened());
}

}  // namespace
}  // namespace ftrun
