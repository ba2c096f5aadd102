#pragma once

#include <cstdint>
#include <limits>

#include "kernels/device.h"

namespace ftrun {

/// MeasuredAttention specifies which heads cuDNN's attention computes faster than our kernels on
/// GPUs of one compute capability, according to the timings of docs/benchmarks.md.
struct MeasuredAttention {
  int compute_major;
  int compute_minor;
  /// The size in elements of the narrowest head that cuDNN computes, in rows of one document and in
  /// rows of several.
  int64_t min_head_size;
  int64_t min_head_size_of_documents;
};

/// The size that means "cuDNN computes no head": no head is that wide.
inline constexpr int64_t kNoHead = std::numeric_limits<int64_t>::max();

/// The table for kernels.attention: auto. scripts/gpu_first_hour.sh prints, at its end, the line
/// for the GPU on which it ran. Heads of 64 and 128 elements are timed; 96 is between the two.
inline constexpr MeasuredAttention kMeasuredAttention[] = {
    {9, 0, 0, 96},  // NVIDIA H100 80GB HBM3
};

/// Returns the line of the table for a GPU; null where it was not measured.
inline const MeasuredAttention* measured_attention(const DeviceInfo& gpu) {
  for (const MeasuredAttention& measured : kMeasuredAttention)
    if (measured.compute_major == gpu.compute_major && measured.compute_minor == gpu.compute_minor)
      return &measured;
  return nullptr;
}

/// Returns whether cuDNN's attention was compared with ours and timed on such GPUs.
inline bool is_cudnn_measured(const DeviceInfo& gpu) {
  return measured_attention(gpu) != nullptr;
}

/// Returns whether cuDNN computes such heads faster than our kernels; false where it was not
/// measured. `documents`: rows may hold several.
inline bool is_cudnn_faster(const DeviceInfo& gpu, int64_t head_size, bool documents) {
  const MeasuredAttention* const measured = measured_attention(gpu);
  if (measured == nullptr) return false;
  return head_size >= (documents ? measured->min_head_size_of_documents : measured->min_head_size);
}

}  // namespace ftrun
