#pragma once

#include <cstdint>

namespace ftrun {

// This header defines the order in which the gradient norm is summed, which is the same on every
// device. Element i of a block is added to running sum i % kGradientNormSums, in order. The running
// sums are added in a tree (i and i + 4, then + 2, then + 1). The blocks of a quarter of a group
// are added in order, the quarters as (0 + 2) + (1 + 3), and groups in order. All sums are in fp64,
// where the square of an fp32 number is exact.

/// The number of elements that are summed before anything else is added to them. Tensors begin on
/// blocks of their unit (kTensorBlock), so a block belongs to one tensor.
inline constexpr int64_t kGradientNormBlock = 256;
/// The number of elements whose sum is one number of a kernel's scratch: 16 blocks. Its four
/// quarters are read at the same time, because four streams of reads keep a core, or a warp, busier
/// than one.
inline constexpr int64_t kGradientNormGroup = 4096;
inline constexpr int kGradientNormSums = 8;
inline constexpr int kGradientNormQuarters = 4;

}  // namespace ftrun
