#pragma once

#include <cstddef>

// oneDNN allocates memory for the packed operands of each multiplication and frees it afterwards.
// glibc would either map that memory anew each time, and a third of a training step would be page
// faults, or keep it in a heap, which small allocations fragment: it then grows by several MiB,
// which depends on the order in which other ranks' messages arrive. MKL and OpenBLAS keep such
// memory themselves.
namespace ftrun {

/// OperandMemory lets a library that calls allocate() and release() of this header reuse one block
/// of memory on the calling thread, from one OperandMemory object to the next. The thread frees the
/// block when it ends. While no object exists on a thread, and for small or further allocations,
/// the two functions are posix_memalign() and free().
class OperandMemory {
 public:
  OperandMemory();
  /// If the library has not released the block, the block belongs to the library from now on.
  ~OperandMemory();
  OperandMemory(const OperandMemory&) = delete;
  OperandMemory& operator=(const OperandMemory&) = delete;

  /// Allocates memory as posix_memalign() does, with its errors.
  static int allocate(void** result, size_t alignment, size_t bytes);
  /// Releases memory that allocate(), posix_memalign() or malloc() returned.
  static void release(void* address);

  /// Makes a loaded library (a handle of dlopen()) call allocate() and release() instead of
  /// posix_memalign() and free(): replaces the two addresses in its global offset table. Returns
  /// false, and changes nothing, if the library does not call both of them or the table cannot be
  /// written. Must be called before other threads call the library.
  static bool redirect(void* library);
};

}  // namespace ftrun
