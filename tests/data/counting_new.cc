// In a file of its own: where the compiler sees both halves it takes malloc and delete for a mismatch.
#include "counting_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> allocations = 0;
std::atomic<int64_t> frees = 0;

void release(void* memory) {
  if (memory != nullptr) ++frees;
  std::free(memory);
}
}  // namespace

int64_t ftrun::test::allocations_so_far() { return allocations; }
int64_t ftrun::test::allocations_alive() { return allocations - frees; }

void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
