// Compiled for AVX2: no header of the standard library, whose inline functions the linker could
// then take from here for a CPU that does not have it.
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
