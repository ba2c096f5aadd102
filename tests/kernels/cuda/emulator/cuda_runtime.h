#pragma once

// This header emulates the part of CUDA C++ that the kernels use.

#include <cmath>
#include <type_traits>

#include "block.h"
#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __constant__
#define __launch_bounds__(...)
// Blocks run one after the other, so static memory can serve as shared memory.
#define __shared__ static

using dim3 = emulator::Size;

/// EmulatedWord is a word that the device loads or stores in one instruction. Access to a
/// misaligned one ends the process, as it ends a kernel on a GPU.
template <int N>
struct alignas(4 * N) EmulatedWord {
  unsigned parts[N];

  EmulatedWord() = default;
  template <class... Values>
  explicit(false) EmulatedWord(unsigned first, Values... rest)
      : parts{first, static_cast<unsigned>(rest)...} {}
  EmulatedWord(const EmulatedWord& other) {
    emulator::require_aligned(&other, sizeof *this);
    std::memcpy(parts, other.parts, sizeof parts);
  }
  EmulatedWord& operator=(const EmulatedWord& other) {
    emulator::require_aligned(this, sizeof *this);
    emulator::require_aligned(&other, sizeof *this);
    std::memmove(parts, other.parts, sizeof parts);
    return *this;
  }
};
using uint2 = EmulatedWord<2>;
using uint4 = EmulatedWord<4>;

/// Stores a whole word in global memory, like a streaming store.
template <int N>
void __stwb(EmulatedWord<N>* address, const EmulatedWord<N>& value) {
  *address = value;
}

#define threadIdx (emulator::thread_index)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid_size)

/// Ends the program, as it ends a kernel with an error on a GPU.
inline void __trap() {
  __builtin_trap();
}
inline void __syncthreads() {
  emulator::block_barrier();
}
inline void __syncwarp() {
  emulator::exchange(0);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulator::from_lane<T>(emulator::exchange(value), emulator::lane() ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int step) {
  const auto& all = emulator::exchange(value);
  const int from = emulator::lane() + step;
  return from < 32 ? emulator::from_lane<T>(all, from) : value;
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const auto& all = emulator::exchange(vote);
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i) votes |= emulator::from_lane<bool>(all, i) ? 1U << i : 0U;
  return votes;
}

/// Adds to *address without locking: blocks run one after the other, and the emulator switches
/// threads of a block only at barriers.
inline int atomicAdd(int* address, int value) {
  const int before = *address;
  *address += value;
  return before;
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
/// Returns the position of the lowest set bit, counted from 1; 0 if no bit is set.
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
/// Multiplies; the compiler may not fuse the product into a multiply-add.
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}
inline float __fadd_rn(float a, float b) {
  const volatile float sum = a + b;
  return sum;
}
template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
  return a > b ? a : b;
}
using std::isfinite;
