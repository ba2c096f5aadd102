#pragma once

#include "kernels/cuda/elements.cuh"

// This file replaces lib/kernels/cuda/tensor_core.cuh: it computes the same fragments on the host
// from the values of the warp's lanes.
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

struct FourBlocks {
  uint32_t r[4];
};

/// Returns the rows' addresses that the lanes give, each of which has to be a multiple of 16.
template <class T>
const emulator::Exchanged& exchange_rows(const T* row) {
  emulator::require_aligned(row, 16);
  return emulator::exchange(row);
}

template <class T>
FourBlocks load_blocks(const T* row) {
  const auto& all = exchange_rows(row);
  const int group = emulator::lane() / 4, column = emulator::lane() % 4 * 2;
  FourBlocks b;
  for (int i = 0; i < 4; ++i) {
    const T* const own = emulator::from_lane<const T*>(all, 8 * i + group);
    b.r[i] = static_cast<uint32_t>(own[column].bits) | static_cast<uint32_t>(own[column + 1].bits)
                                                           << 16;
  }
  return b;
}

template <class T>
FourBlocks load_transposed_blocks(const T* row) {
  const auto& all = exchange_rows(row);
  const int column = emulator::lane() / 4, pair = emulator::lane() % 4 * 2;
  FourBlocks b;
  for (int i = 0; i < 4; ++i) {
    const auto at = [&](int r) {
      return static_cast<uint32_t>(emulator::from_lane<const T*>(all, 8 * i + r)[column].bits);
    };
    b.r[i] = at(pair) | at(pair + 1) << 16;
  }
  return b;
}

template <int Bytes>
void start_copy(void* to, const void* from, bool exists) {
  static_assert(Bytes == 4 || Bytes == 16);
  emulator::start_copy(to, exists ? from : nullptr, Bytes);
}

inline void wait_for_copies() {
  emulator::wait_for_copies();
}

inline float exp2_approx(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126F ? 0.0F : y;
}

}  // namespace ftrun::cuda
