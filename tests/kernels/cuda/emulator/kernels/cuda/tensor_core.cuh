#pragma once

#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/elements.cuh"

// Stands for lib/kernels/cuda/tensor_core.cuh: the same fragments, computed on the host from what
// the lanes of the warp hold.
namespace ftrun::cuda {

struct FragmentA {
  uint32_t r[4];
};
struct FragmentB {
  uint32_t r[2];
};
struct FragmentC {
  float r[4] = {0.0F, 0.0F, 0.0F, 0.0F};
};

template <class T>
float element_of(const uint32_t* words, int i) {
  return to_float(T{static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16))});
}

template <class T>
void multiply(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  struct Both {
    FragmentA a;
    FragmentB b;
  };
  const auto& all = emulator::exchange(Both{a, b});
  // Rows group and group + 8 of A are held by the four lanes of this group, columns pair and pair
  // + 1 of B by those of two.
  const int group = emulator::lane() / 4, pair = emulator::lane() % 4 * 2;
  float rows[2][16], columns[2][16];
  for (int t = 0; t < 4; ++t) {
    const auto left = emulator::from_lane<Both>(all, group * 4 + t).a;
    for (int i = 0; i < 8; ++i)
      rows[i / 2 % 2][2 * t + i % 2 + i / 4 * 8] = element_of<T>(left.r, i);
    for (int column = 0; column < 2; ++column) {
      const auto right = emulator::from_lane<Both>(all, (pair + column) * 4 + t).b;
      for (int i = 0; i < 4; ++i)
        columns[column][2 * t + i % 2 + i / 2 * 8] = element_of<T>(right.r, i);
    }
  }
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) c.r[i] += rows[i / 2][k] * columns[i % 2][k];
}

template <class T>
FragmentB load_rows_as_b(const T* row) {
  if (emulator::lane() < 16 && reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    std::fprintf(stderr, "emulator: ldmatrix from an address that is no multiple of 16\n");
    std::abort();
  }
  const auto& all = emulator::exchange(row);
  const int column = emulator::lane() / 4, pair = emulator::lane() % 4 * 2;
  const auto at = [&](int r) {
    return static_cast<uint32_t>(emulator::from_lane<const T*>(all, r)[column].bits);
  };
  return {{at(pair) | at(pair + 1) << 16, at(pair + 8) | at(pair + 9) << 16}};
}

}  // namespace ftrun::cuda
