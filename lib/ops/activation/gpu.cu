#include "kernels/cuda/by_element.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops.h"
#include "ops/activation/activation.h"

namespace ftrun::cuda {

namespace {

__device__ inline float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

// Uses erfc, because 1 + erf would lose the digits of the tail.
__device__ inline float normal_distribution(float x) {
  return 0.5F * erfcf(-0.70710678F * x);
}

constexpr float kGeluFactor = 1.59576912F, kGeluCubic = 0.044715F;  // factor: sqrt(8 / pi)

// Returns odds = exp(-2 u), from which (1 + tanh(u)) / 2 = sigmoid(2 u) = 1 / (1 + odds).
__device__ inline float gelu_odds(float x) {
  return fminf(expf(-kGeluFactor * (x + kGeluCubic * (x * x * x))), 1e38F);
}

// Ends the kernel with an error. A switch over all activations gets here only if it lacks a case.
__device__ inline float fail_without_case() {
  __trap();
  return 0.0F;
}

// Returns the activation of x. `kind` is the same in all threads, so no warp diverges; NaN stays
// NaN.
__device__ inline float activated(Activation kind, float x) {
  switch (kind) {
    case Activation::kSilu:
      return x * sigmoid(x);
    case Activation::kGelu:
      return x * normal_distribution(x);
    case Activation::kGeluTanh:
      return x / (1.0F + gelu_odds(x));
    case Activation::kRelu:
      return x < 0.0F ? 0.0F : x;
    case Activation::kRelu2:
      return x < 0.0F ? 0.0F : x * x;
  }
  return fail_without_case();
}

// Returns d times the activation of x.
__device__ inline float scaled_activation(Activation kind, float d, float x) {
  return kind == Activation::kSilu ? d * x * sigmoid(x) : d * activated(kind, x);
}

// Returns d times the slope of the activation at x.
__device__ inline float scaled_slope(Activation kind, float d, float x) {
  switch (kind) {
    case Activation::kSilu: {
      const float sigma = sigmoid(x);
      return d * sigma * (1.0F + x * (1.0F - sigma));
    }
    case Activation::kGelu:  // 1 / sqrt(2 pi)
      return d * (normal_distribution(x) + x * (0.39894228F * expf(-0.5F * x * x)));
    case Activation::kGeluTanh: {
      const float q = gelu_odds(x), sigma = 1.0F / (1.0F + q);
      return d * (sigma +
                  x * (sigma * (q * sigma)) * (kGeluFactor * (1.0F + 3.0F * kGeluCubic * (x * x))));
    }
    case Activation::kRelu:
      return x > 0.0F ? d : 0.0F;
    case Activation::kRelu2:
      return d * (x < 0.0F ? 0.0F : 2.0F * x);
  }
  return fail_without_case();
}

struct Activated {
  Activation kind;
  __device__ float operator()(float x) const { return activated(kind, x); }
};

/// ActivationGradient computes the gradient of the activation's operand from dy and x.
struct ActivationGradient {
  Activation kind;
  __device__ float operator()(float dy, float x) const { return scaled_slope(kind, dy, x); }
};

template <class T, int V>
__global__ void gated_activation_rows(Activation kind, const T* gu, T* s, int64_t width) {
  const T* const gate = gu + blockIdx.x * 2 * width;
  T* const out = s + blockIdx.x * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> g = load<V>(gate + i), u = load<V>(gate + width + i);
    Floats<V> v;
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = activated(kind, g[k]) * u[k];
    store(out + i, v);
  }
}

// Computes the gradients of gate and up; dgu may be gu.
template <class T, int V>
__global__ void gated_activation_dgrad_rows(Activation kind, const T* ds, const T* gu, T* dgu,
                                            int64_t width) {
  const int64_t at = blockIdx.x * 2 * width;
  for (int64_t i = threadIdx.x * V; i < width; i += blockDim.x * V) {
    const Floats<V> d = load<V>(ds + blockIdx.x * width + i);
    const Floats<V> g = load<V>(gu + at + i), u = load<V>(gu + at + width + i);
    Floats<V> dgate, dup;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      dup[k] = scaled_activation(kind, d[k], g[k]);
      dgate[k] = scaled_slope(kind, d[k] * u[k], g[k]);
    }
    store(dgu + at + i, dgate);
    store(dgu + at + width + i, dup);
  }
}

Launch by_row(const Operation& op, int64_t packs) {
  return {blocks(op.in_dims(0)[0]), static_cast<unsigned>(threads_for(packs, kPointwiseThreads)), 0,
          op.stream()};
}

}  // namespace

void run_activation(const Operation& op, const KernelLibraries& /*libraries*/) {
  run_by_element(op, Activated{activation_of(op.op())});
}

void run_activation_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  run_by_element(op, ActivationGradient{activation_of(op.op())});
}

void run_gated_activation(const Operation& op, const KernelLibraries& /*libraries*/) {
  const int64_t width = op.out_dims(0)[1];
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* const gu = static_cast<const T*>(op.in(0));
    auto* const s = static_cast<T*>(op.out(0));
    with_vectors<T>(vectors_fit<T>(width, gu, s), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch(by_row(op, width / V), gated_activation_rows<T, V>, activation_of(op.op()), gu, s,
             width);
    });
  });
}

void run_gated_activation_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  const int64_t width = op.in_dims(0)[1];
  with_type(op.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* const ds = static_cast<const T*>(op.in(0));
    const auto* const gu = static_cast<const T*>(op.in(1));
    auto* const dgu = static_cast<T*>(op.out(0));
    with_vectors<T>(vectors_fit<T>(width, ds, gu, dgu), [&](auto v) {
      constexpr int V = decltype(v)::value;
      launch(by_row(op, width / V), gated_activation_dgrad_rows<T, V>, activation_of(op.op()), ds,
             gu, dgu, width);
    });
  });
}

}  // namespace ftrun::cuda
