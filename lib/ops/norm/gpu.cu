#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/norm/norm.h"

namespace ftrun::cuda {

namespace {

/// RmsNorm holds the arguments of rms_norm().
struct RmsNorm {
  const void* x;
  /// The operand that is added to x (the result is `sum`); null for none.
  const void* r;
  const void* w;
  void* sum;
  void* y;
  float* rstd;
  int64_t rows, width;
  NormAttrs attrs;
};

/// RmsNormDgrad holds the arguments of rms_norm_dgrad().
struct RmsNormDgrad {
  const void* dy;
  const void* x;
  const float* rstd;
  const void* w;
  /// The gradient that is added to the result; may be dx or null.
  const void* e;
  void* dx;
  int64_t rows, width;
  float weight_offset;
};

constexpr int kMaxThreads = 512;

// Computes the RMS norm of a row, one block per row. It reads the row twice, the second time from
// the caches.
template <class T, int V>
__global__ void rms_norm_rows(const T* x, const T* r, const T* w, T* sum, T* y, float* rstd,
                              int64_t width, float epsilon, float weight_offset) {
  const int64_t row = blockIdx.x, at = row * width;
  float squares = 0.0F;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    Floats<V> v = load<V>(x + at + i);
    if (r != nullptr) {
      const Floats<V> more = load<V>(r + at + i);
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] = rounded<T>(v[k] + more[k]);
      store(sum + at + i, v);
    }
#pragma unroll
    for (int k = 0; k < V; ++k) squares += v[k] * v[k];
  }
  const float scale = 1.0F / sqrtf(block_sum(squares) / static_cast<float>(width) + epsilon);
  if (threadIdx.x == 0) rstd[row] = scale;
  const T* const source = r != nullptr ? sum : x;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    Floats<V> v = load<V>(source + at + i);
    const Floats<V> weight = load<V>(w + i);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = v[k] * scale * (weight[k] + weight_offset);
    store(y + at + i, v);
  }
}

// Computes dx = rstd (g - xhat mean(g xhat)) [+ e], with xhat = x rstd and g = dy (offset + w).
// This kernel is for rows that registers cannot hold: it reads them twice.
template <class T, int V>
__global__ void rms_norm_dgrad_long_rows(const T* dy, const T* x, const float* rstd, const T* w,
                                         const T* e, T* dx, int64_t width, float weight_offset) {
  const int64_t row = blockIdx.x, at = row * width;
  float projection = 0.0F;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> d = load<V>(dy + at + i), v = load<V>(x + at + i), weight = load<V>(w + i);
#pragma unroll
    for (int k = 0; k < V; ++k) projection += d[k] * (weight[k] + weight_offset) * v[k];
  }
  const float scale = rstd[row];
  const float along = block_sum(projection) * scale * scale * scale / static_cast<float>(width);
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> d = load<V>(dy + at + i), v = load<V>(x + at + i), weight = load<V>(w + i);
    Floats<V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) out[k] = d[k] * (weight[k] + weight_offset) * scale - v[k] * along;
    if (e != nullptr) {
      const Floats<V> more = load<V>(e + at + i);
#pragma unroll
      for (int k = 0; k < V; ++k) out[k] += more[k];
    }
    store(dx + at + i, out);
  }
}

/// NormGradientRows holds the operands and results of rms_norm_gradient_rows().
template <class T>
struct NormGradientRows {
  const T *dy, *x, *w, *e;
  const float* rstd;
  T* dx;
  /// F32[blocks, width]; only with the weight's gradient.
  float* partials;
  int64_t rows, rows_a_block, width;
  int64_t blocks;
  float weight_offset;
};

/// RowPart holds the elements of a row that one thread processes: C packs of V, `threads` packs
/// apart.
template <int V, int C>
struct RowPart {
  Floats<V> e[C];
};

// Computes the gradient of the input for a row, and adds the row's term of the weight's gradient to
// `sums`. It reads dy and x once, into registers.
template <class T, int V, int C, int R, bool kWeight>
__device__ void norm_gradient_row(const NormGradientRows<T>& a, int64_t row, int lane, int threads,
                                  RowPart<V, C>& sums) {
  const int64_t at = row * a.width;
  RowPart<V, C> d, v;
  float projection = 0.0F;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int64_t i = static_cast<int64_t>(lane + c * threads) * V;
    if (i >= a.width) break;
    d.e[c] = load<V>(a.dy + at + i);
    v.e[c] = load<V>(a.x + at + i);
    const Floats<V> weight = load<V>(a.w + i);
#pragma unroll
    for (int k = 0; k < V; ++k)
      projection = fmaf(d.e[c][k] * (weight[k] + a.weight_offset), v.e[c][k], projection);
  }
  const float scale = a.rstd[row];
  const float sum = R == 1 ? block_sum(projection) : warp_sum(projection);
  const float along = sum * scale * scale * scale / static_cast<float>(a.width);
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int64_t i = static_cast<int64_t>(lane + c * threads) * V;
    if (i >= a.width) break;
    const Floats<V> weight = load<V>(a.w + i);
    Floats<V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      out[k] = fmaf(-v.e[c][k], along, d.e[c][k] * (weight[k] + a.weight_offset) * scale);
      if (kWeight) sums.e[c][k] = weight_term(d.e[c][k], v.e[c][k], scale, sums.e[c][k]);
    }
    if (a.e != nullptr) {
      const Floats<V> more = load<V>(a.e + at + i);
#pragma unroll
      for (int k = 0; k < V; ++k) out[k] += more[k];
    }
    store(a.dx + at + i, out);
  }
}

// Computes the gradients of rows_a_block rows in each block, R rows at a time. If R is kPartLanes,
// a warp processes each row; if R is 1, the whole block processes it. With kWeight, a block sums a
// part of the weight's gradient, in the order of vector_gradient().
template <class T, int V, int C, int R, bool kWeight>
__global__ void __launch_bounds__(R == 1 ? kMaxThreads : 32 * kPartLanes)
    rms_norm_gradient_rows(NormGradientRows<T> a) {
  static_assert(R == 1 || R == kPartLanes);
  const int threads = R == 1 ? blockDim.x : 32;
  const int group = R == 1 ? 0 : threadIdx.x / 32, lane = R == 1 ? threadIdx.x : threadIdx.x % 32;
  const int64_t first = blockIdx.x * a.rows_a_block, last = min(first + a.rows_a_block, a.rows);
  RowPart<V, C> total{};
  for (int part = group; part < kPartLanes; part += R) {
    RowPart<V, C> sums{};
    for (int64_t row = first + part; row < last; row += kPartLanes)
      norm_gradient_row<T, V, C, R, kWeight>(a, row, lane, threads, sums);
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int k = 0; k < V; ++k)
        total.e[c][k] = part == group ? sums.e[c][k] : total.e[c][k] + sums.e[c][k];
  }
  if (!kWeight) return;
  float* const out = a.partials + blockIdx.x * a.width;
  float* const lanes = R == 1 ? out : shared_memory<float>() + group * a.width;
  for (int c = 0; c < C; ++c)
    for (int k = 0; k < V; ++k) {
      const int64_t i = static_cast<int64_t>(lane + c * threads) * V + k;
      if (i < a.width) lanes[i] = total.e[c][k];
    }
  if (R == 1) return;
  __syncthreads();
  const float* const all = shared_memory<float>();
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    float sum = all[i];
    for (int part = 1; part < kPartLanes; ++part) sum += all[part * a.width + i];
    out[i] = sum;
  }
}

/// RowLayout describes how rms_norm_gradient_rows() distributes rows over threads. It depends only
/// on their width and type.
struct RowLayout {
  /// Says whether a warp processes each row, and a block R = kPartLanes rows at a time; if false,
  /// the whole block processes one row (R = 1).
  bool one_warp_per_row;
  int threads;
  /// The number C of packs of a row that a thread keeps in registers; 0 if the row does not fit.
  int packs;
};

template <int V>
RowLayout row_layout(int64_t width) {
  constexpr int kMaxOfWarp = 32, kMaxOfBlock = 16;  // elements of a row per thread
  const auto packs_for = [&](int64_t threads, int max_elements) {
    const int64_t packs = divide_up(width, V * threads);
    for (const int each : {1, 2, 4})
      if (packs <= each && each * V <= max_elements) return each;
    return 0;
  };
  if (const int packs = packs_for(32, kMaxOfWarp); packs > 0)
    return {true, 32 * kPartLanes, packs};
  const int threads = threads_for(width / V, kMaxThreads);
  return {false, threads, packs_for(threads, kMaxOfBlock)};
}

template <class T, int V, int C, int R>
void launch_norm_gradients(const NormGradientRows<T>& a, const RowLayout& layout,
                           cudaStream_t stream) {
  const Launch shape{blocks(a.blocks), static_cast<unsigned>(layout.threads), 0, stream};
  if (a.partials == nullptr) return launch(shape, rms_norm_gradient_rows<T, V, C, R, false>, a);
  const size_t lanes = R == 1 ? 0 : kPartLanes * static_cast<size_t>(a.width) * sizeof(float);
  launch({shape.grid, shape.block, lanes, stream}, rms_norm_gradient_rows<T, V, C, R, true>, a);
}

template <class T, int V, int C>
void launch_norm_gradients(const NormGradientRows<T>& a, const RowLayout& layout,
                           cudaStream_t stream) {
  if (layout.one_warp_per_row) return launch_norm_gradients<T, V, C, kPartLanes>(a, layout, stream);
  if constexpr (C * V <= 16) return launch_norm_gradients<T, V, C, 1>(a, layout, stream);
}

/// NormParts describes the partial sums of the weight's gradient. If `partials` is null, that
/// gradient is not computed.
struct NormParts {
  float* partials = nullptr;
  int64_t parts = 0;
  int64_t tokens = 0;
};

/// Computes the gradient of the input and, if `of_weight` has partial sums, that of the weight.
/// Returns false, and does nothing, for rows that registers cannot hold.
template <class T>
bool norm_gradients(const RmsNormDgrad& n, const NormParts& of_weight, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  if (!vectors_fit<T>(n.width, n.dy, n.x, n.w, n.e, n.dx)) return false;
  const RowLayout layout = row_layout<V>(n.width);
  const int64_t rows_a_block = layout.one_warp_per_row ? kPartLanes : 1;
  const bool with_weight = of_weight.partials != nullptr;
  const NormGradientRows<T> a{
      .dy = static_cast<const T*>(n.dy),
      .x = static_cast<const T*>(n.x),
      .w = static_cast<const T*>(n.w),
      .e = static_cast<const T*>(n.e),
      .rstd = n.rstd,
      .dx = static_cast<T*>(n.dx),
      .partials = of_weight.partials,
      .rows = n.rows,
      .rows_a_block = with_weight ? of_weight.tokens : rows_a_block,
      .width = n.width,
      .blocks = with_weight ? of_weight.parts : divide_up(n.rows, rows_a_block),
      .weight_offset = n.weight_offset};
  if (layout.packs == 1) launch_norm_gradients<T, V, 1>(a, layout, stream);
  if (layout.packs == 2) launch_norm_gradients<T, V, 2>(a, layout, stream);
  if (layout.packs == 4) launch_norm_gradients<T, V, 4>(a, layout, stream);
  return layout.packs > 0;
}

void rms_norm(DType dtype, const RmsNorm& n, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_vectors<T>(vectors_fit<T>(n.width, n.x, n.r, n.w, n.sum, n.y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(n.rows), static_cast<unsigned>(threads_for(n.width / V, kMaxThreads)), 0,
              stream},
             rms_norm_rows<T, V>, static_cast<const T*>(n.x), static_cast<const T*>(n.r),
             static_cast<const T*>(n.w), static_cast<T*>(n.sum), static_cast<T*>(n.y), n.rstd,
             n.width, static_cast<float>(n.attrs.epsilon),
             static_cast<float>(n.attrs.weight_offset));
    });
  });
}

void rms_norm_dgrad(DType dtype, const RmsNormDgrad& n, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (norm_gradients<T>(n, {}, stream)) return;
    with_vectors<T>(vectors_fit<T>(n.width, n.dy, n.x, n.w, n.e, n.dx), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(n.rows), static_cast<unsigned>(threads_for(n.width / V, kMaxThreads)), 0,
              stream},
             rms_norm_dgrad_long_rows<T, V>, static_cast<const T*>(n.dy),
             static_cast<const T*>(n.x), n.rstd, static_cast<const T*>(n.w),
             static_cast<const T*>(n.e), static_cast<T*>(n.dx), n.width, n.weight_offset);
    });
  });
}

/// Computes both gradients of a norm with a single read of dy and x: `n`, and `g` as
/// vector_gradient() does. Both have the same bits as when computed separately. Returns false, and
/// does nothing, for rows that registers cannot hold.
bool rms_norm_gradients(DType dtype, const RmsNormDgrad& n, const VectorGradient& g,
                        cudaStream_t stream) {
  bool done = false;
  with_type(dtype, [&](auto type) {
    done = norm_gradients<decltype(type)>(
        n, {static_cast<float*>(g.workspace), vector_gradient_parts(g), vector_gradient_tokens(g)},
        stream);
  });
  if (done) add_partials(g, stream);
  return done;
}

RmsNormDgrad rms_norm_dgrad_of(const Operation& op) {
  return {.dy = op.in(0),
          .x = op.in(1),
          .rstd = op.floats_in(2),
          .w = op.in(3),
          .e = op.has_in(4) ? op.in(4) : nullptr,
          .dx = op.out(0),
          .rows = op.in_dims(0)[0],
          .width = op.in_dims(0)[1],
          .weight_offset = static_cast<float>(op.attrs<NormAttrs>().weight_offset)};
}

VectorGradient rms_norm_weight_gradient_of(const Operation& op) {
  VectorGradient g = vector_gradient_of(op, 0);
  g.x = op.in(1);
  g.rstd = op.floats_in(2);
  return g;
}

// Computes the layer norm of a row, one block per row. It reads the row three times, the second and
// the third time from the caches. w and b may be null.
template <class T, int V>
__global__ void layer_norm_rows(const T* x, const T* w, const T* b, T* y, float* mean, float* rstd,
                                int64_t width, float epsilon) {
  const int64_t row = blockIdx.x, at = row * width;
  float sum = 0.0F;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> v = load<V>(x + at + i);
#pragma unroll
    for (int k = 0; k < V; ++k) sum += v[k];
  }
  const float middle = block_sum(sum) / static_cast<float>(width);
  float squares = 0.0F;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> v = load<V>(x + at + i);
#pragma unroll
    for (int k = 0; k < V; ++k) squares += (v[k] - middle) * (v[k] - middle);
  }
  const float scale = 1.0F / sqrtf(block_sum(squares) / static_cast<float>(width) + epsilon);
  if (threadIdx.x == 0) {
    mean[row] = middle;
    rstd[row] = scale;
  }
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    Floats<V> v = load<V>(x + at + i);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = (v[k] - middle) * scale;
    if (w != nullptr) {
      const Floats<V> weight = load<V>(w + i);
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] *= weight[k];
    }
    if (b != nullptr) add_to(v, load<V>(b + i));
    store(y + at + i, v);
  }
}

// Returns dy w, or dy if w is null.
template <int V, class T>
__device__ Floats<V> weighted(const T* dy, const T* w) {
  Floats<V> g = load<V>(dy);
  if (w == nullptr) return g;
  const Floats<V> weight = load<V>(w);
#pragma unroll
  for (int k = 0; k < V; ++k) g[k] *= weight[k];
  return g;
}

// Computes dx = rstd (g - mean(g) - xhat mean(g xhat)) [+ e], with xhat = (x - mean) rstd and g =
// dy w.
template <class T, int V>
__global__ void layer_norm_dgrad_rows(const T* dy, const T* x, const float* mean, const float* rstd,
                                      const T* w, const T* e, T* dx, int64_t width) {
  const int64_t row = blockIdx.x, at = row * width;
  const float middle = mean[row], scale = rstd[row];
  float sum = 0.0F, projection = 0.0F;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> g = weighted<V>(dy + at + i, w == nullptr ? w : w + i), v = load<V>(x + at + i);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      sum += g[k];
      projection += g[k] * (v[k] - middle);
    }
  }
  const float shift = block_sum(sum) * scale / static_cast<float>(width);
  const float along = block_sum(projection) * scale * scale * scale / static_cast<float>(width);
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> g = weighted<V>(dy + at + i, w == nullptr ? w : w + i), v = load<V>(x + at + i);
    Floats<V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) out[k] = g[k] * scale - shift - (v[k] - middle) * along;
    if (e != nullptr) add_to(out, load<V>(e + at + i));
    store(dx + at + i, out);
  }
}

constexpr int kNormColumns = 32;

// Sums the gradients of weight and bias: block (p, c) sums 32 columns over the p-th part of the
// tokens, in the order of vector_gradient(). db may be null.
template <class T>
__global__ void layer_norm_partial_sums(const T* dy, const T* x, const float* mean,
                                        const float* rstd, int64_t tokens, int64_t tokens_a_part,
                                        int64_t width, float* dw, float* db) {
  __shared__ float sums[2][kPartLanes][kNormColumns + 1];
  const int64_t column = blockIdx.y * kNormColumns + threadIdx.x;
  const int64_t first = blockIdx.x * tokens_a_part, last = min(first + tokens_a_part, tokens);
  float weight = 0.0F, bias = 0.0F;
  if (column < width)
    for (int64_t n = first + threadIdx.y; n < last; n += kPartLanes) {
      const float d = to_float(dy[n * width + column]);
      weight = weight_term(d, to_float(x[n * width + column]) - mean[n], rstd[n], weight);
      bias += d;
    }
  sums[0][threadIdx.y][threadIdx.x] = weight;
  sums[1][threadIdx.y][threadIdx.x] = bias;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  for (int lane = 1; lane < kPartLanes; ++lane) {
    weight += sums[0][lane][threadIdx.x];
    bias += sums[1][lane][threadIdx.x];
  }
  dw[blockIdx.x * width + column] = weight;
  if (db != nullptr) db[blockIdx.x * width + column] = bias;
}

}  // namespace

void run_layer_norm(const Operation& op, const KernelLibraries& /*libraries*/) {
  const int64_t width = op.in_dims(0)[1];
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* const x = static_cast<const T*>(op.in(0));
    const auto* const w = static_cast<const T*>(op.has_in(1) ? op.in(1) : nullptr);
    const auto* const b = static_cast<const T*>(op.has_in(2) ? op.in(2) : nullptr);
    auto* const y = static_cast<T*>(op.out(0));
    with_vectors<T>(vectors_fit<T>(width, x, w, b, y), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(op.in_dims(0)[0]), static_cast<unsigned>(threads_for(width / V, kMaxThreads)),
              0, op.stream()},
             layer_norm_rows<T, V>, x, w, b, y, op.floats_out(1), op.floats_out(2), width,
             static_cast<float>(op.attrs<NormAttrs>().epsilon));
    });
  });
}

void run_layer_norm_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const int64_t width = op.in_dims(0)[1];
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* const dy = static_cast<const T*>(op.in(0));
    const auto* const x = static_cast<const T*>(op.in(1));
    const auto* const w = static_cast<const T*>(op.has_in(4) ? op.in(4) : nullptr);
    const auto* const e = static_cast<const T*>(op.has_in(5) ? op.in(5) : nullptr);
    auto* const dx = static_cast<T*>(op.out(0));
    with_vectors<T>(vectors_fit<T>(width, dy, x, w, e, dx), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch({blocks(op.in_dims(0)[0]), static_cast<unsigned>(threads_for(width / V, kMaxThreads)),
              0, op.stream()},
             layer_norm_dgrad_rows<T, V>, dy, x, op.floats_in(2), op.floats_in(3), w, e, dx, width);
    });
  });
}

void run_layer_norm_wgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const bool has_bias = op.has_out(1);
  VectorGradient weight = vector_gradient_of(op, 0);
  if (has_bias) weight.workspace_bytes /= 2;
  const int64_t parts = vector_gradient_parts(weight);
  auto* const dw = static_cast<float*>(weight.workspace);
  float* const db = has_bias ? dw + parts * weight.width : nullptr;
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    launch({dim3(blocks(parts), blocks(divide_up(weight.width, kNormColumns))),
            dim3(kNormColumns, kPartLanes), 0, op.stream()},
           layer_norm_partial_sums<T>, static_cast<const T*>(op.in(0)),
           static_cast<const T*>(op.in(1)), op.floats_in(2), op.floats_in(3), weight.tokens,
           vector_gradient_tokens(weight), weight.width, dw, db);
  });
  add_partials(weight, op.stream());
  if (!has_bias) return;
  VectorGradient bias = vector_gradient_of(op, 1);
  bias.workspace = db;
  bias.workspace_bytes = weight.workspace_bytes;
  add_partials(bias, op.stream());
}

void run_rms_norm(const Operation& op, const KernelLibraries& /*libraries*/) {
  rms_norm(op.dtype(),
           {.x = op.in(0),
            .r = nullptr,
            .w = op.in(1),
            .sum = nullptr,
            .y = op.out(0),
            .rstd = op.floats_out(1),
            .rows = op.in_dims(0)[0],
            .width = op.in_dims(0)[1],
            .attrs = op.attrs<NormAttrs>()},
           op.stream());
}

void run_add_rms_norm(const Operation& op, const KernelLibraries& /*libraries*/) {
  rms_norm(op.dtype(),
           {.x = op.in(0),
            .r = op.in(1),
            .w = op.in(2),
            .sum = op.out(0),
            .y = op.out(1),
            .rstd = op.floats_out(2),
            .rows = op.in_dims(0)[0],
            .width = op.in_dims(0)[1],
            .attrs = op.attrs<NormAttrs>()},
           op.stream());
}

void run_rms_norm_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  rms_norm_dgrad(op.dtype(), rms_norm_dgrad_of(op), op.stream());
}

void run_rms_norm_wgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  vector_gradient(op.dtype(), rms_norm_weight_gradient_of(op), op.stream());
}

/// Computes both gradients in one pass over the rows. Returns false if the rows are too wide.
bool run_pair_rms_norm_wgrad(const Operation& weight, const Operation& input) {
  const VectorGradient g = rms_norm_weight_gradient_of(weight);
  return rms_norm_gradients(input.dtype(), rms_norm_dgrad_of(input), g, input.stream());
}

}  // namespace ftrun::cuda
