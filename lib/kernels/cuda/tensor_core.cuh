#pragma once

#include "kernels/cuda/elements.cuh"

// The functions of this file wrap instructions that CUDA C++ does not offer: matrix multiplications
// on the tensor cores, loads of their operands, asynchronous copies into shared memory, powers of
// two. (Tests on machines without a GPU include another file of this name, which does the same on
// the host.)
namespace ftrun::cuda {

// FragmentA, B and C hold one lane's elements of the operands of mma.m16n8k16 (PTX ISA, "Matrix
// Fragments for mma.m16n8k16"). With g = lane / 4 and t = lane % 4, A has rows g, g+8 and columns
// 2t, 2t+1 (+8); B rows 2t, 2t+1 (+8) and column g; C rows g, g+8 and columns 2t, 2t+1. A word
// holds two neighbors, the first in its low half.
struct FragmentA {
  uint32_t r[4];
};
struct FragmentB {
  uint32_t r[2];
};
struct FragmentC {
  float r[4] = {0.0F, 0.0F, 0.0F, 0.0F};
};

/// Computes c += a b of elements T, BF16 or F16, in fp32.
template <class T>
__device__ inline void multiply(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  if constexpr (std::is_same_v<T, Half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

/// FourBlocks are four blocks of 8 x 8 elements in the lanes of a warp: with g = lane / 4 and t =
/// lane % 4, word i holds row g, columns 2t and 2t+1 of block i or, if the block is transposed,
/// rows 2t and 2t+1 of its column g.
struct FourBlocks {
  uint32_t r[4];
};

/// Returns an address in shared memory in the form that PTX instructions need.
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Loads four blocks from shared memory: lane i gives the address of row i % 8 of block i / 8 (a
/// multiple of 16 bytes).
template <class T>
__device__ inline FourBlocks load_blocks(const T* row) {
  FourBlocks b;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(b.r[0]), "=r"(b.r[1]), "=r"(b.r[2]), "=r"(b.r[3])
               : "r"(shared_address(row))
               : "memory");
  return b;
}

/// Loads four blocks as load_blocks() does, each of them transposed.
template <class T>
__device__ inline FourBlocks load_transposed_blocks(const T* row) {
  FourBlocks b;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(b.r[0]), "=r"(b.r[1]), "=r"(b.r[2]), "=r"(b.r[3])
               : "r"(shared_address(row))
               : "memory");
  return b;
}

/// Starts a copy of 4 or 16 bytes from global to shared memory, which runs asynchronously; both
/// addresses are multiples of the size. If the source does not exist (`exists`), the bytes are set
/// to 0. The thread that started the copy may read the bytes after wait_for_copies(), other threads
/// after an additional barrier.
template <int Bytes>
__device__ inline void start_copy(void* to, const void* from, bool exists) {
  static_assert(Bytes == 4 || Bytes == 16);
  const int source_bytes = exists ? Bytes : 0;
  if constexpr (Bytes == 16)  // bypasses the L1 cache, which only 16-byte copies can
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(source_bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(source_bytes)
                 : "memory");
}

/// Waits until the copies that this thread has started are done.
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

/// Returns 2^x within 2 units of the last place; results below the smallest normal number are 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ftrun::cuda
