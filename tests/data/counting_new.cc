// These functions have their own file, because a compiler that sees both halves considers malloc
// and delete a mismatch.
#include "counting_new.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> allocations = 0;
std::atomic<int64_t> frees = 0;
/// The thread-local mark of the only thread that may allocate; null: every thread may.
std::atomic<const char*> only_allocating_thread = nullptr;
// The variable is aligned to avoid a bug: if all thread-local data is one byte, mold 1.10 may let
// the pages that the loader makes read-only begin before the first mapped page, and the program
// does not start.
alignas(16) thread_local char thread_mark = 0;

void count_allocation() {
  ++allocations;
  const auto must_wait = [](const char* allowed) {
    return allowed != nullptr && allowed != &thread_mark;
  };
  while (must_wait(only_allocating_thread)) ::usleep(1000);
}

void free_counted(void* memory) {
  if (memory != nullptr) ++frees;
  std::free(memory);
}
}  // namespace

int64_t ftrun::testing::allocations_so_far() {
  return allocations;
}
int64_t ftrun::testing::allocations_alive() {
  return allocations - frees;
}

ftrun::testing::HeldAllocations::HeldAllocations() {
  only_allocating_thread = &thread_mark;
}
ftrun::testing::HeldAllocations::~HeldAllocations() {
  only_allocating_thread = nullptr;
}

void* operator new(size_t size) {
  count_allocation();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  count_allocation();
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept {
  free_counted(memory);
}
void operator delete(void* memory, size_t) noexcept {
  free_counted(memory);
}
