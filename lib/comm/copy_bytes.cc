#include "comm/copy_bytes.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ftrun {
namespace {

/// Copies whole cache lines of `to` with vector instructions, and the bytes before and after them
/// with memcpy.
#if defined(__x86_64__)
void copy_lines(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kLine = 64, kVector = sizeof(__m128i);
  int64_t at = std::min(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % kLine));
  std::memcpy(to, from, static_cast<size_t>(at));
  for (; at + kLine <= bytes; at += kLine) {
    for (int64_t part = at; part < at + kLine; part += kVector)
      _mm_store_si128(reinterpret_cast<__m128i*>(to + part),
                      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}
#else
void copy_lines(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
#endif

}  // namespace

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (to == from || bytes == 0) return;
  copy_lines(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
}

}  // namespace ftrun
