#pragma once

#include <cstdint>

// FTRUN_HOST_DEVICE lets GPU code call these functions as well.
#ifdef __CUDACC__
#define FTRUN_HOST_DEVICE __host__ __device__
#else
#define FTRUN_HOST_DEVICE
#endif

namespace ftrun {

/// Maps 64-bit words to 64-bit words by a bijection in which every input bit affects every output
/// bit (Stafford's mix 13).
FTRUN_HOST_DEVICE inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Computes splitmix64 (Steele, Lea, Flood 2014) of a counter.
FTRUN_HOST_DEVICE inline uint64_t splitmix64(uint64_t x) {
  return mix_bits(x + 0x9e3779b97f4a7c15ULL);
}

}  // namespace ftrun
