// This file is compiled for AVX2, so it includes no header of the standard library: the linker
// could use this file's copies of inline functions in the whole program, which would crash on a CPU
// without AVX2.
#include "base/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ftrun {

uint64_t xxh3_avx2(const void* data, size_t size) {
  return XXH3_64bits(data, size);
}

void update_xxh3_avx2(void* state, const void* data, size_t size) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, size);
}

}  // namespace ftrun
