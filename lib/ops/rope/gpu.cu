#include "base/error.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/rope/rope.h"

namespace ftrun::cuda {

namespace {

constexpr int kMaxAngles = 256;

/// TableAngles holds the angles of the table. It is passed as a parameter of the kernel, which
/// needs no copy to the device before. Magnitudes are doubles, as on the CPU.
struct TableAngles {
  double magnitude[kMaxAngles];
  float frequency[kMaxAngles];
};

// The angle is a product of fp32 numbers, as on the CPU.
__global__ void rope_table_rows(const int32_t* positions, float* table, TableAngles angles,
                                int half) {
  const int64_t n = blockIdx.x;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const double angle = __fmul_rn(static_cast<float>(positions[n]), angles.frequency[i]);
    const double magnitude = angles.magnitude[i];
    table[n * 2 * half + i] = static_cast<float>(magnitude * cos(angle));
    table[n * 2 * half + half + i] = static_cast<float>(magnitude * sin(angle));
  }
}

/// Angles describes the angles by which rope_rows() rotates: `half` elements of a row of the table,
/// from `first` on. Their sines are table_half elements after their cosines.
struct Angles {
  int first, half, table_half;
};

__device__ inline void rotate_pair(float& a, float& b, float cosine, float sine) {
  const float first = a;
  a = first * cosine - b * sine;
  b = b * cosine + first * sine;
}

/// Rotates V pairs of neighboring elements, from `from` on.
template <class T, int V>
__device__ void rotate_neighbors(const T* from, T* to, const float* cosine, const float* sine,
                                 float sine_sign) {
  Floats<V> parts[2] = {load<V>(from), load<V>(from + V)};
#pragma unroll
  for (int k = 0; k < V; ++k)
    rotate_pair(parts[2 * k / V][2 * k % V], parts[(2 * k + 1) / V][(2 * k + 1) % V], cosine[k],
                sine[k] * sine_sign);
  store(to, parts[0]);
  store(to + V, parts[1]);
}

// Rotates the heads of a token, one block per token. A thread rotates V pairs, or copies V elements
// that do not rotate: those at the end of each head, and v. y may be x.
template <class T, int V, bool kNeighbors>
__global__ void rope_rows(const T* x, const float* table, T* y, int rotated_heads, int copied,
                          int head_size, Angles angles, float sine_sign) {
  const int half = angles.half;
  const int64_t n = blockIdx.x;
  const int rotated = rotated_heads * head_size;
  const int packs = half / V, pairs = rotated_heads * packs;
  const T* const from = x + n * (rotated + copied);
  T* const to = y + n * (rotated + copied);
  const float* const cosine = table + n * 2 * angles.table_half + angles.first;
  const float* const sine = cosine + angles.table_half;
  for (int item = threadIdx.x; item < pairs; item += blockDim.x) {
    const int i = item % packs * V, head = item / packs * head_size;
    if constexpr (kNeighbors) {
      rotate_neighbors<T, V>(from + head + 2 * i, to + head + 2 * i, cosine + i, sine + i,
                             sine_sign);
    } else {
      const int at = head + i;
      Floats<V> a = load<V>(from + at), b = load<V>(from + at + half);
#pragma unroll
      for (int k = 0; k < V; ++k) rotate_pair(a[k], b[k], cosine[i + k], sine[i + k] * sine_sign);
      store(to + at, a);
      store(to + at + half, b);
    }
  }
  if (x == y) return;
  const int rest = (head_size - 2 * half) / V;
  for (int item = threadIdx.x; item < rotated_heads * rest; item += blockDim.x) {
    const int at = item / rest * head_size + 2 * half + item % rest * V;
    store(to + at, load<V>(from + at));
  }
  for (int i = threadIdx.x * V; i < copied; i += blockDim.x * V)
    store(to + rotated + i, load<V>(from + rotated + i));
}

void rope_table(const int32_t* positions, float* table, int64_t count, const RopeTableAttrs& attrs,
                cudaStream_t stream) {
  const auto half = static_cast<int>(attrs.angles.size());
  if (half > kMaxAngles)
    throw Error(ExitCode::kUnsupported,
                cat("heads of ", 2 * half, " elements are too large for the CUDA kernels"),
                cat("use a model whose heads have at most ", 2 * kMaxAngles,
                    ", or set device: cpu"));
  TableAngles angles{};
  for (int i = 0; i < half; ++i) {
    const RopeAngle& angle = attrs.angles[static_cast<size_t>(i)];
    angles.magnitude[i] = angle.magnitude;
    angles.frequency[i] = static_cast<float>(angle.frequency);
  }
  launch({blocks(count), static_cast<unsigned>(threads_for(half, kPointwiseThreads)), 0, stream},
         rope_table_rows, positions, table, angles, half);
}

/// Rotates the first elements of each head; sine_sign -1 rotates back; y may be x.
void rope(DType dtype, const void* x, const float* table, void* y, int64_t count,
          const Angles& angles, const HeadAttrs& heads, bool neighbors, float sine_sign,
          cudaStream_t stream) {
  const int half = angles.half;
  const int64_t rotated_heads = heads.query_heads + heads.kv_heads;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(half, x, y) && vectors_fit<T>(heads.head_size), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(count),
              static_cast<unsigned>(threads_for(rotated_heads * half / V, kPointwiseThreads)), 0,
              stream},
             neighbors ? rope_rows<T, V, true> : rope_rows<T, V, false>, static_cast<const T*>(x),
             table, static_cast<T*>(y), static_cast<int>(rotated_heads),
             static_cast<int>(heads.kv_heads * heads.head_size), static_cast<int>(heads.head_size),
             angles, sine_sign);
    });
  });
}

void rotate(const Operation& op, float sine_sign) {
  const auto& attrs = op.attrs<RopeAttrs>();
  const int64_t table_width = op.in_dims(1)[1];
  const Angles angles{static_cast<int>(attrs.first_angle),
                      static_cast<int>(attrs.angles_of(table_width)),
                      static_cast<int>(table_width / 2)};
  rope(op.dtype(), op.in(0), op.floats_in(1), op.out(0), op.in_dims(0)[0], angles, attrs.heads,
       attrs.pairs, sine_sign, op.stream());
}

}  // namespace

void run_rope_table(const Operation& op, const KernelLibraries& /*libraries*/) {
  rope_table(op.ints_in(0), op.floats_out(0), op.in_dims(0)[0], op.attrs<RopeTableAttrs>(),
             op.stream());
}

void run_rope(const Operation& op, const KernelLibraries& /*libraries*/) {
  rotate(op, 1.0F);
}

void run_rope_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  rotate(op, -1.0F);
}

}  // namespace ftrun::cuda
