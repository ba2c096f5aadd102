#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "kernels/dropout_mask.h"
#include "ops/dropout/dropout.h"

namespace ftrun::cuda {

namespace {

struct Dropout {
  const void* x;
  /// May be x.
  void* y;
  int64_t count, width;
  DropoutAttrs attrs;
  int64_t layer, first_token;
  const StepScalars* scalars;
};

/// DropoutRows holds the arguments that are the same for all rows.
struct DropoutRows {
  int64_t layer, site, first_token, sequence_length, sequence_padding;
  uint32_t first_column, least_kept;
  float scale;
  /// DropoutAttrs::returns_dropped_part.
  bool returns_dropped_part;
};

// Applies dropout to a row, one block per token; y may be x.
template <class T, int V>
__global__ void dropout_rows(const T* x, T* y, int64_t width, DropoutRows rows,
                             const StepScalars* scalars) {
  const int64_t token =
      dropout_token_index(blockIdx.x, rows.sequence_length, rows.sequence_padding);
  const uint64_t row_key =
      dropout_row_key(scalars->dropout_key, rows.layer, rows.site, rows.first_token + token);
  const T* const from = x + blockIdx.x * width;
  T* const to = y + blockIdx.x * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    Floats<V> v = load<V>(from + i);
    const int64_t first = rows.first_column + i;
    const DropoutKeys begins = dropout_keys(row_key, first),
                      ends = dropout_keys(row_key, first + V - 1);
    const int64_t next_block = (first / kColumnsPerDropoutKey + 1) * kColumnsPerDropoutKey;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const uint32_t bits =
          dropout_bits(first + k < next_block ? begins : ends, static_cast<uint32_t>(first + k));
      const float kept = bits >= rows.least_kept ? v[k] * rows.scale : 0.0F;
      v[k] = rows.returns_dropped_part ? v[k] - rounded<T>(kept) : kept;
    }
    store(to + i, v);
  }
}

void dropout(DType dtype, const Dropout& d, cudaStream_t stream) {
  const DropoutRows rows{.layer = d.layer,
                         .site = d.attrs.site,
                         .first_token = d.first_token,
                         .sequence_length = d.attrs.sequence_length,
                         .sequence_padding = d.attrs.sequence_padding,
                         .first_column = static_cast<uint32_t>(d.attrs.first_column),
                         .least_kept = least_kept_bits(d.attrs),
                         .scale = static_cast<float>(dropout_scale(d.attrs)),
                         .returns_dropped_part = d.attrs.returns_dropped_part};
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(d.width, d.x, d.y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(d.count), static_cast<unsigned>(threads_for(d.width / V, kPointwiseThreads)),
              0, stream},
             dropout_rows<T, V>, static_cast<const T*>(d.x), static_cast<T*>(d.y), d.width, rows,
             d.scalars);
    });
  });
}

}  // namespace

void run_dropout(const Operation& op, const KernelLibraries& /*libraries*/) {
  dropout(op.dtype(),
          {.x = op.in(0),
           .y = op.out(0),
           .count = op.in_dims(0)[0],
           .width = op.in_dims(0)[1],
           .attrs = op.attrs<DropoutAttrs>(),
           .layer = op.layer(),
           .first_token = op.first_token(),
           .scalars = op.scalars()},
          op.stream());
}

}  // namespace ftrun::cuda
