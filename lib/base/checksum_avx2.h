#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ftrun {

// The functions here compute what checksum.h computes, on a CPU with AVX2: the same values in
// half the time.

uint64_t xxh3_avx2(const void* data, size_t size);
/// Adds `size` bytes to `state`, an XXH3_state_t.
void update_xxh3_avx2(void* state, const void* data, size_t size);

}  // namespace ftrun
