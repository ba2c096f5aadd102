#include "comm/out_of_memory.h"

#include <new>
#include <string_view>

#include <c10/util/Exception.h>

namespace ftrun {

bool is_out_of_memory(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&exception) != nullptr) return true;
  const auto* error = dynamic_cast<const c10::Error*>(&exception);
  if (error == nullptr) return false;
  // LibTorch's CPU allocator throws a plain c10::Error, which only its message identifies.
  const std::string_view words = error->what_without_backtrace();
  return words.find("DefaultCPUAllocator: ") != words.npos;
}

void rethrow_out_of_memory(const std::exception& exception) {
  if (is_out_of_memory(exception)) throw std::bad_alloc();
}

}  // namespace ftrun
