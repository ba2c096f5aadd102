#pragma once

#include "kernels/cuda/elements.cuh"

// The two instructions of the tensor cores that the kernels use. (The tests on machines without a
// GPU have a file of this name that does the same on the host.)
namespace ftrun::cuda {

// FragmentA, B and C are fragments of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
// what each lane of a warp holds. With g = lane / 4 and t = lane % 4, A has rows g, g+8 and columns
// 2t, 2t+1 (+8); B rows 2t, 2t+1 (+8) and column g; C rows g, g+8 and columns 2t, 2t+1. A word
// holds two neighbours, the first in its low half.
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

/// Loads B from 16 rows of 8 elements in shared memory: lane i < 16 gives the address of row i (a
/// multiple of 16 bytes).
template <class T>
__device__ inline FragmentB load_rows_as_b(const T* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  FragmentB b;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(b.r[0]), "=r"(b.r[1])
               : "r"(address)
               : "memory");
  return b;
}

}  // namespace ftrun::cuda
