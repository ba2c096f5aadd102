#pragma once

#include <cstddef>

// oneDNN allocates memory for the packed operands of each multiplication and frees it afterwards.
// glibc would either map that memory anew each time, and up to a third of a training step would be
// page faults, or keep it in a heap, which small allocations fragment: the heap would grow by
// several MiB, more or fewer with the order in which other ranks' messages arrive. MKL keeps such
// memory itself.
namespace ftrun {

/// OperandMemoryScope lets a library that calls allocate() and release() of this class reuse one
/// block of memory on the calling thread, from one scope to the next. The thread frees the block
/// when it ends. Outside of a scope, and for small or further allocations, the two functions are
/// posix_memalign() and free().
class OperandMemoryScope {
 public:
  OperandMemoryScope();
  /// If the library has not released the block, the block belongs to the library from now on.
  ~OperandMemoryScope();
  OperandMemoryScope(const OperandMemoryScope&) = delete;
  OperandMemoryScope& operator=(const OperandMemoryScope&) = delete;

  /// Allocates memory as posix_memalign() does; returns its error, or 0.
  static int allocate(void** result, size_t alignment, size_t bytes);
  /// Releases memory that allocate(), posix_memalign() or malloc() returned.
  static void release(void* address);

  /// Makes a loaded library (a handle of dlopen()) call allocate() and release() instead of
  /// posix_memalign() and free(): replaces the addresses that the loader has filled in. Returns
  /// false, and replaces none, if the library does not call both of them or its memory cannot be
  /// written. Must be called before other threads call the library.
  [[nodiscard]] static bool redirect(void* library);
};

}  // namespace ftrun
