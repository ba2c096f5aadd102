#pragma once

#include <cstdint>
#include <span>

#include "graph/layer_graph.h"

namespace ftrun {

/// The scalars of a step that change from step to step. They live in one place that kernels read,
/// so that programs and captured graphs never change.
struct StepScalars {
  /// 1 / counted tokens of the global batch (times the fp16 loss scale when there is one).
  float loss_scale = 1.0F;
  float learning_rate = 0.0F;
  /// In double: 1 - beta2 of a beta2 rounded to float would be wrong in the fifth digit.
  double beta1 = 0.9;
  double beta2 = 0.999;
  /// 1 - beta1^t and 1 - beta2^t of this step, computed in double (1 without bias correction).
  float bias_correction1 = 1.0F;
  float bias_correction2 = 1.0F;
  /// Multiplies gradients before the update: min(1, clip / (norm + 1e-6)), or 1.
  float gradient_scale = 1.0F;
};

struct KernelContext {
  /// Gradients of parameters are added to what is there; false overwrites.
  bool accumulate = false;
  const StepScalars* scalars = nullptr;
};

/// Runs one operation. `storage[v]` is the address of value v of `graph` (null for values the
/// operation does not use); addresses are 64-byte aligned except parameters', which are 4-byte
/// aligned at least. Runs on the calling thread and LibTorch's intra-op threads.
/// Error(kUnsupported) for a dtype or a processor the kernels do not know.
///
/// Results have the same bits for any number of threads, except those of BLAS products (the linear
/// kinds and kLinearCrossEntropy), which may round differently. Graphs with F64 activations run at
/// reference precision, for tests: their rstd and lse are F64 too.
void run_op(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
            const KernelContext& context);

// --- kernels on flat fp32 ranges -------------------------------------------------------------

/// Elements of one block of the gradient norm (DESIGN: summed in fp64 over fixed blocks).
inline constexpr int64_t kNormBlock = 4096;

/// Sum of squares of g[0..count), in double: each block of kNormBlock elements (from g's start) is
/// summed in a fixed order, block sums are added in order. The same bits for any number of threads.
/// NaN or infinity in g give a non-finite result.
double sum_of_squares(const float* g, int64_t count);

struct AdamOptions {
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;
  /// True: AdamW (decoupled decay, Loshchilov & Hutter 2019). False: decay is added to the
  /// gradient.
  bool decoupled = true;
};
/// One Adam step over flat fp32 ranges of `count` elements (Kingma & Ba 2015, algorithm 1), with
/// gradient_scale applied to g on the way: m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
/// p -= lr (m/c1 / (sqrt(v/c2) + eps) + wd p). 28 bytes of traffic an element.
void adam_update(float* p, const float* g, float* m, float* v, int64_t count,
                 const AdamOptions& options, const StepScalars& scalars);

struct SgdOptions {
  float momentum = 0.0F;
  float dampening = 0.0F;
  float weight_decay = 0.0F;
  bool nesterov = false;
  /// The first step sets the momentum buffer to the gradient (torch.optim.SGD).
  bool first_step = false;
};
/// torch.optim.SGD over flat ranges; `momentum_buffer` may be null when momentum is 0.
void sgd_update(float* p, const float* g, float* momentum_buffer, int64_t count,
                const SgdOptions& options, const StepScalars& scalars);

/// Threads kernels use from now on in this process (LibTorch's intra-op threads).
void set_kernel_threads(int threads);

}  // namespace ftrun
