// This test counts this thread's allocations: after its first requests, a swap file makes none.
#include <cstdlib>
#include <new>

#include "base/log.h"
#include "fault_storage.h"
#include "storage/swap_file.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace {
thread_local int64_t allocations = 0;

void* allocate_counted(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t bytes) {
  return allocate_counted(bytes);
}
void* operator new[](size_t bytes) {
  return allocate_counted(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace ftrun {
namespace {

/// WithoutRing refuses io_uring on demand, and otherwise behaves like the machine.
class WithoutRing : public testing::FaultStorage {
 public:
  std::unique_ptr<BlockQueue> open_thread_queue(int fd, int depth) override {
    return machine_storage().open_thread_queue(fd, depth);
  }
};

/// Makes eight requests at a time, each with its part of the memory and of the file.
void make_requests(SwapFile& file, testing::AlignedBytes& data) {
  constexpr int64_t kPart = int64_t{1} << 20;
  SwapFile::Ticket tickets[8];
  for (int64_t i = 0; i < 8; ++i) {
    char* part = data.data() + i * kPart;
    tickets[i] = i % 2 == 0 ? file.write(part, kPart - i, i * kPart)
                            : file.read(part, 100'000 + i, i * kPart);
  }
  for (const auto& ticket : tickets) file.wait(ticket);
}

TEST_CASE("swap requests after the first ones allocate nothing") {
  const bool threads = GENERATE(false, true);
  CAPTURE(threads);
  const testing::TemporaryFolder folder;
  WithoutRing storage;
  storage.ring_errno = 1;
  start_log({.level = LogLevel::kError});
  SwapFile file(
      {.folder = folder.path(), .name = "counted", .bytes = 8 << 20, .aio = {.block_size = 65536}},
      threads ? storage : machine_storage());
  start_log({});
  testing::AlignedBytes data(8 << 20);
  make_requests(file, data);
  REQUIRE(allocations > 0);
  const int64_t start = allocations;
  for (int i = 0; i < 5; ++i) make_requests(file, data);
  const int64_t made = allocations - start;
  REQUIRE(made == 0);
}

}  // namespace
}  // namespace ftrun
