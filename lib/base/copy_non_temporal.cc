#include "base/copy_non_temporal.h"

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

namespace ftrun {
namespace {

constexpr size_t kLine = 64;
/// The prefetch distance in bytes: the hardware's own prefetching stops at the end of each page.
constexpr size_t kAhead = 2048;
/// The minimum size of a non-temporal copy. A smaller copy through the caches does no harm.
constexpr size_t kMinBytes = 4096;

}  // namespace

void copy_non_temporal(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  if (bytes >= kMinBytes) {
    // Non-temporal stores must fill whole lines of the target; the alignment of the source does not
    // matter.
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
    std::memcpy(target, source, head);
    const size_t lines = (bytes - head) / kLine * kLine;
    for (size_t at = head; at < head + lines; at += kLine) {
      if (bytes - at > kAhead) _mm_prefetch(source + at + kAhead, _MM_HINT_NTA);
      for (size_t part = at; part < at + kLine; part += sizeof(__m128i))
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + part),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + part)));
    }
    _mm_sfence();  // the bytes must be visible before anyone learns of them
    target += head + lines;
    source += head + lines;
    bytes -= head + lines;
  }
  std::memcpy(target, source, bytes);
}

}  // namespace ftrun
